#include "plait/sim/times.h"

#include "plait/ir/program.h"

#include <gmock/gmock.h>

namespace plait {
namespace {

using ::testing::HasSubstr;

TEST(Decimals, AreExact) {
  EXPECT_EQ(parse_decimal("18.522").value(), (Decimal{.digits = 18522, .decimals = 3}));
  EXPECT_EQ(parse_decimal(".601").value(), (Decimal{.digits = 601, .decimals = 3}));
  EXPECT_EQ(parse_decimal("1.50").value(), (Decimal{.digits = 15, .decimals = 1}));
  EXPECT_EQ(parse_decimal("2.5e-3").value(), (Decimal{.digits = 25, .decimals = 4}));
  EXPECT_EQ(parse_decimal("1.2E2").value(), (Decimal{.digits = 120, .decimals = 0}));
  EXPECT_EQ(parse_decimal("-0.0").value(), Decimal{});
  for (const char* bad :
       {"", "+", ".", "1.2.3", "nan", "inf", "0x10", "1e", "1 ", "1234567890123456789", "1e99", "1e-99"})
    EXPECT_EQ(parse_decimal(bad).error().rule, "times.number") << bad;
}

TEST(Times, ByOpAndByPart) {
  const TimesSpec ops = parse_times("F=1,B=1.2,W=0.8").value();
  EXPECT_EQ(ops.form, TimesSpec::Form::kOps);
  EXPECT_EQ(ops.backward, (Decimal{.digits = 12, .decimals = 1}));
  const TimesSpec parts = parse_times("pre=0.5,attn=4,post=0.5").value();
  EXPECT_EQ(parts.form, TimesSpec::Form::kParts);
  EXPECT_EQ(parts.head, Decimal{});
  EXPECT_EQ(ticks_per_unit(ops, 6).value(), 60);
}

TEST(Times, RefuseBadInput) {
  const std::pair<const char*, const char*> cases[] = {{"F=1,B=1", "times.missing"},
                                                       {"", "times.missing"},
                                                       {"F=1,B=-1,W=1", "times.negative"},
                                                       {"F=1,B=1,W=x", "times.number"},
                                                       {"F=1,B=1,Z=1", "times.key"},
                                                       {"F=1,F=1,B=1,W=1", "times.key"},
                                                       {"F=1,B=1,W=1,attn=3", "times.mixed"},
                                                       {"pre=1,attn=2", "times.missing"},
                                                       {"F", "times.key"}};
  for (const auto& [text, rule] : cases) {
    auto times = parse_times(text);
    ASSERT_FALSE(times) << text;
    EXPECT_EQ(times.error().rule, rule) << text;
  }
}

TEST(Times, FromJson) {
  const TimesSpec times =
      parse_times_json(R"({"F": 1, "B": 1.25, "W": 0.75, "latency": 0.1, "slices": [0.25, 0.75]})").value();
  EXPECT_EQ(times.backward, (Decimal{.digits = 125, .decimals = 2}));
  EXPECT_EQ(times.latency, (Decimal{.digits = 1, .decimals = 1}));
  EXPECT_EQ(times.slices.size(), 2U);
  for (const char* bad :
       {"", "[1]", "{\"F\": 1", "{\"F\": \"1\", \"B\": 1, \"W\": 1}", "{\"F\": {\"x\": 1}}", "{\"F\": null}"})
    EXPECT_EQ(parse_times_json(bad).error().rule, "times.json") << bad;
  EXPECT_EQ(parse_times_json(R"({"F": 1, "B": 1, "W": 1, "speed": [1]})").error().rule, "times.key");
}

Layout chain(int num_ranks, int num_stages, int num_slices, int num_layers) {
  std::vector<std::vector<RankId>> homes;
  for (int s = 0; s < num_stages; ++s) homes.push_back({RankId{s % num_ranks}});
  return make_layout(LayoutSpec{.name = "t",
                                .num_ranks = num_ranks,
                                .num_microbatches = 1,
                                .num_slices = num_slices,
                                .num_layers = num_layers,
                                .stages = cut_by_layers(num_layers, num_stages).value(),
                                .homes = homes})
      .value();
}

TEST(AbstractCosts, ShareOfTheModel) {
  const Layout layout = chain(2, 6, 2, 6);  // three chunks, two slices: a sixth of F
  const CostModel costs = abstract_costs(layout, parse_times("F=1,B=1.2,W=0.8").value()).value();
  EXPECT_EQ(costs.ticks_per_unit, 10 * 6 * 2);
  const StageId stage{3};
  EXPECT_EQ(costs.op(OpKind::kForward, stage, SliceId{1}).ticks, 20);
  EXPECT_EQ(costs.op(OpKind::kBackwardInput, stage, SliceId{1}).ticks, 24);
  EXPECT_EQ(costs.op(OpKind::kBackwardWeight, stage, SliceId{1}).ticks, 16);
  EXPECT_EQ(costs.op(OpKind::kBackward, stage, SliceId{1}).ticks, 40);
  EXPECT_EQ(costs.op(OpKind::kRecompute, stage, SliceId{1}).ticks, 20);
}

TEST(AbstractCosts, PartsOfEachStage) {
  const Layout layout = chain(1, 1, 1, 2);
  const TimesSpec times = parse_times("pre=0.5,attn=4,post=0.5").value();
  const CostModel costs = abstract_costs(layout, times).value();
  const auto unit = [&](OpKind kind) {
    return static_cast<double>(costs.op(kind, {}, {}).ticks) / static_cast<double>(costs.ticks_per_unit);
  };
  EXPECT_EQ(unit(OpKind::kForward), 2 * 5);
  EXPECT_EQ(unit(OpKind::kBackwardInput), 2 * 9);
  EXPECT_EQ(unit(OpKind::kBackwardWeight), 2 * 1);
  EXPECT_EQ(unit(OpKind::kBackward), 2 * 10);
  EXPECT_EQ(unit(OpKind::kRecompute), 2 * 5);
  Layout kept = layout;
  kept.recompute = Recompute::kNoAttention;
  EXPECT_EQ(abstract_costs(kept, times).value().op(OpKind::kRecompute, {}, {}).ticks, 2 * costs.ticks_per_unit);
}

TEST(AbstractCosts, RefuseWhatDoesNotFit) {
  Layout layout = chain(2, 6, 1, 6);
  TimesSpec times = parse_times("F=1,B=1,W=1").value();
  EXPECT_EQ(abstract_costs(layout, times, 1).error().rule, "times.inexact");
  layout.recompute = Recompute::kNoAttention;
  EXPECT_EQ(abstract_costs(layout, times).error().rule, "times.recompute");
  layout.recompute = Recompute::kNone;
  times.slices = {Decimal{.digits = 1}, Decimal{.digits = 1}};
  EXPECT_EQ(abstract_costs(layout, times).error().rule, "times.table");
  EXPECT_EQ(abstract_costs(layout, parse_times("F=999999999999999999,B=1,W=1").value()).error().rule, "times.overflow");
  EXPECT_EQ(ticks_per_unit(parse_times("F=0.0000000000001,B=1,W=1").value(), 1).error().rule, "times.too_fine");
}

}  // namespace
}  // namespace plait
