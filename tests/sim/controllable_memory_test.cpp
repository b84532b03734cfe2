#include "tests/sim/simulated.h"
#include <gmock/gmock.h>

// Card of the controllable-memory schedules. A slot is one chunk's op: F = B = W = 2 of a 1/p share in two chunks.
namespace plait::test {
namespace {

using ::testing::Each;

Simulated slots(const std::string& name, int p, int m) {
  return simulate_schedule(name, {.ranks = p, .microbatches = m}, "F=2,B=2,W=2");
}

double longest_span(const Simulated& run) {
  std::int64_t longest = 0;
  for (const RankFigures& rank : run.result.ranks) longest = std::max(longest, rank.last_end - rank.first_start);
  return run.unit(longest);
}

double peak(const Simulated& run) {
  const auto all = run.peaks();
  return *std::max_element(all.begin(), all.end());
}

struct Row {
  int p;
  double half_peak, half_bubble, min_peak, min_bubble, one_f_one_b;
};

TEST(ControllableMemory, Table) {
  for (const Row& row : {Row{4, 3, 5, 2, 11, 18}, Row{6, 4, 11, 3, 17, 30}, Row{8, 5, 17, 4, 27, 42},
                         Row{9, 5, 23, 4, 29, 48}, Row{12, 7, 29, 5, 41, 66}, Row{16, 9, 41, 6, 59, 90}}) {
    for (const int m : {2 * row.p, 4 * row.p}) {
      const Simulated half = slots("v-half", row.p, m);
      EXPECT_EQ(longest_span(half) - 6 * m, row.half_bubble) << "v-half " << row.p << ' ' << m;
      EXPECT_EQ(half.makespan() - 6 * m, row.half_bubble);
      EXPECT_LE(peak(half), row.half_peak);
      const Simulated least = slots("v-min", row.p, m);
      EXPECT_EQ(longest_span(least) - 6 * m, row.min_bubble) << "v-min " << row.p << ' ' << m;
      EXPECT_LE(peak(least), row.min_peak);
      const Simulated plain = slots("1f1b", row.p, m);
      EXPECT_EQ(plain.makespan() - 6 * m, row.one_f_one_b);
      EXPECT_EQ(peak(plain), row.p);
    }
  }
}

TEST(ControllableMemory, ClosedForms) {
  for (int p = 3; p <= 16; ++p) {
    const Simulated half = slots("v-half", p, 2 * p);
    EXPECT_EQ(longest_span(half) - 12 * p, p % 2 == 0 ? 3 * p - 7 : 3 * p - 4) << p;
    EXPECT_EQ(std::floor(peak(half) * 2) / 2, (p + 2) / 2) << p;
    const Simulated least = slots("v-min", p, 2 * p);
    EXPECT_EQ(longest_span(least) - 12 * p, p % 3 == 0 ? 4 * p - 7 : 4 * p - 5) << p;
    EXPECT_EQ(peak(least), (p + 4) / 3) << p;
  }
}

TEST(ControllableMemory, ZeroBubbleFromTheSearch) {
  for (const auto& [p, makespan] : {std::pair{2, 25}, std::pair{3, 38}, std::pair{4, 51}}) {
    const Simulated run = slots("v-zb", p, 2 * p);
    EXPECT_EQ(run.bubble_max(), 0);
    EXPECT_EQ(run.makespan(), makespan);
    EXPECT_THAT(run.peaks(), Each(p));
  }
}

// schedule-families, section 2: the repeated pattern as it stands.
TEST(ControllableMemory, PatternOnly) {
  const auto pattern = [](const char* name, int p, int m) {
    return simulate_schedule(name, {.ranks = p, .microbatches = m, .squeeze = Squeeze::kPatternOnly}, "F=1,B=1,W=1");
  };
  const Simulated half = pattern("v-half", 4, 8);
  EXPECT_EQ(half.makespan(), 30);
  EXPECT_THAT(half.idle(), ::testing::ElementsAre(6, 5, 4, 3));
  EXPECT_THAT(half.peaks(), Each(3));
  const Simulated least = pattern("v-min", 4, 8);
  EXPECT_EQ(least.makespan(), 29.5);
  EXPECT_THAT(least.idle(), ::testing::ElementsAre(5.5, 4.5, 3.5, 3));
  EXPECT_THAT(least.peaks(), Each(2));
  const Simulated wide_half = pattern("v-half", 8, 24);
  EXPECT_EQ(wide_half.makespan(), 85);
  EXPECT_EQ(wide_half.bubble_max(), 13);
  EXPECT_THAT(wide_half.peaks(), Each(5));
  const Simulated wide_least = pattern("v-min", 8, 24);
  EXPECT_EQ(wide_least.makespan(), 85.5);
  EXPECT_EQ(wide_least.bubble_max(), 13.5);
  EXPECT_THAT(wide_least.peaks(), Each(::testing::AnyOf(3, 4)));
}

}  // namespace
}  // namespace plait::test
