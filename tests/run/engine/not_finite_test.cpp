// A step with something that is not finite updates nothing, on any rank, and leaves no trace.

#include "engine_support.h"
#include "poisoned_kernels.h"
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

#include <cmath>
#include <tuple>

namespace plait::testing {
namespace {

constexpr std::int64_t kBadToken = 28;  // the last of the vocabulary

class NotFinite : public ::testing::TestWithParam<std::tuple<std::string, int, Spoilt>> {
 protected:
  NotFinite() : config_(tiny_config(8, HeadTying::kUntied)) {}
  /// Of rows without the bad token, or with it in the second micro-batch.
  [[nodiscard]] std::vector<Microbatch> data(const VerifiedProgram& program, std::uint64_t seed, bool bad) const {
    auto data = make_data(program.program().layout.num_microbatches, 2, 9, kBadToken, Mask::kNone, seed);
    if (bad) data[1].tokens.data_ptr<std::int64_t>()[3] = kBadToken;
    return data;
  }
  const ModelConfig config_;
};

TEST_P(NotFinite, UpdatesNothingOnAnyRank) {
  const auto& [schedule, num_ranks, spoilt] = GetParam();
  const auto program = program_of(schedule, {.ranks = num_ranks, .microbatches = 8, .layers = 8});
  ASSERT_TRUE(program) << program.error().message;
  EngineOptions options;
  options.kernels = poisoned_kernels(kBadToken, spoilt);
  const auto engine = make_engine(*program, config_, options);
  const auto undisturbed = make_engine(*program, config_, options);
  ASSERT_TRUE(engine && undisturbed);
  ASSERT_TRUE(engine->train_step(data(*program, 1, false), 0.1));
  const auto bad = engine->train_step(data(*program, 2, true), 0.1);
  const auto result = engine->train_step(data(*program, 3, false), 0.1);
  ASSERT_TRUE(undisturbed->train_step(data(*program, 1, false), 0.1));
  const auto expected = undisturbed->train_step(data(*program, 3, false), 0.1);
  ASSERT_TRUE(bad && result && expected);

  EXPECT_FALSE(bad->updated);
  EXPECT_FALSE(std::isfinite(bad->grad_norm));
  if (spoilt == Spoilt::kLoss)
    EXPECT_THAT(bad->not_finite, ::testing::StartsWith("the loss is inf (rank "));
  else
    EXPECT_THAT(bad->not_finite, ::testing::AllOf(::testing::StartsWith("the gradient of "),
                                                  ::testing::HasSubstr(" (rank "), ::testing::EndsWith("not finite")));
  EXPECT_TRUE(result->updated);
  EXPECT_EQ(result->not_finite, "");
  EXPECT_EQ(result->loss, expected->loss);
  EXPECT_EQ(result->grad_norm, expected->grad_norm);
  const auto state = engine->save();
  const auto expected_state = undisturbed->save();
  ASSERT_TRUE(state && expected_state);
  for (const auto& [name, parameter] : *expected_state) {
    EXPECT_TRUE(at::equal(state->at(name).master, parameter.master)) << name;
    for (const auto& [moment, tensor] : parameter.moments)
      EXPECT_TRUE(at::equal(state->at(name).moments.at(moment), tensor)) << name << moment;
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, NotFinite,
                         ::testing::Combine(::testing::Values("1f1b", "zb-h1", "dualpipe", "weipipe", "fsdp", "zero1"),
                                            ::testing::Values(4), ::testing::Values(Spoilt::kLoss, Spoilt::kGradient)));

TEST(NotFiniteWords, NameTheFirstGradientAndItsRank) {
  const auto program = program_of("1f1b", {.ranks = 2, .microbatches = 4, .layers = 4});
  ASSERT_TRUE(program);
  EngineOptions options;
  options.kernels = poisoned_kernels(kBadToken, Spoilt::kGradient);
  const auto engine = make_engine(*program, tiny_config(4, HeadTying::kUntied), options);
  auto data = make_data(4, 2, 9, kBadToken, Mask::kNone, 1);
  data[0].tokens.data_ptr<std::int64_t>()[0] = kBadToken;
  const auto bad = engine->train_step(data, 0.1);
  ASSERT_TRUE(bad);
  // Two layers of nine matrices and norms each, and the table of tokens.
  EXPECT_EQ(bad->not_finite, "the gradient of model.embed_tokens.weight (rank 0) and of 18 more is not finite");
}

}  // namespace
}  // namespace plait::testing
