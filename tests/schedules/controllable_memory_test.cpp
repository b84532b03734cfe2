#include "plait/schedules/common.h"
#include "plait/schedules/v_pattern.h"

#include "replay.h"
#include <gtest/gtest.h>

#include <map>

namespace plait {
namespace {

/// A slot is an F, B or W of one chunk.
constexpr OpTimes kSlots{.forward = 2, .backward = 2, .weight = 2, .transfer = 0};

struct Figures {
  int peak_halves = 0;  ///< of the fullest rank, in chunks of a micro-batch
  int bubble = 0;       ///< longest span of a rank minus 6 m
  int makespan = 0;
};

Figures figures_of(const Schedule& schedule) {
  const auto run = replay(schedule, kSlots);
  EXPECT_TRUE(run);
  if (!run) return {};
  const int work = 6 * schedule.layout.num_microbatches;
  return Figures{.peak_halves = *std::max_element(run->peak.begin(), run->peak.end()),
                 .bubble = static_cast<int>(run->max_span()) - work,
                 .makespan = static_cast<int>(run->makespan)};
}

Figures figures_of(const char* name, int p, int m) {
  const auto schedule = build_schedule(name, {.ranks = p, .microbatches = m});
  EXPECT_TRUE(schedule) << schedule.error().message;
  return schedule ? figures_of(*schedule) : Figures{};
}

TEST(ControllableMemory, TableForTwoAndFourTimesAsManyMicrobatchesAsRanks) {
  struct Row {
    int p, half_peak, half_bubble, min_peak, min_bubble, one_f_one_b;
  };
  for (const Row& row : {Row{4, 3, 5, 2, 11, 18}, Row{6, 4, 11, 3, 17, 30}, Row{8, 5, 17, 4, 27, 42},
                         Row{9, 5, 23, 4, 29, 48}, Row{12, 7, 29, 5, 41, 66}, Row{16, 9, 41, 6, 59, 90}}) {
    for (const int m : {2 * row.p, 4 * row.p}) {
      SCOPED_TRACE(fmt::format("p {} m {}", row.p, m));
      const Figures half = figures_of("v-half", row.p, m);
      EXPECT_EQ(half.peak_halves, 2 * row.half_peak);
      EXPECT_EQ(half.bubble, row.half_bubble);
      EXPECT_EQ(half.makespan, 6 * m + row.half_bubble);
      const Figures min = figures_of("v-min", row.p, m);
      EXPECT_EQ(min.peak_halves, 2 * row.min_peak);
      EXPECT_EQ(min.bubble, row.min_bubble);
      EXPECT_EQ(min.makespan, 6 * m + row.min_bubble);
      const auto plain = build_schedule("1f1b", {.ranks = row.p, .microbatches = m});
      EXPECT_EQ(replay(*plain, kSlots)->makespan - 6 * m, row.one_f_one_b);
    }
  }
}

TEST(ControllableMemory, ClosedFormsForThreeToSixteenRanks) {
  for (int p = 3; p <= 16; ++p) {
    SCOPED_TRACE(p);
    const Figures half = figures_of("v-half", p, 2 * p);
    EXPECT_EQ(half.peak_halves, 2 * ((p + 2) / 2));
    EXPECT_EQ(half.bubble, p % 2 == 0 ? 3 * p - 7 : 3 * p - 4);
    const Figures min = figures_of("v-min", p, 2 * p);
    EXPECT_EQ(min.peak_halves, 2 * ((p + 4) / 3));
    EXPECT_EQ(min.bubble, p % 3 == 0 ? 4 * p - 7 : 4 * p - 5);
  }
}

TEST(ControllableMemory, PatternsForFourRanks) {
  EXPECT_EQ(v_min_pattern(4), (VPattern{{0, 7, 8, 15}, {1, 6, 9, 14}, {2, 5, 10, 13}, {3, 4, 11, 12}}));
  EXPECT_EQ(v_half_pattern(4), (VPattern{{0, 10, 14, 25}, {2, 9, 16, 24}, {4, 8, 18, 23}, {6, 7, 20, 22}}));
}

TEST(ControllableMemory, GeneralSearchLeavesNoBubbleAtTheMemoryOf1F1B) {
  const std::map<int, int> makespans = {{2, 25}, {3, 38}, {4, 51}};
  for (const auto& [p, makespan] : makespans) {
    const auto schedule = build_schedule("v-zb", {.ranks = p, .microbatches = 2 * p});
    ASSERT_TRUE(schedule) << schedule.error().message;
    const auto run = replay(*schedule, kSlots);
    ASSERT_TRUE(run);
    EXPECT_EQ(run->idle, std::vector<Ticks>(static_cast<std::size_t>(p), 0));
    EXPECT_EQ(*std::max_element(run->peak.begin(), run->peak.end()), 2 * p);
    EXPECT_EQ(run->makespan, makespan);
  }
}

TEST(ControllableMemory, ParetoFrontOfMemoryAndBubble) {
  const std::map<int, std::map<int, int>> fronts = {
      {4, {{4, 11}, {5, 8}, {6, 5}, {7, 3}, {8, 0}}}, {3, {{4, 5}, {5, 3}, {6, 0}}}, {2, {{4, 0}}}};
  for (const auto& [p, expected] : fronts) {
    std::map<int, int> front;  // from four half-stages on, what V-Min needs
    for (int limit = 4; limit <= 2 * p; ++limit) {
      const auto found = search_v_pattern(p, 2 * p, limit);
      if (!found) continue;
      // The search's own count, by the replay.
      const auto layout = pipeline_layout("v", {.ranks = p, .microbatches = 2 * p}, 2 * p,
                                          [p = p](int stage) { return v_rank(stage, p); });
      const Figures figures = figures_of(Schedule{.layout = *layout, .rows = found->rows});
      EXPECT_EQ(figures.bubble, found->bubble);
      EXPECT_LE(figures.peak_halves, limit);
      if (front.empty() || found->bubble < front.rbegin()->second) front[limit] = found->bubble;
    }
    EXPECT_EQ(front, expected) << "p " << p;
  }
}

TEST(ControllableMemory, LimitsThatNoPatternKeepsAreRefused) {
  const auto tight = build_schedule("v-zb", {.ranks = 8, .microbatches = 16, .memory_limit = 3});
  ASSERT_FALSE(tight);
  EXPECT_EQ(tight.error().rule, "schedule.memory");
  const auto least = build_schedule("v-zb", {.ranks = 4, .microbatches = 8, .memory_limit = 2});
  ASSERT_TRUE(least) << least.error().message;
  EXPECT_EQ(figures_of(*least).bubble, 11);
}

}  // namespace
}  // namespace plait
