#include "plait/sim/simulate.h"

#include "plait/ir/lower.h"
#include "plait/ir/program.h"
#include "plait/sim/times.h"

#include "tests/sim/simulated.h"
#include <gmock/gmock.h>

#include <limits>

namespace plait::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Op op(OpKind kind, int stage, int m) {
  return Op{.kind = kind, .stage = StageId{stage}, .microbatch = MicrobatchId{m}, .slice = {}};
}

Layout two_stages(int num_microbatches, Mode mode = Mode::kForward) {
  return make_layout(LayoutSpec{.name = "test",
                                .mode = mode,
                                .num_ranks = 2,
                                .num_microbatches = num_microbatches,
                                .num_layers = 2,
                                .stages = cut_by_layers(2, 2).value(),
                                .homes = {{RankId{0}}, {RankId{1}}}})
      .value();
}

/// Rank 0 forwards stage 0, rank 1 stage 1, m micro-batches.
Program forward_only(int num_microbatches) {
  Schedule schedule{.layout = two_stages(num_microbatches), .rows = std::vector<Row>(2)};
  for (int m = 0; m < num_microbatches; ++m)
    for (int s = 0; s < 2; ++s) schedule.rows[static_cast<std::size_t>(s)].push_back(op(OpKind::kForward, s, m));
  return lower(schedule).value();
}

/// Forward times 1, 10 of stages 0, 1; transfers 100.
CostModel costs_of(const Layout& layout, std::int64_t first = 1, std::int64_t second = 10, std::int64_t latency = 100) {
  CostModel costs = zero_costs(layout);
  costs.op(OpKind::kForward, StageId{0}, SliceId{0}).ticks = first;
  costs.op(OpKind::kForward, StageId{1}, SliceId{0}).ticks = second;
  costs.latency = latency;
  for (Bytes& bytes : costs.edge_bytes) bytes = Bytes{1000};
  return costs;
}

SimResult timed(const Program& program, const CostModel& costs, SimOptions options = {}) {
  options.detail = Detail::kTimeline;
  auto result = simulate(program, costs, options);
  if (!result) throw std::runtime_error(result.error().message);
  return *std::move(result);
}

std::vector<InstrTime> op_times(const Program& program, const SimResult& result, std::size_t rank) {
  std::vector<InstrTime> times;
  for (std::size_t at = 0; at < program.rows[rank].size(); ++at)
    if (std::holds_alternative<Op>(program.rows[rank][at])) times.push_back(result.times[rank][at]);
  return times;
}

TEST(TransferModes, FreeIgnoresLatency) {
  const Program program = forward_only(2);
  const SimResult result = timed(program, costs_of(program.layout), {.transfers = TransferMode::kFree});
  EXPECT_THAT(op_times(program, result, 1), ElementsAre(InstrTime{1, 11}, InstrTime{11, 21}));
  EXPECT_EQ(result.transfers, (TransferFigures{.count = 2, .bytes = 2000, .exposed = 0}));
}

TEST(TransferModes, BufferedSendsAtOnce) {
  const Program program = forward_only(3);
  const SimResult result = timed(program, costs_of(program.layout));
  EXPECT_THAT(op_times(program, result, 0), ElementsAre(InstrTime{0, 1}, InstrTime{1, 2}, InstrTime{2, 3}));
  EXPECT_THAT(op_times(program, result, 1), ElementsAre(InstrTime{101, 111}, InstrTime{111, 121}, InstrTime{121, 131}));
  // The first message is waited for while it is on the wire, 1..101; before that the lane waits for the producer.
  EXPECT_EQ(result.ranks[1].exposed_transfer, 100);
  EXPECT_EQ(result.messages.front(), (TransferTime{.from = RankId{0},
                                                   .to = RankId{1},
                                                   .value = Value::activation(EdgeId{0}, {}, {}),
                                                   .sent = 1,
                                                   .arrived = 101,
                                                   .bytes = 1000}));
  EXPECT_EQ(result.makespan, 131);
}

// One slot: the second Send waits until the first message has arrived (its receive is posted at once), and so on.
TEST(TransferModes, BoundedBlocksWithoutAFreeSlot) {
  const Program program = forward_only(3);
  const SimResult one = timed(program, costs_of(program.layout), {.transfers = TransferMode::kBounded, .buffers = 1});
  EXPECT_THAT(op_times(program, one, 0), ElementsAre(InstrTime{0, 1}, InstrTime{1, 2}, InstrTime{101, 102}));
  EXPECT_THAT(op_times(program, one, 1), ElementsAre(InstrTime{101, 111}, InstrTime{201, 211}, InstrTime{301, 311}));
  const SimResult two = timed(program, costs_of(program.layout), {.transfers = TransferMode::kBounded, .buffers = 2});
  EXPECT_THAT(op_times(program, two, 0), ElementsAre(InstrTime{0, 1}, InstrTime{1, 2}, InstrTime{2, 3}));
  EXPECT_THAT(op_times(program, two, 1), ElementsAre(InstrTime{101, 111}, InstrTime{111, 121}, InstrTime{201, 211}));
}

// Row 1 is Recv 0, F 0, Recv 1, F 1: the second Send finds its partner when the first op has ended.
TEST(TransferModes, RendezvousWaitsForThePartner) {
  Program program = forward_only(2);
  program.rows[1] = {
      Recv{.value = Value::activation(EdgeId{0}, MicrobatchId{0}, {}), .peer = RankId{0}}, op(OpKind::kForward, 1, 0),
      Recv{.value = Value::activation(EdgeId{0}, MicrobatchId{1}, {}), .peer = RankId{0}}, op(OpKind::kForward, 1, 1)};
  const SimResult rendezvous = timed(program, costs_of(program.layout), {.transfers = TransferMode::kRendezvous});
  // Matched at 1, arrives at 101, F 101..111; the second Send stands from 2 to 111.
  EXPECT_THAT(op_times(program, rendezvous, 0), ElementsAre(InstrTime{0, 1}, InstrTime{1, 2}));
  EXPECT_THAT(op_times(program, rendezvous, 1), ElementsAre(InstrTime{101, 111}, InstrTime{211, 221}));
  const SimResult blocking = timed(program, costs_of(program.layout), {.transfers = TransferMode::kBlocking});
  EXPECT_THAT(op_times(program, blocking, 0), ElementsAre(InstrTime{0, 1}, InstrTime{101, 102}));
  EXPECT_THAT(op_times(program, blocking, 1), ElementsAre(InstrTime{101, 111}, InstrTime{211, 221}));
}

// Rank 0 and rank 1 exchange one message each; a swap moves when the later side (rank 1, at 10) has posted its batch.
TEST(TransferModes, SwapsMoveTogether) {
  Layout layout = make_layout(LayoutSpec{.name = "swap",
                                         .mode = Mode::kForward,
                                         .num_ranks = 2,
                                         .num_microbatches = 2,
                                         .num_layers = 2,
                                         .stages = cut_by_layers(2, 2).value(),
                                         .homes = {{RankId{0}, RankId{1}}, {RankId{0}, RankId{1}}}})
                      .value();
  const auto act = [](int m) { return Value::activation(EdgeId{0}, MicrobatchId{m}, {}); };
  Program program{.layout = std::move(layout), .rows = {}};
  // Rank 0 runs stage 0 of micro-batch 0 and stage 1 of micro-batch 1; rank 1 the other halves.
  program.rows = {{op(OpKind::kForward, 0, 0), Batch{2}, Send{act(0), RankId{1}}, Recv{act(1), RankId{1}},
                   op(OpKind::kForward, 1, 1), WaitSend{act(0), RankId{1}}},
                  {op(OpKind::kForward, 0, 1), Batch{2}, Send{act(1), RankId{0}}, Recv{act(0), RankId{0}},
                   op(OpKind::kForward, 1, 0), WaitSend{act(1), RankId{0}}}};
  CostModel costs = costs_of(program.layout, 1, 10, 100);
  const SimResult even = timed(program, costs, {.transfers = TransferMode::kRendezvous});
  EXPECT_THAT(op_times(program, even, 0), ElementsAre(InstrTime{0, 1}, InstrTime{101, 111}));
  EXPECT_THAT(op_times(program, even, 1), ElementsAre(InstrTime{0, 1}, InstrTime{101, 111}));
  program.rows[1].insert(program.rows[1].begin(), Idle{});
  // Rank 1 reaches its batch later: micro-batch 1 of stage 0 now costs what stage 1 costs, by running it behind another op.
  Layout three = make_layout(LayoutSpec{.name = "swap",
                                        .mode = Mode::kForward,
                                        .num_ranks = 2,
                                        .num_microbatches = 3,
                                        .num_layers = 2,
                                        .stages = cut_by_layers(2, 2).value(),
                                        .homes = {{RankId{0}, RankId{1}}, {RankId{0}, RankId{1}}}})
                     .value();
  program.layout = std::move(three);
  program.rows[1].insert(program.rows[1].begin(), {op(OpKind::kForward, 0, 2), op(OpKind::kForward, 1, 2)});
  const SimResult late = timed(program, costs_of(program.layout), {.transfers = TransferMode::kRendezvous});
  EXPECT_THAT(op_times(program, late, 0), ElementsAre(InstrTime{0, 1}, InstrTime{112, 122}));
  EXPECT_THAT(op_times(program, late, 1),
              ElementsAre(InstrTime{0, 1}, InstrTime{1, 11}, InstrTime{11, 12}, InstrTime{112, 122}));
}

// Two ranks of one node send to the other node over one shared card: 1000 bytes at 10 bytes a tick are 100 ticks each.
TEST(Links, SharedCardServesInOrder) {
  Layout layout = make_layout(LayoutSpec{.name = "card",
                                         .mode = Mode::kForward,
                                         .num_ranks = 4,
                                         .num_microbatches = 2,
                                         .num_layers = 2,
                                         .stages = cut_by_layers(2, 2).value(),
                                         .homes = {{RankId{0}, RankId{1}}, {RankId{2}, RankId{3}}}})
                      .value();
  Schedule schedule{.layout = std::move(layout),
                    .rows = {{op(OpKind::kForward, 0, 0)},
                             {op(OpKind::kForward, 0, 1)},
                             {op(OpKind::kForward, 1, 0)},
                             {op(OpKind::kForward, 1, 1)}}};
  const Program program = lower(schedule).value();
  CostModel costs = costs_of(program.layout);
  costs.cluster = make_cluster(4, 2, Link{.latency_ticks = 0, .bytes_per_second = 1000},
                               Link{.latency_ticks = 5, .bytes_per_second = 10}, 1);
  costs.cluster->outer_ports = 1;
  const SimResult shared = timed(program, costs);
  EXPECT_THAT(op_times(program, shared, 2), ElementsAre(InstrTime{106, 116}));
  EXPECT_THAT(op_times(program, shared, 3), ElementsAre(InstrTime{206, 216}));
  costs.cluster->outer_ports = 2;
  EXPECT_THAT(op_times(program, timed(program, costs), 3), ElementsAre(InstrTime{106, 116}));
  // Inside one node: 1 tick, and no sharing.
  costs.cluster = make_cluster(4, 4, Link{.latency_ticks = 2, .bytes_per_second = 1000},
                               Link{.latency_ticks = 5, .bytes_per_second = 10}, 1);
  EXPECT_THAT(op_times(program, timed(program, costs), 3), ElementsAre(InstrTime{4, 14}));
}

TEST(Links, CollectivesByAlgorithm) {
  Cluster cluster = make_cluster(8, 4, Link{.latency_ticks = 1, .bytes_per_second = 100},
                                 Link{.latency_ticks = 10, .bytes_per_second = 10}, 1);
  const std::vector<RankId> node = {RankId{0}, RankId{1}, RankId{2}, RankId{3}};
  const std::vector<RankId> across = {RankId{0}, RankId{4}};
  const auto ticks = [&](CollectiveKind kind, const std::vector<RankId>& ranks) {
    return collective_ticks(cluster, kind, ranks, Bytes{4000});
  };
  EXPECT_EQ(ticks(CollectiveKind::kAllReduce, node), 6 * (1 + 10));
  EXPECT_EQ(ticks(CollectiveKind::kAllGather, node), 3 * (1 + 10));
  EXPECT_EQ(ticks(CollectiveKind::kBroadcast, node), 3 * 1 + 40);
  EXPECT_EQ(ticks(CollectiveKind::kAllReduce, across), 2 * (10 + 200));
  cluster.algorithm = CollectiveAlgorithm::kTree;
  EXPECT_EQ(ticks(CollectiveKind::kAllReduce, node), 4 * (1 + 40));
  EXPECT_EQ(ticks(CollectiveKind::kReduce, node), 2 * (1 + 40));
  cluster.algorithm = CollectiveAlgorithm::kPairwise;
  EXPECT_EQ(ticks(CollectiveKind::kAllToAll, node), 3 * (1 + 10));
  EXPECT_EQ(ticks(CollectiveKind::kBroadcast, node), 3 * (1 + 40));
  EXPECT_EQ(ticks(CollectiveKind::kAllReduce, {RankId{0}}), 0);
}

TEST(LockStep, TurnsLastAsLongAsTheSlowest) {
  Layout layout = two_stages(4);
  layout.edges.clear();
  Program program{
      .layout = std::move(layout),
      .rows = {{op(OpKind::kForward, 0, 0), Turn{}, op(OpKind::kForward, 0, 1), op(OpKind::kForward, 0, 2), Turn{}},
               {op(OpKind::kForward, 1, 0), Turn{}, Turn{}}}};
  CostModel costs = zero_costs(program.layout);
  costs.op(OpKind::kForward, StageId{0}, SliceId{0}).ticks = 4;
  costs.op(OpKind::kForward, StageId{1}, SliceId{0}).ticks = 7;
  const SimResult result = timed(program, costs, {.turns = Turns::kLockStep});
  EXPECT_THAT(result.turns, ElementsAre(7, 8));
  EXPECT_EQ(result.makespan, 15);
  EXPECT_EQ(timed(program, costs).makespan, 12);
  program.rows[1].pop_back();
  EXPECT_EQ(simulate(program, costs, {.turns = Turns::kLockStep}).error().rule, "sim.turns");
}

TEST(Memory, FollowsTheRows) {
  // F takes 100 for stash and output; its input goes with it. Receive buffers of 1000 live from Recv to the reader.
  const Program program = forward_only(2);
  CostModel costs = costs_of(program.layout);
  costs.op(OpKind::kForward, StageId{0}, SliceId{0}) = {.ticks = 1, .alloc = 1000, .transient = 50, .freed = 0};
  costs.op(OpKind::kForward, StageId{1}, SliceId{0}) = {.ticks = 1, .alloc = 0, .transient = 7, .freed = 1000};
  costs.groups[0].weight = Bytes{100000};
  costs.fixed_bytes = Bytes{5};
  const SimResult result = timed(program, costs);
  // Rank 0 keeps both outputs until the waits at the end: 2000 + 50 while the second runs.
  EXPECT_EQ(result.ranks[0].peak_bytes, 100000 + 5 + 2 * 1000 + 50);
  EXPECT_EQ(program.rows[0][static_cast<std::size_t>(result.ranks[0].peak_position)],
            Instr(op(OpKind::kForward, 0, 1)));
  EXPECT_EQ(result.ranks[1].peak_bytes, 5 + 1000 + 7);
  costs.block_bytes = Bytes{512};  // a received message takes two blocks, of which the op gives back 1000 bytes
  EXPECT_EQ(timed(program, costs).ranks[1].peak_bytes, 5 + 24 + 1024 + 7);
}

TEST(CriticalPath, GoesBackThroughMessagesAndTheLane) {
  const Simulated run =
      simulate_schedule("1f1b", {.ranks = 2, .microbatches = 2}, "F=1,B=1,W=1", "0", {.detail = Detail::kTimeline});
  std::vector<Op> ops;
  for (const CriticalStep& step : critical_path(run.program, run.result))
    ops.push_back(std::get<Op>(run.program.rows[step.rank.index()][static_cast<std::size_t>(step.position)]));
  EXPECT_THAT(ops, ElementsAre(op(OpKind::kForward, 0, 0), op(OpKind::kForward, 1, 0), op(OpKind::kBackward, 1, 0),
                               op(OpKind::kForward, 1, 1), op(OpKind::kBackward, 1, 1), op(OpKind::kBackward, 0, 1)));
}

// --- refusals ---

std::string rule_of(const Program& program, const CostModel& costs, const SimOptions& options = {}) {
  auto result = simulate(program, costs, options);
  return result ? "accepted" : result.error().rule;
}

TEST(Refusals, BadCosts) {
  const Program program = forward_only(2);
  CostModel costs = costs_of(program.layout);
  costs.op(OpKind::kForward, StageId{1}, SliceId{0}).ticks = -1;
  EXPECT_EQ(rule_of(program, costs), "sim.negative");
  costs = costs_of(program.layout);
  costs.ops.pop_back();
  EXPECT_EQ(rule_of(program, costs), "sim.cost_shape");
  costs = costs_of(program.layout, std::numeric_limits<std::int64_t>::max() / 3);
  EXPECT_EQ(rule_of(program, costs), "sim.overflow");
  costs = costs_of(program.layout);
  costs.op(OpKind::kForward, StageId{1}, SliceId{0}).alloc = std::numeric_limits<std::int64_t>::max() / 2;
  EXPECT_EQ(rule_of(program, costs), "sim.overflow");
  costs = costs_of(program.layout);
  EXPECT_EQ(rule_of(program, costs, {.transfers = TransferMode::kBounded, .buffers = 0}), "sim.buffers");
  EXPECT_EQ(rule_of(program, costs, {.pair_factor = std::numeric_limits<double>::quiet_NaN()}), "sim.pair_factor");
  costs.cluster = make_cluster(1, 1, Link{}, Link{}, 1);
  EXPECT_EQ(rule_of(program, costs), "sim.cluster");
}

TEST(Refusals, BrokenPrograms) {
  const Program good = forward_only(2);
  const CostModel costs = costs_of(good.layout);
  Program twice = good;
  twice.rows[0].push_back(op(OpKind::kForward, 0, 0));
  EXPECT_EQ(rule_of(twice, costs), "sim.unverified");
  Program lost = good;
  lost.rows[1].erase(lost.rows[1].begin());  // the first Recv
  EXPECT_EQ(rule_of(lost, costs), "sim.deadlock");
  Program outside = good;
  outside.rows[0].push_back(op(OpKind::kForward, 7, 0));
  EXPECT_EQ(rule_of(outside, costs), "sim.unverified");
  Program nobody = good;
  nobody.rows[0].push_back(Send{Value::activation(EdgeId{0}, MicrobatchId{0}, {}), RankId{9}});
  EXPECT_EQ(rule_of(nobody, costs), "sim.unverified");
  Program backward = good;
  backward.rows[0].push_back(op(OpKind::kBackward, 0, 0));
  EXPECT_EQ(rule_of(backward, costs), "sim.unverified");
  Program rows = good;
  rows.rows.pop_back();
  EXPECT_EQ(rule_of(rows, costs), "sim.unverified");
}

TEST(Refusals, CyclesNameTheRanks) {
  // Rank 0 waits for micro-batch 1 to come back before it starts micro-batch 0, and the other way round.
  Program program{.layout = two_stages(2, Mode::kTrain),
                  .rows = {{op(OpKind::kBackward, 0, 0), op(OpKind::kForward, 0, 0)},
                           {op(OpKind::kForward, 1, 0), op(OpKind::kBackward, 1, 0)}}};
  const auto result = simulate(program, zero_costs(program.layout));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().rule, "sim.deadlock");
  EXPECT_THAT(result.error().message, HasSubstr("rank 0, position 0, op 0BW0"));
  EXPECT_THAT(result.error().message, HasSubstr("rank 1, position 0, op 1F0"));
}

TEST(Refusals, AbsurdSizes) {
  Program program = forward_only(1);
  program.layout.num_microbatches = std::numeric_limits<int>::max();
  program.layout.num_slices = 1;
  EXPECT_EQ(rule_of(program, costs_of(program.layout)), "sim.too_large");
}

}  // namespace
}  // namespace plait::test
