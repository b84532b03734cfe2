// Mixed layouts: replicas of a schedule side by side, with whole or sharded state, equal one rank in fp64; also with
// poisoned memory and a slow transport that reorders.

#include "plait/run/engine/delayed_transport.h"
#include "plait/run/engine/memory.h"

#include "tests/run/engine/one_rank.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

namespace plait {
namespace {

using namespace plait::testing;

struct Mix {
  const char* name;
  int ranks_each;
  int replicas;
  std::optional<int> groups = {};
};
constexpr int kMicrobatchesEach = 4;

ScheduleShape shape_of(const Mix& mix, HeadTying tying, ReplicaState state) {
  return {.ranks = mix.ranks_each * mix.replicas,
          .microbatches = kMicrobatchesEach * mix.replicas,
          .layers = kLayers,
          .groups = mix.groups,
          .replicas = mix.replicas,
          .replica_state = state,
          .tying = tying};
}

const Mix kWhole[] = {{"1f1b", 2, 2},       {"1f1b", 2, 3},       {"1f1b", 4, 2},       {"zb-h1", 2, 2},
                      {"dualpipe", 2, 2},   {"weipipe", 2, 2},    {"weipipe", 4, 2},    {"wzb1-reconstructed", 2, 2},
                      {"tawpipe", 2, 2, 1}, {"tawpipe", 2, 3, 2}, {"tawpipe", 4, 2, 2}, {"gpipe", 1, 4}};
const Mix kSharded[] = {{"1f1b", 2, 2},  {"1f1b", 2, 3},     {"1f1b", 4, 2},
                        {"zb-h1", 2, 2}, {"dualpipe", 2, 2}, {"gpipe", 1, 4}};

void expect_equal_to_one_rank(const Mix& mix, ReplicaState state) {
  for (const HeadTying tying : {HeadTying::kUntied, HeadTying::kTied}) {
    SCOPED_TRACE(fmt::format("{} ranks, {} replicas of {}, {} state, {} head", mix.ranks_each * mix.replicas,
                             mix.replicas, mix.name, state == ReplicaState::kWhole ? "whole" : "sharded",
                             tying == HeadTying::kTied ? "tied" : "untied"));
    const auto program = program_of(mix.name, shape_of(mix, tying, state));
    ASSERT_TRUE(program) << program.error().message;
    expect_same(train(*program, {}), one_rank(kMicrobatchesEach * mix.replicas, tying));
  }
}

TEST(Replicas, WithWholeStateEqualOneRank) {
  for (const Mix& mix : kWhole) expect_equal_to_one_rank(mix, ReplicaState::kWhole);
}

TEST(Replicas, WithShardedStateEqualOneRank) {
  for (const Mix& mix : kSharded) expect_equal_to_one_rank(mix, ReplicaState::kSharded);
}

TEST(Replicas, EqualOneRankWithPoisonedMemoryAndASlowReorderingTransport) {
  constexpr Nanos kMost{1'000'000};
  set_freed_memory(FreedMemory::kFillWithNaN);
  for (const auto& [mix, state] : {std::pair{Mix{"1f1b", 2, 2}, ReplicaState::kWhole},
                                   {Mix{"1f1b", 2, 2}, ReplicaState::kSharded},
                                   {Mix{"weipipe", 2, 2}, ReplicaState::kWhole},
                                   {Mix{"tawpipe", 2, 2, 2}, ReplicaState::kWhole}}) {
    SCOPED_TRACE(mix.name);
    const auto program = program_of(mix.name, shape_of(mix, HeadTying::kUntied, state));
    ASSERT_TRUE(program) << program.error().message;
    expect_same(train(*program, delay_at_random(/*seed=*/11, kMost)),
                one_rank(kMicrobatchesEach * mix.replicas, HeadTying::kUntied));
  }
  set_freed_memory(FreedMemory::kLeaveAsIs);
}

}  // namespace
}  // namespace plait
