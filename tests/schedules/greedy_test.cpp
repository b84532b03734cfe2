#include "replay.h"
#include <gtest/gtest.h>

#include <algorithm>

namespace plait {
namespace {

TEST(ZbVGreedy, IsNeverWorseThanTheFixedOrderAndSometimesBetter) {
  int better = 0;
  for (int p = 1; p <= 8; ++p) {
    for (const OpTimes& times :
         {OpTimes{10, 10, 10, 0}, OpTimes{10, 12, 8, 0}, OpTimes{20, 30, 10, 0}, OpTimes{10, 20, 10, 0},
          OpTimes{18, 18, 10, 1}, OpTimes{30, 30, 20, 1}, OpTimes{10, 6, 12, 0}}) {
      for (const int m : {1, p, 2 * p, 3 * p + 1}) {
        SCOPED_TRACE(fmt::format("p {} m {} F {} B {} W {}", p, m, times.forward, times.backward, times.weight));
        const auto fixed = build_schedule("zb-v", {.ranks = p, .microbatches = m, .times = times});
        const auto greedy = build_schedule("zb-v-greedy", {.ranks = p, .microbatches = m, .times = times});
        ASSERT_TRUE(fixed && greedy);
        const auto fixed_run = replay(*fixed, times);
        const auto greedy_run = replay(*greedy, times);
        ASSERT_TRUE(fixed_run && greedy_run);
        EXPECT_LE(greedy_run->max_span(), fixed_run->max_span());
        better += greedy_run->max_span() < fixed_run->max_span() ? 1 : 0;
        for (const int live : greedy_run->peak) EXPECT_LE(live, 2 * p);
      }
    }
  }
  EXPECT_GT(better, 20);
}

TEST(ZbVGreedy, KeepsAMemoryLimit) {
  for (int p = 1; p <= 8; ++p) {
    for (int limit = 1; limit <= p + 2; ++limit) {
      const OpTimes times{10, 12, 8, 0};
      const auto schedule =
          build_schedule("zb-v-greedy", {.ranks = p, .microbatches = 2 * p, .times = times, .memory_limit = limit});
      ASSERT_TRUE(schedule) << schedule.error().message;
      const auto run = replay(*schedule, times);
      ASSERT_TRUE(run);
      for (const int live : run->peak) EXPECT_LE(live, 2 * limit);
    }
  }
  EXPECT_EQ(build_schedule("zb-v-greedy", {.ranks = 4, .microbatches = 8, .memory_limit = 0}).error().rule,
            "schedule.memory");
}

TEST(ZbHeuristic, KeepsItsMemoryLimit) {
  for (const char* name : {"zb-1p", "zb-2p"}) {
    for (int p = 1; p <= 8; ++p) {
      for (int limit = 1; limit <= 2 * p; ++limit) {
        const OpTimes times{18, 18, 10, 1};
        const auto schedule =
            build_schedule(name, {.ranks = p, .microbatches = 3 * p, .times = times, .memory_limit = limit});
        ASSERT_TRUE(schedule) << schedule.error().message;
        // Half of an activation goes with B and half with W.
        for (const Row& row : schedule->rows) {
          int halves = 0;
          for (const Instr& instr : row) {
            halves += std::get<Op>(instr).kind == OpKind::kForward ? 2 : -1;
            EXPECT_LE(halves, 2 * limit);
          }
        }
      }
    }
  }
}

TEST(Hanayo, HoldsAtMostAsManyMicrobatchesAsRanks) {
  for (int p = 1; p <= 8; ++p) {
    for (const int chunks : {2, 4}) {
      const auto schedule = build_schedule("hanayo", {.ranks = p, .microbatches = 3 * p, .chunks = chunks});
      ASSERT_TRUE(schedule);
      const auto run = replay(*schedule, {4, 4, 4, 0});
      ASSERT_TRUE(run);
      for (const int live : run->peak) EXPECT_LE(live, p * chunks);
      // Stages run down and up the ranks.
      for (int stage = 0; stage < p * chunks; ++stage) {
        const int at = stage % (2 * p);
        EXPECT_EQ(schedule->layout.stages[static_cast<std::size_t>(stage)].homes[0].value(),
                  at < p ? at : 2 * p - 1 - at);
      }
    }
  }
}

TEST(Eager1F1B, RunsAheadAndHidesTransfersThat1F1BWaitsFor) {
  const OpTimes slow{.forward = 10, .backward = 10, .weight = 10, .transfer = 5};
  const ScheduleShape shape{.ranks = 4, .microbatches = 16, .times = slow};
  const auto plain = replay(*build_schedule("1f1b", shape), slow);
  const auto eager = replay(*build_schedule("eager-1f1b", shape), slow);
  EXPECT_LT(eager->makespan, plain->makespan);
  EXPECT_EQ(eager->peak, (std::vector<int>{7, 5, 3, 1}));
  // What is left are the transfers of the first micro-batch down and of the last one up.
  EXPECT_EQ(eager->makespan, (16 + 3) * 30 + 2 * 3 * 5);
}

}  // namespace
}  // namespace plait
