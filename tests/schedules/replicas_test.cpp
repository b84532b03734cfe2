// Copies of a schedule side by side: names, homes, and what sums over the replicas.

#include "plait/ir/lower.h"
#include "plait/ir/replicate.h"
#include "plait/schedules/schedule_info.h"
#include "plait/sim/simulate.h"
#include "plait/sim/times.h"
#include "plait/verify/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace plait {
namespace {

Schedule built(std::string_view name, const ScheduleShape& shape) {
  auto schedule = build_schedule(name, shape);
  EXPECT_TRUE(schedule) << (schedule ? "" : schedule.error().message);
  return schedule ? *std::move(schedule) : Schedule{};
}

std::vector<std::string> findings(const Program& program) {
  std::vector<std::string> found;
  for (const TransferRule rule : {TransferRule::kBuffered, TransferRule::kBounded, TransferRule::kRendezvous})
    for (const Finding& finding : verify(program, {.transfers = rule})) found.push_back(finding.message);
  return found;
}

int count(const Row& row, CollectiveKind kind, ValueKind value) {
  return static_cast<int>(std::count_if(row.begin(), row.end(), [&](const Instr& instr) {
    const Collective* collective = std::get_if<Collective>(&instr);
    return collective != nullptr && collective->kind == kind && collective->value.kind() == value;
  }));
}

TEST(Replicate, CopiesHaveRanksAndMicrobatchesOfTheirOwnAndShareHomes) {
  const Schedule one = built("1f1b", {.ranks = 2, .microbatches = 3, .layers = 4});
  const Schedule all = built("1f1b", {.ranks = 6, .microbatches = 9, .layers = 4, .replicas = 3});
  EXPECT_EQ(all.layout.num_ranks, 6);
  EXPECT_EQ(all.layout.num_microbatches, 9);
  ASSERT_EQ(all.layout.stages.size(), 2U);
  EXPECT_EQ(all.layout.stages[0].homes, (std::vector<RankId>{RankId{0}, RankId{2}, RankId{4}}));
  EXPECT_EQ(all.layout.stages[1].homes, (std::vector<RankId>{RankId{1}, RankId{3}, RankId{5}}));
  EXPECT_EQ(all.layout.groups[1].homes, all.layout.stages[1].homes);
  ASSERT_EQ(all.rows.size(), 6U);
  for (int replica = 0; replica < 3; ++replica) {
    for (int rank = 0; rank < 2; ++rank) {
      Row expected = one.rows[static_cast<std::size_t>(rank)];
      for (Instr& instr : expected)
        if (Op* op = std::get_if<Op>(&instr)) op->microbatch = MicrobatchId{op->microbatch.value() + 3 * replica};
      EXPECT_EQ(all.rows[static_cast<std::size_t>(2 * replica + rank)], expected);
    }
  }
}

TEST(Replicate, RoutesAndCollectivesStayInsideTheirCopy) {
  const Schedule all = built("tawpipe", {.ranks = 8, .microbatches = 8, .groups = 2, .replicas = 2});
  for (std::size_t rank = 0; rank < all.rows.size(); ++rank) {
    const auto inside = [&](RankId other) { return other.index() / 4 == rank / 4; };
    for (const Instr& instr : all.rows[rank]) {
      if (const Send* send = std::get_if<Send>(&instr)) {
        EXPECT_TRUE(inside(send->peer));
      }
      const Collective* collective = std::get_if<Collective>(&instr);
      if (collective == nullptr) continue;
      EXPECT_TRUE(inside(collective->root));
      for (const RankId member : all.layout.rank_sets[collective->ranks.index()]) EXPECT_TRUE(inside(member));
    }
  }
}

/// One rank of each replica all-reduces its groups, or gathers and scatters them.
TEST(Replicate, GradientsAreSummedOverTheReplicas) {
  const auto program_of = [](ReplicaState state) {
    auto program =
        lower(built("1f1b", {.ranks = 4, .microbatches = 4, .layers = 2, .replicas = 2, .replica_state = state}));
    EXPECT_TRUE(program);
    return *std::move(program);
  };
  const Program whole = program_of(ReplicaState::kWhole);
  const Program sharded = program_of(ReplicaState::kSharded);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(count(whole.rows[rank], CollectiveKind::kAllReduce, ValueKind::kWeightGrad), 1);
    EXPECT_EQ(count(whole.rows[rank], CollectiveKind::kAllGather, ValueKind::kWeight), 0);
    EXPECT_EQ(count(sharded.rows[rank], CollectiveKind::kAllReduce, ValueKind::kWeightGrad), 0);
    EXPECT_EQ(count(sharded.rows[rank], CollectiveKind::kAllGather, ValueKind::kWeight), 1);
    EXPECT_EQ(count(sharded.rows[rank], CollectiveKind::kReduceScatter, ValueKind::kWeightGrad), 1);
  }
}

/// Every schedule that holds its weights whole, two copies of it, both states: proved under all three transfer rules, and
/// as long as one copy where transfers take no time.
TEST(Replicate, EverySchedulesCopiesAreProvedAndTakeAsLongAsOne) {
  int whole = 0;
  int sharded = 0;
  for (const ScheduleInfo* info : all_schedules()) {
    const ScheduleShape one{.ranks = 4, .microbatches = 8};
    if (!info->supports(one)) continue;
    for (const HeadTying tying : {HeadTying::kUntied, HeadTying::kTied}) {
      for (const ReplicaState state : {ReplicaState::kWhole, ReplicaState::kSharded}) {
        ScheduleShape shape{.ranks = 8, .microbatches = 16, .replicas = 2, .replica_state = state};
        shape.tying = tying;
        const auto schedule = build_schedule(info->name, shape);
        if (!schedule) {
          EXPECT_EQ(schedule.error().rule, "schedule.replicas") << info->name << ": " << schedule.error().message;
          continue;
        }
        ++(state == ReplicaState::kWhole ? whole : sharded);
        const auto program = lower(*schedule);
        ASSERT_TRUE(program) << info->name;
        EXPECT_EQ(findings(*program), std::vector<std::string>{}) << info->name;
        ScheduleShape alone = one;
        alone.tying = tying;
        const Schedule single = built(info->name, alone);
        const auto single_program = lower(single);
        ASSERT_TRUE(single_program) << info->name;
        // A 1/p share of the model is half as much where p counts the ranks of both copies.
        const auto costs = abstract_costs(program->layout, {});
        const auto single_costs = abstract_costs(single.layout, {});
        ASSERT_TRUE(costs && single_costs) << info->name;
        const auto result = simulate(*program, *costs);
        const auto expected = simulate(*single_program, *single_costs);
        ASSERT_TRUE(result && expected) << info->name;
        EXPECT_EQ(result->makespan * expected->ticks_per_unit, 2 * expected->makespan * result->ticks_per_unit)
            << info->name;
      }
    }
  }
  EXPECT_GE(whole, 40);
  EXPECT_GE(sharded, 30);
}

TEST(Replicate, RefusesWhatItCannotDouble) {
  const auto refused = [](std::string_view name, const ScheduleShape& shape) {
    const auto schedule = build_schedule(name, shape);
    EXPECT_FALSE(schedule);
    return schedule ? Error{} : schedule.error();
  };
  EXPECT_EQ(refused("1f1b", {.ranks = 5, .microbatches = 8, .replicas = 2}).message,
            "1f1b: every replica takes the same share, got --ranks 5 and --replicas 2; use a multiple of 2");
  EXPECT_EQ(refused("1f1b", {.ranks = 4, .microbatches = 7, .replicas = 2}).message,
            "1f1b: every replica takes the same share, got --microbatches 7 and --replicas 2; use a multiple of 2");
  EXPECT_EQ(refused("1f1b", {.ranks = 4, .microbatches = 8, .replicas = 0}).rule, "schedule.replicas");
  EXPECT_EQ(refused("fsdp", {.ranks = 4, .microbatches = 8, .replicas = 2}).message,
            "2 replicas of fsdp: its weights are sharded over all of its ranks already; give it more ranks instead");
  EXPECT_EQ(refused("ddp", {.ranks = 4, .microbatches = 8, .replicas = 2}).message,
            "2 replicas of ddp: its ranks are replicas already; give it more ranks instead");
  EXPECT_EQ(refused("weipipe", {.ranks = 4, .microbatches = 8, .replicas = 2, .replica_state = ReplicaState::kSharded})
                .message,
            "2 replicas of weipipe: its weights travel from ranks that hold them whole; leave the state whole");
}

}  // namespace
}  // namespace plait
