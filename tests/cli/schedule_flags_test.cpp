#include "plait/cli/schedule_flags.h"

#include <gtest/gtest.h>

namespace plait {
namespace {

std::string rule_of(const ScheduleFlags& flags) {
  const auto request = resolve_flags(flags);
  return request ? "accepted" : request.error().rule;
}

TEST(ResolveFlags, FillsTheShape) {
  const auto request = resolve_flags({.ranks = 4,
                                      .microbatches = 8,
                                      .chunks = 2,
                                      .order = "torch",
                                      .recompute = "no-attention",
                                      .qkv = "attn",
                                      .slice_cut = "compute",
                                      .eviction = "early",
                                      .head = "tied",
                                      .pattern_only = true});
  ASSERT_TRUE(request) << request.error().message;
  ScheduleShape expected{.ranks = 4,
                         .microbatches = 8,
                         .chunks = 2,
                         .tying = HeadTying::kTied,
                         .order = Order::kTorch,
                         .recompute = Recompute::kNoAttention,
                         .qkv = QkvPlace::kAttn,
                         .squeeze = Squeeze::kPatternOnly,
                         .slice_cut = SliceCut::kEqualCompute,
                         .eviction = Eviction::kEarly};
  expected.times = {.forward = request->ticks_per_unit,
                    .backward = request->ticks_per_unit,
                    .weight = request->ticks_per_unit,
                    .transfer = 0};
  EXPECT_EQ(request->shape.microbatches, expected.microbatches);
  EXPECT_EQ(request->shape.chunks, expected.chunks);
  EXPECT_EQ(request->shape.times, expected.times);
  EXPECT_EQ(request->shape.tying, expected.tying);
  EXPECT_EQ(request->shape.order, expected.order);
  EXPECT_EQ(request->shape.recompute, expected.recompute);
  EXPECT_EQ(request->shape.qkv, expected.qkv);
  EXPECT_EQ(request->shape.squeeze, expected.squeeze);
  EXPECT_EQ(request->shape.slice_cut, expected.slice_cut);
  EXPECT_EQ(request->shape.eviction, expected.eviction);
}

TEST(ResolveFlags, DerivesMicrobatchesFromRoundsAndRepeats) {
  EXPECT_EQ(resolve_flags({.ranks = 2, .rounds = 3})->shape.microbatches, 6);
  EXPECT_EQ(resolve_flags({.ranks = 2, .microbatches = 6, .rounds = 3})->shape.microbatches, 6);
  EXPECT_EQ(rule_of({.ranks = 2, .microbatches = 5, .rounds = 3}), "flags.conflict");
  EXPECT_EQ(resolve_flags({.ranks = 4, .folds = 1, .repeats = 3})->shape.microbatches, 12);
  EXPECT_EQ(resolve_flags({.ranks = 4, .repeats = 3})->shape.microbatches, 24);  // two folds unless given
  EXPECT_EQ(rule_of({.ranks = 4, .microbatches = 12, .folds = 2, .repeats = 3}), "flags.conflict");
  EXPECT_EQ(rule_of({.ranks = 65536, .rounds = 65536}), "flags.conflict");
  EXPECT_EQ(rule_of({.ranks = 2}), "flags.missing");
  EXPECT_EQ(rule_of({.microbatches = 2}), "flags.missing");
}

TEST(ResolveFlags, MakesTimesExact) {
  const auto request = resolve_flags(
      {.ranks = 4, .microbatches = 8, .chunks = 3, .slices = 2, .times = "F=18.522,B=1.2,W=0.8", .latency = "0.601"});
  ASSERT_TRUE(request) << request.error().message;
  const std::int64_t unit = request->ticks_per_unit;
  EXPECT_EQ(unit % 6000, 0) << "1/(v k) of a thousandth must be whole";
  EXPECT_EQ(request->shape.times, (OpTimes{.forward = 18522 * (unit / 1000),
                                           .backward = 12 * (unit / 10),
                                           .weight = 8 * (unit / 10),
                                           .transfer = 601 * (unit / 1000)}));
}

TEST(ResolveFlags, AveragesTimesByPartOverTheRanks) {
  const auto request = resolve_flags({.ranks = 2, .microbatches = 4, .layers = 4, .times = "pre=0.5,attn=4,post=0.5"});
  ASSERT_TRUE(request) << request.error().message;
  // Two layers a rank: F = 2 (0.5 + 4 + 0.5), B = 2 (0.5 + 8 + 0.5), W = 2 (0.5 + 0.5).
  const std::int64_t unit = request->ticks_per_unit;
  EXPECT_EQ(request->shape.times,
            (OpTimes{.forward = 10 * unit, .backward = 18 * unit, .weight = 2 * unit, .transfer = 0}));
}

TEST(ResolveFlags, RefusesTimesThatAreNone) {
  for (const char* times :
       {"", "F=1", "F=1,B=1,W=x", "F=1,B=1,W=-1", "F=1,B=1,W=1,X=1", "F=1,attn=1,W=1", "F=9e99,B=1,W=1"}) {
    const auto request = resolve_flags({.ranks = 2, .microbatches = 2, .times = times});
    ASSERT_FALSE(request) << times;
    EXPECT_EQ(request.error().code, ErrorCode::kInvalidArgument) << times;
    EXPECT_EQ(request.error().rule.substr(0, 6), "times.") << request.error().rule;
  }
}

}  // namespace
}  // namespace plait
