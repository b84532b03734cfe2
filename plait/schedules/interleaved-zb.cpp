#include "plait/schedules/common.h"

#include <algorithm>

namespace plait {
namespace {

constexpr int kDefaultChunks = 2;

/// PyTorch cuts m into max(1, floor(m/p)) equal rounds.
int num_rounds(const ScheduleShape& shape) {
  return std::max(1, *shape.microbatches / shape.ranks);
}

Result<> supports(const ScheduleShape& shape) {
  PLAIT_TRY_VOID(check_sizes("interleaved-zb", shape));
  PLAIT_TRY_VOID(check_whole_sequences("interleaved-zb", shape));
  if (*shape.microbatches % num_rounds(shape) != 0)
    return make_error(
        ErrorCode::kInvalidArgument, "schedule.microbatches",
        "interleaved-zb: cuts the micro-batches into {0} equal rounds, got --microbatches {1}; use a multiple of {0}",
        num_rounds(shape), *shape.microbatches);
  return check_layers("interleaved-zb", shape, shape.ranks * shape.chunks.value_or(kDefaultChunks));
}

Result<Schedule> build(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const int m = *shape.microbatches;
  const int chunks = shape.chunks.value_or(kDefaultChunks);
  const int group = m / num_rounds(shape);
  const int num_steps = m * chunks;
  PLAIT_TRY(Layout layout, pipeline_layout("interleaved-zb", shape, p * chunks, [p](int stage) { return stage % p; }));
  std::vector<Row> rows(static_cast<std::size_t>(p));
  for (int rank = 0; rank < p; ++rank) {
    Row& row = rows[static_cast<std::size_t>(rank)];
    const auto add_forward = [&](int step) {
      const auto [microbatch, chunk] = interleaved_unit(step, m, group, chunks);
      row.push_back(forward(chunk * p + rank, microbatch));
    };
    // The weight gradients follow in the order of the input gradients, `rank` of them behind.
    const auto add_backward = [&](int step) {
      const auto [microbatch, chunk] = interleaved_unit(step, m, group, chunks);
      row.push_back(backward_input((chunks - 1 - chunk) * p + rank, microbatch));
      if (step < rank) return;
      const auto [lagging, lagging_chunk] = interleaved_unit(step - rank, m, group, chunks);
      row.push_back(backward_weight((chunks - 1 - lagging_chunk) * p + rank, lagging));
    };
    const int warmup = std::min(p - rank - 1 + (chunks - 1) * group, num_steps);
    // 1. Warm-up: one forward for every rank behind this one, and whole groups of the chunks before the last.
    for (int step = 0; step < warmup; ++step) add_forward(step);
    // 2. Steady: F, B, W.
    for (int step = warmup; step < num_steps; ++step) {
      add_forward(step);
      add_backward(step - warmup);
    }
    // 3. Cool-down: B, W.
    for (int step = num_steps - warmup; step < num_steps; ++step) add_backward(step);
    // 4. The weight gradients that are left.
    for (int step = std::max(0, num_steps - rank); step < num_steps; ++step) {
      const auto [microbatch, chunk] = interleaved_unit(step, m, group, chunks);
      row.push_back(backward_weight((chunks - 1 - chunk) * p + rank, microbatch));
    }
  }
  return Schedule{.layout = std::move(layout), .rows = std::move(rows)};
}

Expectation expect(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const int m = *shape.microbatches;
  const int chunks = shape.chunks.value_or(kDefaultChunks);
  const OpTimes& times = shape.times;
  Expectation expected{.sends = count_sends(shape, p * chunks, [p](int stage) { return stage % p; })};
  if (m % p != 0 || m < 2 * p) return expected;
  expected.peak_activation_units = std::vector<int>(static_cast<std::size_t>(p), p * chunks);
  if (times.weight > std::min(times.forward, times.backward)) return expected;
  expected.max_idle = (p - 1) * (times.forward + times.backward - times.weight) / chunks;
  expected.makespan = m * work(times) + *expected.max_idle;
  return expected;
}

constexpr ScheduleInfo kInfo{
    .name = "interleaved-zb",
    .summary = "interleaved 1F1B with split backward, weight gradients delayed into the bubbles",
    .needs = "m a multiple of max(1, floor(m/p)); chunks 2 unless given",
    .forms = "for m = 2p, 3p, ...: bubble (p-1)(F+B-W)/v if W <= F and W <= B; memory p (found by replay)",
    .source = "torch.distributed.pipelining 2.15, ScheduleInterleavedZeroBubble; Qi et al. 2023, arXiv:2401.10241",
    .supports = &supports,
    .build = &build,
    .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
