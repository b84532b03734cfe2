#include "plait/ir/lower.h"
#include "plait/schedules/schedule_info.h"
#include "plait/verify/rules.h"
#include "plait/verify/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

namespace plait {
namespace {

Schedule sound_schedule() {
  return *build_schedule("1f1b", {.ranks = 2, .microbatches = 3, .tying = HeadTying::kTied});
}
Program sound() {
  return *lower(sound_schedule());
}

std::vector<std::string> rules_of(const std::vector<Finding>& findings) {
  std::vector<std::string> rules;
  for (const Finding& f : findings) rules.push_back(f.rule);
  return rules;
}

TEST(LayoutFindings, IdsThatAreNotThereAreFoundBeforeAnythingIsLookedUp) {
  const std::vector<std::function<void(Layout&)>> breaks = {
      [](Layout& l) { l.num_microbatches = 0; },
      [](Layout& l) { l.num_slices = -1; },
      [](Layout& l) { l.stages.clear(); },
      [](Layout& l) { l.stages[0].homes = {RankId{2}}; },
      [](Layout& l) { l.stages[0].groups.push_back(GroupId{9}); },
      [](Layout& l) { l.stages[1].groups.clear(); },
      [](Layout& l) { l.edges[0].consumer = StageId{2}; },
      [](Layout& l) { l.edges[0].producer = StageId{1}; },
      [](Layout& l) { l.groups[0].homes.clear(); },
      [](Layout& l) {
        l.groups[0].homes = {RankId{1}, RankId{0}};
      },
      [](Layout& l) { l.groups[0].users = {StageId{-1}}; },
      [](Layout& l) { l.rank_sets[0] = {}; },
      [](Layout& l) {
        l.rank_sets[0] = {RankId{0}, RankId{7}};
      },
  };
  for (std::size_t k = 0; k < breaks.size(); ++k) {
    Program program = sound();
    breaks[k](program.layout);
    EXPECT_THAT(rules_of(verify(program)), ::testing::Each("verify.layout")) << k;
    EXPECT_FALSE(verify(program).empty()) << k;
  }
}

TEST(LayoutFindings, RowsMustBeAsManyAsRanks) {
  Program program = sound();
  program.rows.emplace_back();
  EXPECT_THAT(rules_of(verify(program)), ::testing::ElementsAre("verify.ranks"));
}

TEST(LayoutFindings, ASizeThatTheRowsCannotFillAllocatesNothing) {
  Program program = sound();
  program.layout.num_microbatches = 2000000000;
  EXPECT_THAT(rules_of(verify(program)), ::testing::ElementsAre("verify.missing_forward"));
}

TEST(LayoutFindings, ATransferOverNoEdge) {
  Program program = sound();
  program.rows[1].insert(program.rows[1].begin(),
                         Send{.value = Value::activation(EdgeId{1}, MicrobatchId{0}, SliceId{0}), .peer = RankId{0}});
  EXPECT_THAT(rules_of(verify(program)), ::testing::ElementsAre("verify.no_such_edge"));
}

TEST(LayoutFindings, WhatIsWrongWithASchedulesOpsIsAllReported) {
  Schedule schedule = sound_schedule();
  std::swap(schedule.rows[1][0], schedule.rows[1][1]);  // 1BW0 1F0
  schedule.rows[0].push_back(Op{.kind = OpKind::kForward, .stage = StageId{0}, .microbatch = MicrobatchId{1}});
  EXPECT_THAT(rules_of(verify(schedule)),
              ::testing::UnorderedElementsAre("verify.backward_before_forward", "verify.duplicate_op"));
}

TEST(LayoutFindings, WhatLoweringFindsIsAFindingToo) {
  Schedule schedule = sound_schedule();
  // Rank 0 backs micro-batch 0 before it forwards micro-batch 1, rank 1 wants micro-batch 1 first.
  const auto op = [](OpKind kind, int stage, int m) {
    return Op{.kind = kind, .stage = StageId{stage}, .microbatch = MicrobatchId{m}};
  };
  schedule.layout.num_microbatches = 2;
  schedule.rows[0] = {op(OpKind::kForward, 0, 0), op(OpKind::kBackward, 0, 0), op(OpKind::kForward, 0, 1),
                      op(OpKind::kBackward, 0, 1)};
  schedule.rows[1] = {op(OpKind::kForward, 1, 1), op(OpKind::kForward, 1, 0), op(OpKind::kBackward, 1, 0),
                      op(OpKind::kBackward, 1, 1)};
  EXPECT_THAT(rules_of(verify(schedule)), ::testing::ElementsAre("verify.deadlock"));
}

TEST(Findings, NameRankPositionAndOp) {
  Program program = sound();
  std::swap(program.rows[1][3], program.rows[1][1]);
  const auto findings = verify(program);
  ASSERT_FALSE(findings.empty());
  const Finding expected{.rule = "verify.backward_before_forward",
                         .rank = RankId{1},
                         .position = 1,
                         .message =
                             "rank 1, position 1, op 1BW0: backward before forward of stage 1, micro-batch 0: it reads "
                             "the stash of 1F0, which "
                             "stands behind it at position 3; move 1F0 earlier"};
  EXPECT_EQ(findings.front(), expected) << findings.front().message;
}

TEST(Findings, AreCountedBeyondThoseListed) {
  Program program = sound();
  for (Row& row : program.rows) std::erase_if(row, [](const Instr& i) { return std::holds_alternative<WaitSend>(i); });
  const auto findings = verify(program, {.most_listed = 2});
  ASSERT_EQ(rules_of(findings), (std::vector<std::string>{"verify.missing_wait_send", "verify.missing_wait_send"}));
  EXPECT_THAT(findings.back().message, ::testing::EndsWith("(and 4 more like this)"));
}

TEST(Findings, BoundedTransfersBlockWhereTheSlotsDoNotSuffice) {
  const auto schedule = build_schedule("forward", {.ranks = 2, .microbatches = 2});
  Program program = *lower(*schedule);
  const auto f = [](int stage, int m) {
    return Op{.kind = OpKind::kForward, .stage = StageId{stage}, .microbatch = MicrobatchId{m}};
  };
  program.layout.stages[0].homes = program.layout.stages[1].homes = {RankId{0}, RankId{1}};
  for (ParamGroup& group : program.layout.groups) group.homes = {RankId{0}, RankId{1}};
  // Both ranks run the first stage of two micro-batches, send both results away, then receive the other's.
  program.layout.num_microbatches = 4;
  const auto act = [](int m) { return Value::activation(EdgeId{0}, MicrobatchId{m}, SliceId{0}); };
  const auto row = [&](int mine, int theirs, RankId peer) {
    return Row{f(0, mine),
               f(0, mine + 1),
               Send{.value = act(mine), .peer = peer},
               Send{.value = act(mine + 1), .peer = peer},
               Recv{.value = act(theirs), .peer = peer},
               Recv{.value = act(theirs + 1), .peer = peer},
               f(1, theirs),
               f(1, theirs + 1),
               WaitSend{.value = act(mine), .peer = peer},
               WaitSend{.value = act(mine + 1), .peer = peer}};
  };
  program.rows = {row(0, 2, RankId{1}), row(2, 0, RankId{0})};
  EXPECT_THAT(rules_of(verify(program)), ::testing::IsEmpty());
  EXPECT_THAT(rules_of(verify(program, {.transfers = TransferRule::kBounded, .buffers = 2})), ::testing::IsEmpty());
  EXPECT_THAT(rules_of(verify(program, {.transfers = TransferRule::kBounded, .buffers = 1})),
              ::testing::ElementsAre("verify.deadlock"));
  EXPECT_THAT(rules_of(verify(program, {.transfers = TransferRule::kRendezvous})),
              ::testing::ElementsAre("verify.deadlock"));
}

TEST(Findings, LimitsAreHeldPerRank) {
  const Program program = sound();
  EXPECT_TRUE(verify(program, {.activation_limit = std::vector{2, 1}}).empty());
  const auto findings = verify(program, {.activation_limit = std::vector{1, 1}});
  EXPECT_THAT(rules_of(findings), ::testing::ElementsAre("verify.activation_limit"));
  EXPECT_EQ(findings.front().rank, RankId{0});
}

TEST(Prove, GivesTheProgramOrTheFirstFinding) {
  auto proved = prove(sound());
  ASSERT_TRUE(proved);
  EXPECT_EQ(proved->program(), sound());
  Program program = sound();
  program.rows[0].pop_back();
  const auto refused = prove(std::move(program));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().rule, "verify.missing_step");
}

TEST(Rules, HaveUniqueIdsAndMeanings) {
  std::set<std::string_view> ids;
  for (const RuleInfo& info : verify_rules()) {
    EXPECT_TRUE(ids.insert(info.id).second) << info.id;
    EXPECT_TRUE(info.id.starts_with("verify.")) << info.id;
    EXPECT_FALSE(info.meaning.empty()) << info.id;
    EXPECT_EQ(rule_id(info.rule), info.id);
  }
}

}  // namespace
}  // namespace plait
