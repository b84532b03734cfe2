#include "plait/run/train/trace.h"

#include "plait/ir/lower.h"
#include "plait/verify/verify.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace plait {
namespace {

constexpr RankId kRank0{0};
constexpr RankId kRank1{1};

/// Two ranks, one layer each, one micro-batch.
Program two_rank_program() {
  const auto stages = cut_by_layers(2, 2);
  const auto layout = make_layout({.name = "pair",
                                   .num_ranks = 2,
                                   .num_microbatches = 1,
                                   .num_layers = 2,
                                   .stages = *stages,
                                   .homes = {{kRank0}, {kRank1}}});
  const auto op = [](OpKind kind, int stage) { return Op{.kind = kind, .stage = StageId{stage}}; };
  const Schedule schedule{.layout = *layout,
                          .rows = {{op(OpKind::kForward, 0), op(OpKind::kBackward, 0)},
                                   {op(OpKind::kForward, 1), op(OpKind::kBackward, 1)}}};
  return *lower(schedule);
}

/// Every instruction lasts one nanosecond and starts when the one before it in its row ends, ops of rank 1 ten later.
StepResult fake_step(const Program& program) {
  StepResult step{.bytes_moved = {Bytes{100}, Bytes{11}}};
  for (std::size_t rank = 0; rank < program.rows.size(); ++rank) {
    auto& events = step.trace.emplace_back();
    for (std::size_t i = 0; i < program.rows[rank].size(); ++i) {
      const auto start = static_cast<std::int64_t>(i + 10 * rank);
      events.push_back(
          {.position = static_cast<int>(i), .start = Nanos{start}, .end = Nanos{start + 1}, .moved = Bytes{5}});
    }
  }
  return step;
}

TEST(Trace, OpsAreTheProgramsRankByRankInItsOrder) {
  const Program program = two_rank_program();
  const auto document = nlohmann::json::parse(trace_json(program, fake_step(program), 12));
  std::vector<std::string> ops;
  for (const auto& op : document["ops"])
    ops.push_back(std::to_string(op["rank"].get<int>()) + ":" + op["op"].get<std::string>());
  EXPECT_THAT(ops, testing::ElementsAre("0:0F0", "0:0BW0", "1:1F0", "1:1BW0"));
  EXPECT_EQ(document["step"], 12);
  EXPECT_EQ(document["bytes_moved"], (std::vector<int>{100, 11}));
  std::size_t instructions = 0;
  for (const Row& row : program.rows) instructions += row.size();
  EXPECT_EQ(document["ops"].size() + document["transfers"].size(), instructions);
}

TEST(Trace, KernelsStandBesideTheOpsWhereTheyWereRecorded) {
  const Program program = two_rank_program();
  StepResult step = fake_step(program);
  EXPECT_FALSE(nlohmann::json::parse(trace_json(program, step, 1)).contains("kernels"));
  const Part qkv{.kind = PartKind::kQkv, .layer = 1};
  step.kernel_events = {
      {{.kernel = KernelKind::kZeroGrads, .start = Nanos{1}, .end = Nanos{2}}},
      {{.position = 1, .part = qkv, .start = Nanos{3}, .end = Nanos{9}},
       {.position = 1, .part = qkv, .kernel = KernelKind::kGemm, .start = Nanos{4}, .end = Nanos{5}}}};
  const auto document = nlohmann::json::parse(trace_json(program, step, 1));
  EXPECT_EQ(document["parts"],
            nlohmann::json::parse(R"([{"rank": 1, "position": 1, "part": "qkv.1", "start": 3, "end": 9}])"));
  EXPECT_EQ(document["kernels"], nlohmann::json::parse(R"([
    {"rank": 0, "position": -1, "kernel": "zero_grads", "start": 1, "end": 2},
    {"rank": 1, "position": 1, "part": "qkv.1", "kernel": "gemm", "start": 4, "end": 5}])"));
}

// Rank 0 works at 0..1 and at the end of its row, rank 1 ten later: the makespan is from 0 to rank 1's last Step.
TEST(Trace, BubbleIsWhatTheMeanRankDoesNotWork) {
  const Program program = two_rank_program();
  const TraceFigures figures = trace_figures(program, fake_step(program));
  const auto work = [](const Row& row) {
    return std::count_if(row.begin(), row.end(), [](const Instr& i) {
      return std::holds_alternative<Op>(i) || std::holds_alternative<Step>(i);
    });
  };
  const auto makespan = static_cast<std::int64_t>(program.rows[1].size() + 10);
  ASSERT_TRUE(std::holds_alternative<Step>(program.rows[1].back()));
  EXPECT_EQ(figures.makespan, Nanos{makespan});
  const double mean_busy = static_cast<double>(work(program.rows[0]) + work(program.rows[1])) / 2;
  EXPECT_DOUBLE_EQ(figures.bubble_ratio, 1 - mean_busy / static_cast<double>(makespan));
  EXPECT_EQ(figures.moved, Bytes{111});
}

}  // namespace
}  // namespace plait
