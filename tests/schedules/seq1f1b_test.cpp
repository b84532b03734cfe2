#include "plait/sim/slice_lengths.h"

#include "replay.h"
#include <gtest/gtest.h>

namespace plait {
namespace {

/// tb = 2 tf, divides by every number of slices used here.
constexpr OpTimes kTimes{.forward = 480, .backward = 480, .weight = 480, .transfer = 0};

double bubble(int p, int m, int k, const std::vector<Ticks>& slice_weights) {
  const auto schedule = build_schedule("seq1f1b", {.ranks = p, .microbatches = m, .slices = k});
  EXPECT_TRUE(schedule) << schedule.error().message;
  const auto run = replay(*schedule, kTimes, slice_weights);
  EXPECT_TRUE(run);
  const double busy = static_cast<double>(m) * 3 * kTimes.forward;
  return 1 - busy / static_cast<double>(run->makespan);
}

TEST(Seq1F1B, BubbleAndMemoryOfEqualSlices) {
  struct Row {
    int p, m, k;
    double bubble;
    double peak;
  };
  for (const Row& row : {Row{4, 8, 1, .273, 4}, Row{4, 8, 2, .158, 2.5}, Row{4, 8, 4, .086, 1.75},
                         Row{8, 16, 1, .304, 8}, Row{8, 16, 2, .179, 4.5}, Row{8, 16, 4, .099, 2.75},
                         Row{8, 32, 1, .179, 8}, Row{8, 32, 2, .099, 4.5}, Row{8, 32, 4, .052, 2.75}}) {
    SCOPED_TRACE(fmt::format("P {} M {} S {}", row.p, row.m, row.k));
    EXPECT_NEAR(bubble(row.p, row.m, row.k, {}), row.bubble, 0.0005);
    const auto schedule = build_schedule("seq1f1b", {.ranks = row.p, .microbatches = row.m, .slices = row.k});
    EXPECT_EQ(static_cast<double>(replay(*schedule, kTimes)->peak[0]) / row.k, row.peak);
  }
}

TEST(Seq1F1B, BalancedSlicesRemoveTheBubbleOfCausalAttention) {
  // Cost of [a, b]: (b - a) + alpha (b^2 - a^2) / 2. Quarters of the sequence cost 9 11 13 15 of 48 (alpha 1) and 3 5 7 9 of 24 (4).
  EXPECT_NEAR(bubble(8, 16, 4, {9, 11, 13, 15}), .271, 0.0005);
  EXPECT_NEAR(bubble(8, 16, 4, {3, 5, 7, 9}), .388, 0.0005);
  EXPECT_NEAR(bubble(8, 16, 4, {1, 1, 1, 1}), .099, 0.0005);
  const std::vector<std::pair<double, std::vector<double>>> balanced = {{1, {.323, .258, .222, .197}},
                                                                        {4, {.411, .240, .188, .160}}};
  for (const auto& [alpha, expected] : balanced) {
    const SliceCost cost{.per_token = 1, .per_pair = alpha};
    const std::vector<double> shares = balanced_shares(1, 4, cost);
    ASSERT_EQ(shares.size(), expected.size());
    double prefix = 0;
    for (std::size_t q = 0; q < shares.size(); ++q) {
      EXPECT_NEAR(shares[q], expected[q], 0.0006) << "alpha " << alpha << " slice " << q;
      prefix += shares[q];
      EXPECT_NEAR(cost.of(shares[q], prefix), cost.of(1, 1) / 4, 1e-12);
    }
    EXPECT_NEAR(prefix, 1, 1e-12);
  }
}

TEST(Seq1F1B, WholeTokensAreRoundedDownAndTheFirstSliceTakesTheRest) {
  const auto lengths = balanced_slice_lengths(1000, 4, {.per_token = 1, .per_pair = 0.001}, 8);
  ASSERT_TRUE(lengths);
  // The exact lengths are 322.9, 258.1, 222.2 and 196.8; each rounding moves the ends of those before it.
  EXPECT_EQ((*lengths)[3], 192);
  int sum = 0;
  for (std::size_t q = 0; q < 4; ++q) {
    sum += (*lengths)[q];
    if (q > 0) {
      EXPECT_EQ((*lengths)[q] % 8, 0);
    }
  }
  EXPECT_EQ(sum, 1000);
  EXPECT_EQ(*balanced_slice_lengths(12, 4, {.per_token = 1, .per_pair = 0}), (std::vector<int>{3, 3, 3, 3}));
  EXPECT_EQ(balanced_slice_lengths(3, 4, {}).error().rule, "slices.too_many");
}

TEST(Seq1F1B, CostOfAModel) {
  const SliceCost cost =
      slice_cost({.layers = 2, .hidden = 10, .heads = 3, .head_size = 4, .mlp = 7, .vocabulary = 11});
  EXPECT_EQ(cost.per_token, 2 * (8 * 10 * 3 * 4 + 4 * 10 * 7) + 2 * 10 * 11);
  EXPECT_EQ(cost.per_pair, 2 * (4 * 4 + 3) * 3);
}

}  // namespace
}  // namespace plait
