#include "plait/ir/lower.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <charconv>
#include <sstream>

namespace plait {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Reads "0F0,1B2,..." (PyTorch's letters: B full, I input) into a row; `+` before an op pairs it with the next.
Row row_of(const std::string& text) {
  Row row;
  std::stringstream cells(text);
  for (std::string cell; std::getline(cells, cell, ',');) {
    if (cell.empty()) {
      row.push_back(Idle{});
      continue;
    }
    if (cell[0] == '+') {
      row.push_back(Pair{});
      cell.erase(0, 1);
    }
    int stage = 0;
    int microbatch = 0;
    const auto letter = std::from_chars(cell.data(), cell.data() + cell.size(), stage).ptr;
    std::from_chars(letter + 1, cell.data() + cell.size(), microbatch);
    const OpKind kind = *letter == 'F'   ? OpKind::kForward
                        : *letter == 'I' ? OpKind::kBackwardInput
                        : *letter == 'W' ? OpKind::kBackwardWeight
                                         : OpKind::kBackward;
    row.push_back(Op{.kind = kind, .stage = StageId{stage}, .microbatch = MicrobatchId{microbatch}});
  }
  return row;
}

struct Print {
  const Layout& layout;
  std::string value(const Value& v, bool sending) const {
    if (v.kind() == ValueKind::kWeightStash || v.kind() == ValueKind::kStash)
      return fmt::format("{}{}", to_string(v.kind()), v.microbatch().value());
    const Edge& edge = layout.edges[v.edge().index()];
    const bool down = v.kind() == ValueKind::kActivation;
    const StageId stage = down == sending ? edge.producer : edge.consumer;
    return fmt::format("{}{}{}{}", stage.value(), sending ? "SEND_" : "RECV_", down ? "F" : "B",
                       v.microbatch().value());
  }
  std::string operator()(const Op& op) const {
    const char* letter = op.kind == OpKind::kForward          ? "F"
                         : op.kind == OpKind::kBackwardInput  ? "I"
                         : op.kind == OpKind::kBackwardWeight ? "W"
                                                              : "B";
    return fmt::format("{}{}{}", op.stage.value(), letter, op.microbatch.value());
  }
  std::string operator()(const Pair&) const { return "pair"; }
  std::string operator()(const Idle&) const { return ""; }
  std::string operator()(const Turn&) const { return "turn"; }
  std::string operator()(const Batch& batch) const { return fmt::format("batch({})", batch.count); }
  std::string operator()(const Send& send) const { return value(send.value, true); }
  std::string operator()(const Recv& recv) const { return value(recv.value, false); }
  std::string operator()(const WaitSend& wait) const { return "wait:" + value(wait.value, true); }
  std::string operator()(const Collective& c) const {
    return fmt::format("{}:{}", to_string(c.kind), to_string(c.value.kind()));
  }
  std::string operator()(const WaitCollective& w) const { return fmt::format("wait:{}", to_string(w.value.kind())); }
  std::string operator()(const Free&) const { return "free"; }
  std::string operator()(const Add&) const { return "add"; }
  std::string operator()(const Step& step) const { return fmt::format("step{}", step.group.value()); }
  std::string operator()(const Validate&) const { return "validate"; }
};

std::string print(const Layout& layout, const Row& row) {
  std::string text;
  for (const Instr& instr : row) text += (text.empty() ? "" : ",") + std::visit(Print{layout}, instr);
  return text;
}

Schedule schedule_of(const std::vector<int>& home_of_stage, int num_microbatches,
                     const std::vector<std::string>& rows) {
  const int num_stages = static_cast<int>(home_of_stage.size());
  LayoutSpec spec{.name = "test",
                  .num_ranks = static_cast<int>(rows.size()),
                  .num_microbatches = num_microbatches,
                  .num_layers = num_stages,
                  .stages = *cut_by_layers(num_stages, num_stages)};
  for (const int home : home_of_stage) spec.homes.push_back({RankId{home}});
  Schedule schedule{.layout = *make_layout(spec), .rows = {}};
  for (const std::string& row : rows) schedule.rows.push_back(row_of(row));
  return schedule;
}

std::vector<std::string> transfers_of(const Schedule& schedule, PairSends pair_sends = PairSends::kBehindOp) {
  const auto rows = add_transfers(schedule.layout, schedule.rows, pair_sends);
  if (!rows) return {rows.error().message};
  std::vector<std::string> printed;
  for (const Row& row : *rows) printed.push_back(print(schedule.layout, row));
  return printed;
}

// Expected rows: the worked examples that PyTorch's own lowering gives.

TEST(AddTransfers, EqualsPyTorchOn1F1B) {
  const Schedule schedule = schedule_of({0, 1}, 3, {"0F0,0F1,,0B0,0F2,,0B1,,0B2", ",1F0,1B0,1F1,1B1,1F2,1B2"});
  EXPECT_THAT(transfers_of(schedule),
              ElementsAre("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0F2,0SEND_F2,0RECV_B1,0B1,0RECV_B2,0B2",
                          "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1RECV_F2,1B1,1SEND_B1,1F2,1B2,1SEND_B2"));
}

TEST(AddTransfers, EqualsPyTorchOnAVWithSplitBackwards) {
  const Schedule schedule =
      schedule_of({0, 1, 1, 0}, 4,
                  {"0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0F3,0I0,0W0,3F2,3I2,3W2,0I1,0W1,3F3,3I3,3W3,0I2,0W2,0I3,0W3",
                   "1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1F3,1I1,1W1,2F3,2I2,2W2,1I2,2I3,1I3,1W2,2W3,1W3"});
  EXPECT_THAT(
      transfers_of(schedule),
      ElementsAre(
          "0F0,0SEND_F0,0F1,0SEND_F1,3RECV_F0,0F2,0SEND_F2,3F0,3RECV_F1,3I0,3SEND_B0,3W0,3F1,3I1,3SEND_B1,0RECV_B0,3W1,"
          "0F3,"
          "0SEND_F3,3RECV_F2,0I0,0W0,3F2,3I2,3SEND_B2,0RECV_B1,3W2,0I1,3RECV_F3,0W1,3F3,3I3,3SEND_B3,0RECV_B2,3W3,0I2,"
          "0RECV_B3,0W2,0I3,0W3",
          "1RECV_F0,1F0,1RECV_F1,2F0,2SEND_F0,1RECV_F2,1F1,2F1,2SEND_F1,2RECV_B0,2I0,2W0,1F2,2RECV_B1,1I0,1SEND_B0,1W0,"
          "1RECV_F3,2F2,2SEND_F2,2I1,2W1,1F3,2RECV_B2,1I1,1SEND_B1,1W1,2F3,2SEND_F3,2I2,2W2,2RECV_B3,1I2,1SEND_B2,2I3,"
          "1I3,"
          "1SEND_B3,1W2,2W3,1W3"));
}

TEST(AddTransfers, PlacesTheSendsOfAPairAsAsked) {
  const Schedule schedule = schedule_of({0, 1}, 2, {"0F0,0F1,0B0,0B1", "1F0,+1B0,1F1,1B1"});
  EXPECT_EQ(transfers_of(schedule, PairSends::kBehindOp)[1],
            "1RECV_F0,1F0,1RECV_F1,pair,1B0,1SEND_B0,1F1,1B1,1SEND_B1");
  EXPECT_EQ(transfers_of(schedule, PairSends::kBehindPair)[1],
            "1RECV_F0,1F0,1RECV_F1,pair,1B0,1F1,1SEND_B0,1B1,1SEND_B1");
}

TEST(AddTransfers, MovesTheWeightStashOfAWOnAnotherRank) {
  const Schedule schedule = schedule_of({0, 1}, 1, {"0F0,0I0,0W0,1W0", "1F0,1I0"});
  EXPECT_THAT(transfers_of(schedule), ElementsAre("0F0,0SEND_F0,0RECV_B0,weight_stash0,0I0,0W0,1W0",
                                                  "1RECV_F0,1F0,1I0,1SEND_B0,weight_stash0"));
}

TEST(AddTransfers, NamesEveryRankOfACircle) {
  const Schedule schedule = schedule_of({0, 1}, 2, {"0F0,0B0,0F1,0B1", "1F0,1F1,1B0,1B1"});
  const auto result = add_transfers(schedule.layout, schedule.rows, PairSends::kBehindOp);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().rule, "verify.deadlock");
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidSchedule);
  EXPECT_THAT(result.error().message,
              HasSubstr("rank 0, position 1, op 0BW0 waits for the gradient from stage 1 to stage 0, micro-batch 0"));
  EXPECT_THAT(result.error().message,
              HasSubstr("rank 1, position 1, op 1F1 waits for the activation from stage 0 to stage 1, micro-batch 1"));
}

TEST(Lower, WaitsForActivationsBehindTheirBackwardAndForTheRestAtTheEnd) {
  const auto program = lower(schedule_of({0, 1}, 2, {"0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"}));
  ASSERT_TRUE(program) << program.error().message;
  EXPECT_EQ(print(program->layout, program->rows[0]),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,wait:0SEND_F0,0RECV_B1,0B1,wait:0SEND_F1,all_reduce:norm,wait:norm,"
            "step0");
  EXPECT_EQ(print(program->layout, program->rows[1]),
            "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,wait:1SEND_B0,wait:1SEND_B1,all_reduce:norm,wait:norm,"
            "step1");
}

TEST(Lower, ReducesGroupsWithSeveralHomesBeforeTheirStep) {
  Schedule schedule = schedule_of({0, 1}, 1, {"0F0,0B0", "1F0,1B0"});
  schedule = *rebind(schedule, 2, HeadTying::kTied);
  const auto program = lower(schedule);
  ASSERT_TRUE(program);
  EXPECT_EQ(
      print(program->layout, program->rows[0]),
      "0F0,0SEND_F0,0RECV_B0,0B0,wait:0SEND_F0,all_reduce:wgrad,wait:wgrad,all_reduce:norm,wait:norm,step0,step1");
  EXPECT_EQ(
      print(program->layout, program->rows[1]),
      "1RECV_F0,1F0,1B0,1SEND_B0,wait:1SEND_B0,all_reduce:wgrad,wait:wgrad,all_reduce:norm,wait:norm,step0,step2");
  EXPECT_THAT(program->layout.rank_sets, ElementsAre(std::vector{RankId{0}, RankId{1}}));
}

TEST(Lower, AddsNoStepToForwardOnlyPrograms) {
  Schedule schedule = schedule_of({0, 1}, 1, {"0F0", "1F0"});
  schedule.layout.mode = Mode::kForward;
  const auto program = lower(schedule);
  ASSERT_TRUE(program);
  EXPECT_EQ(print(program->layout, program->rows[0]), "0F0,0SEND_F0,wait:0SEND_F0");
}

TEST(Lower, RefusesOpsThatStandTwiceOrOutside) {
  EXPECT_EQ(lower(schedule_of({0}, 1, {"0F0,0F0,0B0"})).error().rule, "verify.duplicate_op");
  EXPECT_EQ(lower(schedule_of({0}, 1, {"0F0,0F1,0B0"})).error().rule, "verify.out_of_range");
  EXPECT_EQ(lower(schedule_of({0}, 1, {"0F0,1B0"})).error().rule, "verify.out_of_range");
  EXPECT_EQ(lower(schedule_of({0}, 1, {"0F0,+0B0"})).error().rule, "verify.pair");
  Schedule short_of_rows = schedule_of({0, 1}, 1, {"0F0,0B0", "1F0,1B0"});
  short_of_rows.rows.pop_back();
  EXPECT_EQ(lower(short_of_rows).error().rule, "verify.ranks");
}

}  // namespace
}  // namespace plait
