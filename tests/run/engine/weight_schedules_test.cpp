// Schedules in which weights travel or are sharded, over ranks, groups of ranks and rounds: one rank's loss, norm, gradients
// and updated weights in fp64, also with poisoned memory and a slow transport that reorders.

#include "plait/run/engine/delayed_transport.h"
#include "plait/run/engine/memory.h"

#include "tests/run/engine/one_rank.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

namespace plait {
namespace {

using namespace plait::testing;

class WeightSchedules : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(WeightSchedules, EqualOneRankOverGroupsAndRounds) {
  const auto& [name, ranks] = GetParam();
  const ScheduleInfo& info = **find_schedule(name);
  int num_run = 0;
  for (int rounds = 1; rounds <= 3; ++rounds) {
    for (int groups = 0; groups <= ranks; ++groups) {
      for (const HeadTying tying : {HeadTying::kUntied, HeadTying::kTied}) {
        ScheduleShape shape{.ranks = ranks, .microbatches = rounds * ranks, .layers = kLayers, .tying = tying};
        if (groups > 0) shape.groups = groups;
        if (!info.supports(shape)) continue;
        SCOPED_TRACE(
            fmt::format("{} rounds, {} groups, {}", rounds, groups, tying == HeadTying::kTied ? "tied" : "untied"));
        const auto program = program_of(name, shape);
        ASSERT_TRUE(program) << program.error().message;
        expect_same(train(*program, {}), one_rank(rounds * ranks, tying));
        ++num_run;
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
  EXPECT_GE(num_run, 3);
}

TEST_P(WeightSchedules, EqualOneRankWithPoisonedMemoryAndASlowReorderingTransport) {
  const auto& [name, ranks] = GetParam();
  if (ranks > 4) return;  // threads on few cores: the delays add up
  ScheduleShape shape{.ranks = ranks, .microbatches = 2 * ranks, .layers = kLayers, .tying = HeadTying::kUntied};
  const ScheduleInfo& info = **find_schedule(name);
  const int groups = ranks % 2 == 0 ? 2 : ranks;
  shape.groups = groups;
  if (!info.supports(shape)) shape.groups.reset();
  const auto program = program_of(name, shape);
  ASSERT_TRUE(program) << program.error().message;
  set_freed_memory(FreedMemory::kFillWithNaN);
  constexpr Nanos kMost{1'000'000};
  const Outcome outcome = train(*program, delay_at_random(/*seed=*/7, kMost));
  set_freed_memory(FreedMemory::kLeaveAsIs);
  expect_same(outcome, one_rank(2 * ranks, HeadTying::kUntied));
}

INSTANTIATE_TEST_SUITE_P(All, WeightSchedules,
                         ::testing::Combine(::testing::Values("weipipe", "weipipe-naive", "wzb1-reconstructed",
                                                              "wzb2-reconstructed", "tawpipe", "fsdp", "zero1", "ddp"),
                                            ::testing::Values(2, 3, 4, 6)),
                         [](const auto& test) {
                           std::string name =
                               std::get<0>(test.param) + "_ranks_" + std::to_string(std::get<1>(test.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace plait
