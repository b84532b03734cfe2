#include "plait/schedules/common.h"
#include "plait/schedules/zb_v_order.h"

#include <algorithm>

namespace plait {

std::vector<Row> zb_v_order(int num_ranks, int num_microbatches) {
  const int p = num_ranks;
  // The pattern needs 2p-1 micro-batches; with fewer, the ops of those that are not there are dropped.
  const int m = std::max(num_microbatches, 2 * p - 1);
  std::vector<Row> rows(static_cast<std::size_t>(p));
  for (int rank = 0; rank < p; ++rank) {
    const int stages[2] = {rank, v_second_stage(rank, p)};
    int forwards[2] = {0, 0};
    int backwards[2] = {0, 0};
    int weights[2] = {0, 0};
    const auto add = [&](Op op) {
      if (op.microbatch.value() < num_microbatches) rows[static_cast<std::size_t>(rank)].push_back(op);
    };
    const auto f = [&](int chunk) { add(forward(stages[chunk], forwards[chunk]++)); };
    const auto b = [&](int chunk) { add(backward_input(stages[chunk], backwards[chunk]++)); };
    const auto w = [&](int chunk) { add(backward_weight(stages[chunk], weights[chunk]++)); };

    // 1. Down the V.
    for (int i = 0; i < 2 * (p - rank) - 1; ++i) f(0);
    // 2. Both ways.
    for (int i = 0; i < rank; ++i) f(1), f(0);
    // 3. The first backwards of the second chunk.
    for (int i = 0; i < p - rank; ++i) f(1), b(1), w(1);
    // 4. Steady.
    while (forwards[1] < forwards[0] || forwards[0] < m) {
      if (forwards[0] < m) f(0);
      b(0), w(0), f(1), b(1), w(1);
    }
    // 5.-7. Cool-down: input gradients first, the weight gradients that are left behind them.
    for (int i = 0; i < rank; ++i) b(0), b(1);
    for (int i = 0; i < p - rank; ++i) b(0), w(0);
    while (weights[1] < m) w(1);
    while (weights[0] < m) w(0);
  }
  return rows;
}

namespace {

Result<> supports(const ScheduleShape& shape) {
  return check_v_shape("zb-v", shape);
}

Result<Schedule> build(const ScheduleShape& shape) {
  const int p = shape.ranks;
  PLAIT_TRY(Layout layout, pipeline_layout("zb-v", shape, 2 * p, [p](int stage) { return v_rank(stage, p); }));
  return Schedule{.layout = std::move(layout), .rows = zb_v_order(p, *shape.microbatches)};
}

Expectation expect(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const int m = *shape.microbatches;
  const OpTimes& times = shape.times;
  Expectation expected{.sends = count_sends(shape, 2 * p, [p](int stage) { return v_rank(stage, p); })};
  if (m < 2 * p) return expected;
  expected.peak_activation_units = std::vector<int>(static_cast<std::size_t>(p), 2 * p);
  if (times.forward == times.backward && times.backward == times.weight) {
    expected.max_idle = 0;
    // Every rank works through; the last one starts p-1 half-stage forwards after the first.
    expected.makespan = m * work(times) + (p - 1) * times.forward / 2;
  }
  return expected;
}

constexpr ScheduleInfo kInfo{
    .name = "zb-v",
    .summary = "zero bubble at 1F1B's memory: two chunks per rank in a V, in PyTorch's fixed order",
    .needs = "any p, m; exactly two chunks",
    .forms = "bubble 0 if F = B = W, memory p, for m >= 2p",
    .source = "Qi et al. 2023, arXiv:2401.10241, sec. 6; torch.distributed.pipelining 2.15, ScheduleZBVZeroBubble",
    .supports = &supports,
    .build = &build,
    .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
