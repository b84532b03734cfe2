#include "plait/run/engine/binding.h"

#include "plait/ir/lower.h"
#include "plait/schedules/common.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace plait {
namespace {

Program lowered(std::string_view name, int ranks, int microbatches, HeadTying tying = HeadTying::kUntied) {
  const auto schedule =
      build_schedule(name, ScheduleShape{.ranks = ranks, .microbatches = microbatches, .tying = tying});
  EXPECT_TRUE(schedule) << schedule.error().message;
  auto program = lower(*schedule);
  EXPECT_TRUE(program) << program.error().message;
  return *program;
}

TEST(Bind, ResolvesARowToSlotsAndTransfers) {
  const auto bound = bind(lowered("1f1b", 2, 1));
  ASSERT_TRUE(bound) << bound.error().message;
  const Value sent = Value::activation(EdgeId{0}, MicrobatchId{0}, SliceId{0});
  const Value returned = Value::gradient(EdgeId{0}, MicrobatchId{0}, SliceId{0});
  const std::vector<Transfer> transfers = {{.source = RankId{0}, .destination = RankId{1}, .value = sent},
                                           {.source = RankId{1}, .destination = RankId{0}, .value = returned}};
  EXPECT_EQ(bound->routes.transfers, transfers);
  const std::vector<BoundInstr> expected = {
      BoundReceive{.transfer = 0, .kind = ValueKind::kActivation},
      BoundOp{.kind = OpKind::kForward, .stage = 1, .input = {.slot = 0, .transfer = 0}, .stash = {.slot = 0}},
      BoundOp{.kind = OpKind::kBackward, .stage = 1, .output = 1, .stash = {.slot = 0}},
      BoundSend{.transfer = 1, .kind = ValueKind::kGradient, .source = {.slot = 1}},
      BoundWaitSent{.transfer = 1},
      BoundReduceNorm{.collective = 0},
      BoundFinishNorm{.collective = 0},
      BoundStep{.group = GroupId{1}},
  };
  EXPECT_EQ(bound->rows[1].instrs, expected);
  EXPECT_EQ(bound->rows[1].num_payloads, 2);
  EXPECT_EQ(bound->rows[1].num_stashes, 1);
  EXPECT_TRUE(bound->has_norm);
}

TEST(Bind, EveryInstructionKeepsItsPosition) {
  const Program program = lowered("gpipe", 4, 8, HeadTying::kTied);
  const auto bound = bind(program);
  ASSERT_TRUE(bound) << bound.error().message;
  for (std::size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(bound->rows[rank].instrs.size(), program.rows[rank].size());
}

TEST(Bind, ChannelsAreInOneOrderWhateverTheSchedule) {
  const auto a = bind(lowered("gpipe", 4, 6));
  const auto b = bind(lowered("1f1b", 4, 6));
  ASSERT_TRUE(a && b);
  EXPECT_EQ(a->routes.transfers, b->routes.transfers);
  EXPECT_TRUE(std::is_sorted(a->routes.transfers.begin(), a->routes.transfers.end()));
}

/// Replaces the op at rank 0, position 0 of a program.
Error refused_with(Instr instr) {
  Program program = lowered("gpipe", 2, 1);
  intern_rank_set(program.layout, {RankId{0}, RankId{1}});
  Row row = {std::move(instr)};
  for (const Instr& other : program.rows[0]) row.push_back(other);
  program.rows[0] = std::move(row);
  const auto bound = bind(program);
  EXPECT_FALSE(bound);
  return bound ? Error{} : bound.error();
}

TEST(Bind, RefusesWhatItDoesNotRun) {
  EXPECT_EQ(refused_with(Op{.kind = OpKind::kForward, .stage = StageId{1}, .microbatch = {}, .slice = {}}).rule,
            "engine.weight_not_here");
  EXPECT_EQ(refused_with(Send{.value = Value::kv(StageId{0}, MicrobatchId{0}, SliceId{0}), .peer = RankId{1}}).rule,
            "engine.transfer");
  EXPECT_EQ(
      refused_with(
          Collective{
              .kind = CollectiveKind::kAllToAll, .ranks = RankSetId{0}, .root = {}, .value = Value::weight(GroupId{0})})
          .rule,
      "engine.collective");
  const Error unmatched =
      refused_with(Recv{.value = Value::activation(EdgeId{0}, MicrobatchId{0}, SliceId{0}), .peer = RankId{1}});
  EXPECT_EQ(unmatched.rule, "engine.unmatched");
  EXPECT_EQ(
      unmatched.message,
      "rank 0, position 0, receive of the activation of edge 0, micro-batch 0 from rank 1: there is no such send");
}

TEST(Bind, OneMemberCollectivesRunAnywhere) {
  Program program = lowered("gpipe", 1, 1);
  const RankSetId alone = intern_rank_set(program.layout, {RankId{0}});
  Row row = {
      Collective{.kind = CollectiveKind::kAllGather, .ranks = alone, .root = {}, .value = Value::weight(GroupId{0})}};
  for (const Instr& instr : program.rows[0]) row.push_back(instr);
  row.push_back(Free{.value = Value::weight(GroupId{0})});
  program.rows[0] = std::move(row);
  EXPECT_TRUE(bind(program));
}

TEST(Bind, AStashThatVisitsAPartnerIsTakenFromTheTransferBack) {
  Program program = lowered("gpipe", 2, 1);
  const Value stash = Value::stash(StageId{0}, MicrobatchId{0}, SliceId{0});
  Row evicting;
  for (const Instr& instr : program.rows[0]) {
    const Op* op = std::get_if<Op>(&instr);
    if (op != nullptr && op->kind == OpKind::kBackward) {
      evicting.push_back(Send{.value = stash, .peer = RankId{1}});
      evicting.push_back(Recv{.value = stash, .peer = RankId{1}});
    }
    evicting.push_back(instr);
  }
  Row keeping = {Recv{.value = stash, .peer = RankId{0}}, Send{.value = stash, .peer = RankId{0}}};
  for (const Instr& instr : program.rows[1]) keeping.push_back(instr);
  program.rows = {std::move(evicting), std::move(keeping)};
  const auto bound = bind(program);
  ASSERT_TRUE(bound) << bound.error().message;
  const auto id_of = [&](int source, int destination) {
    const Transfer transfer{.source = RankId{source}, .destination = RankId{destination}, .value = stash};
    return static_cast<TransferId>(std::find(bound->routes.transfers.begin(), bound->routes.transfers.end(), transfer) -
                                   bound->routes.transfers.begin());
  };
  for (const BoundInstr& instr : bound->rows[0].instrs) {
    const auto* op = std::get_if<BoundOp>(&instr);
    if (op == nullptr || op->kind != OpKind::kBackward) continue;
    EXPECT_EQ(op->stash.transfer, id_of(1, 0));
  }
  EXPECT_EQ(std::get<BoundSend>(bound->rows[1].instrs[1]).source.transfer, id_of(0, 1));
}

}  // namespace
}  // namespace plait
