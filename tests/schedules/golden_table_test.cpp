#include "replay.h"
#include <gtest/gtest.h>

namespace plait {
namespace {

/// One row of the comparison of schedule families, p = 4, m = 8, an op of a 1/p stage takes 1. Values in quarters.
struct GoldenRow {
  const char* schedule;
  int chunks;
  int slices;
  double makespan;
  std::vector<double> idle;
  std::vector<double> peak;
  Squeeze squeeze = Squeeze::kFull;
};

constexpr Ticks kUnit = 4;

std::vector<double> in_units(const std::vector<Ticks>& ticks) {
  std::vector<double> units;
  for (const Ticks t : ticks) units.push_back(static_cast<double>(t) / kUnit);
  return units;
}

TEST(GoldenTable, EveryRowForFourRanksAndEightMicrobatches) {
  const std::vector<GoldenRow> rows = {
      {"gpipe", 1, 1, 33, {9, 6, 3, 0}, {8, 8, 8, 8}},
      {"1f1b", 1, 1, 33, {9, 6, 3, 0}, {4, 3, 2, 1}},
      {"interleaved-1f1b", 2, 1, 28.5, {4.5, 3, 1.5, 0}, {5.5, 4.5, 3.5, 2.5}},
      {"interleaved-1f1b", 4, 1, 26.25, {2.25, 1.5, 0.75, 0}, {4.75, 4.25, 3.75, 3.25}},
      {"zb-h1", 1, 1, 27, {3, 2, 1, 0}, {4, 4, 4, 4}},
      {"zb-h2", 1, 1, 27, {0, 0, 0, 0}, {7, 7, 7, 7}},
      {"zb-v", 2, 1, 25.5, {0, 0, 0, 0}, {4, 4, 4, 4}},
      {"v-half", 2, 1, 30, {6, 5, 4, 3}, {3, 3, 3, 3}, Squeeze::kPatternOnly},
      {"v-min", 2, 1, 29.5, {5.5, 4.5, 3.5, 3}, {2, 2, 2, 2}, Squeeze::kPatternOnly},
      {"dualpipe", 1, 1, 25, {1, 0, 0, 1}, {5, 5, 5, 5}},
      {"dualpipev", 2, 1, 25.5, {1.5, 1, 0.5, 0}, {4.5, 4.5, 4.5, 4.5}},
      {"seq1f1b", 1, 2, 28.5, {4.5, 3, 1.5, 0}, {2.5, 2, 1.5, 1}},
      {"seq1f1b", 1, 4, 26.25, {2.25, 1.5, 0.75, 0}, {1.75, 1.5, 1.25, 1}},
  };
  for (const GoldenRow& row : rows) {
    SCOPED_TRACE(fmt::format("{} v {} k {}", row.schedule, row.chunks, row.slices));
    const auto schedule = build_schedule(
        row.schedule,
        {.ranks = 4, .microbatches = 8, .chunks = row.chunks, .slices = row.slices, .squeeze = row.squeeze});
    ASSERT_TRUE(schedule) << schedule.error().message;
    const auto run = replay(*schedule, {.forward = kUnit, .backward = kUnit, .weight = kUnit, .transfer = 0});
    ASSERT_TRUE(run);
    EXPECT_EQ(static_cast<double>(run->makespan) / kUnit, row.makespan);
    EXPECT_EQ(in_units(run->idle), row.idle);
    std::vector<double> peak;
    for (const int live : run->peak) peak.push_back(static_cast<double>(live) / row.chunks / row.slices);
    EXPECT_EQ(peak, row.peak);
  }
}

TEST(GoldenTable, LongerInputGradientsAndShorterWeightGradients) {
  struct Row {
    const char* schedule;
    Ticks makespan;  // in fortieths of F: F 1, B 1.2, W 0.8
    Ticks idle;
  };
  constexpr Ticks kF = 40;
  const OpTimes times{.forward = kF, .backward = 48, .weight = 32, .transfer = 0};
  const std::vector<Row> rows = {{"gpipe", 33 * kF, 9 * kF}, {"1f1b", 33 * kF, 9 * kF}, {"interleaved-1f1b", 1140, 180},
                                 {"zb-h1", 1128, 168},       {"zb-h2", 27 * kF, 72},    {"zb-v", 1032, 48},
                                 {"dualpipev", 1044, 84},    {"dualpipe", 1016, 56}};
  for (const Row& row : rows) {
    const auto schedule = build_schedule(row.schedule, {.ranks = 4, .microbatches = 8});
    ASSERT_TRUE(schedule) << schedule.error().message;
    const auto run = replay(*schedule, times);
    ASSERT_TRUE(run);
    EXPECT_EQ(run->makespan, row.makespan) << row.schedule;
    EXPECT_EQ(run->max_idle(), row.idle) << row.schedule;
  }
}

TEST(GoldenTable, EightRanksAndTwentyFourMicrobatches) {
  struct Row {
    const char* schedule;
    double makespan;
    double idle;
    int most;   ///< peak of the fullest rank, in halves of a micro-batch
    int least;  ///< and of the emptiest
  };
  const std::vector<Row> rows = {
      {"1f1b", 93, 21, 16, 2},  {"v-half", 85, 13, 10, 10}, {"v-min", 85.5, 13.5, 8, 6},     {"zb-v", 75.5, 0, 16, 16},
      {"zb-h1", 79, 7, 16, 16}, {"zb-h2", 79, 0, 30, 30},   {"dualpipev", 75.5, 3.5, 17, 17}};
  for (const Row& row : rows) {
    SCOPED_TRACE(row.schedule);
    const bool pattern = std::string_view(row.schedule).substr(0, 2) == "v-";

    const auto schedule = build_schedule(
        row.schedule, {.ranks = 8, .microbatches = 24, .squeeze = pattern ? Squeeze::kPatternOnly : Squeeze::kFull});
    ASSERT_TRUE(schedule) << schedule.error().message;
    const auto run = replay(*schedule, {.forward = kUnit, .backward = kUnit, .weight = kUnit, .transfer = 0});
    ASSERT_TRUE(run);
    EXPECT_EQ(static_cast<double>(run->makespan) / kUnit, row.makespan);
    EXPECT_EQ(static_cast<double>(run->max_idle()) / kUnit, row.idle);
    const int halves = 2 / chunks_of(*schedule);
    EXPECT_EQ(halves * *std::max_element(run->peak.begin(), run->peak.end()), row.most);
    EXPECT_EQ(halves * *std::min_element(run->peak.begin(), run->peak.end()), row.least);
  }
}

/// DualPipe at p = 8, m = 20, and Chimera where a full backward takes twice a forward.
TEST(GoldenTable, DualPipeAndChimeraAtOtherSizes) {
  const auto dualpipe = build_schedule("dualpipe", {.ranks = 8, .microbatches = 20});
  ASSERT_TRUE(dualpipe);
  EXPECT_EQ(replay(*dualpipe, {10, 10, 10, 0})->max_idle(), 30);
  EXPECT_EQ(replay(*dualpipe, {10, 12, 8, 0})->max_idle(), 42);
  const auto chimera = build_schedule("chimera", {.ranks = 4, .microbatches = 4});
  ASSERT_TRUE(chimera);
  const auto run = replay(*chimera, {1, 1, 1, 0});
  EXPECT_EQ(run->makespan, 16);
  EXPECT_EQ(run->peak, (std::vector<int>{3, 4, 4, 3}));
}

}  // namespace
}  // namespace plait
