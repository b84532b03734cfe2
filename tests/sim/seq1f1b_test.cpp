#include "plait/sim/slice_lengths.h"

#include "tests/sim/simulated.h"
#include <fmt/format.h>
#include <gmock/gmock.h>

// Card of Seq1F1B: bubble, memory, and why the slices are cut by computation.
namespace plait::test {
namespace {

TEST(Seq1f1b, BubbleAndMemory) {
  struct Row {
    int p, m, k;
    double bubble, peak;
  };
  for (const Row& row : {Row{4, 8, 1, .273, 4}, Row{4, 8, 2, .158, 2.5}, Row{4, 8, 4, .086, 1.75},
                         Row{8, 16, 1, .304, 8}, Row{8, 16, 2, .179, 4.5}, Row{8, 16, 4, .099, 2.75},
                         Row{8, 32, 1, .179, 8}, Row{8, 32, 2, .099, 4.5}, Row{8, 32, 4, .052, 2.75}}) {
    // The backward takes twice the forward.
    const Simulated run =
        simulate_schedule("seq1f1b", {.ranks = row.p, .microbatches = row.m, .slices = row.k}, "F=1,B=1,W=1");
    EXPECT_NEAR(run.result.bubble_ratio, row.bubble, 5e-4) << row.p << ' ' << row.m << ' ' << row.k;
    EXPECT_DOUBLE_EQ(run.result.bubble_ratio, (row.p - 1.0) / (row.m * row.k + row.p - 1));
    EXPECT_EQ(run.peaks().front(), row.peak);
  }
}

/// Bubble with given shares of the cost per slice.
double bubble_of(const std::vector<double>& shares) {
  const Schedule schedule = build_schedule("seq1f1b", {.ranks = 8, .microbatches = 16, .slices = 4}).value();
  const Program program = lower(schedule).value();
  TimesSpec times = parse_times("F=1,B=1,W=1").value();
  constexpr std::int64_t kDigits = 1000000;
  std::int64_t left = kDigits;
  for (std::size_t q = 0; q < shares.size(); ++q) {
    const std::int64_t share = q + 1 < shares.size() ? std::llround(shares[q] * kDigits) : left;
    left -= share;
    times.slices.push_back({.digits = share, .decimals = 6});
  }
  const CostModel costs = abstract_costs(program.layout, times).value();
  return simulate(program, costs).value().bubble_ratio;
}

TEST(Seq1f1b, BalancedSlicesMatter) {
  for (const auto& [alpha, even, lengths] : {std::tuple{1.0, .271, std::vector{.323, .258, .222, .197}},
                                             std::tuple{4.0, .388, std::vector{.411, .240, .188, .160}}}) {
    // Cost of [a, b]: (b - a) + alpha (b^2 - a^2) / 2, normalised.
    const auto cost = [alpha = alpha](double a, double b) {
      return ((b - a) + alpha * (b * b - a * a) / 2) / (1 + alpha / 2);
    };
    std::vector<double> even_shares;
    for (int q = 0; q < 4; ++q) even_shares.push_back(cost(q / 4.0, (q + 1) / 4.0));
    EXPECT_NEAR(bubble_of(even_shares), even, 5e-4);
    const std::vector<double> balanced = balanced_shares(1, 4, {.per_token = 1, .per_pair = alpha});
    std::vector<double> shares;
    double begin = 0;
    for (std::size_t q = 0; q < 4; ++q) {
      EXPECT_NEAR(balanced[q], lengths[q], 5.1e-4);
      shares.push_back(cost(begin, begin + balanced[q]));
      begin += balanced[q];
    }
    EXPECT_NEAR(bubble_of(shares), .099, 5e-4);
  }
}

}  // namespace
}  // namespace plait::test
