#include "plait/schedules/common.h"

#include <algorithm>

namespace plait {
namespace {

constexpr int kDefaultChunks = 2;

/// Micro-batches of a group: Megatron's default is p; PyTorch cuts m into max(1, floor(m/p)) equal rounds.
int group_of(const ScheduleShape& shape) {
  if (shape.order == Order::kMegatron) return shape.ranks;
  return *shape.microbatches / std::max(1, *shape.microbatches / shape.ranks);
}

/// Forwards of a rank before its first forward-backward pair. Megatron's pipeline without interleaving needs half the
/// lead; PyTorch's class keeps the whole one.
int warmup_of(int rank, const ScheduleShape& shape) {
  const int chunks = shape.chunks.value_or(kDefaultChunks);
  const int lead = shape.ranks - rank - 1;
  const bool plain = chunks == 1 && shape.order == Order::kMegatron;
  return std::min((plain ? 1 : 2) * lead + (chunks - 1) * group_of(shape), *shape.microbatches * chunks);
}

Result<> supports(const ScheduleShape& shape) {
  PLAIT_TRY_VOID(check_sizes("interleaved-1f1b", shape));
  PLAIT_TRY_VOID(check_whole_sequences("interleaved-1f1b", shape));
  const int m = *shape.microbatches;
  const int chunks = shape.chunks.value_or(kDefaultChunks);
  if (shape.order == Order::kMegatron && chunks > 1 && m % shape.ranks != 0)
    return make_error(ErrorCode::kInvalidArgument, "schedule.microbatches",
                      "interleaved-1f1b: Megatron's order takes micro-batches in groups of {0} (the ranks), got "
                      "--microbatches {1}; use a multiple of {0}, or --order torch",
                      shape.ranks, m);
  if (const int rounds = std::max(1, m / shape.ranks); shape.order == Order::kTorch && m % rounds != 0)
    return make_error(
        ErrorCode::kInvalidArgument, "schedule.microbatches",
        "interleaved-1f1b: PyTorch's order cuts the micro-batches into {0} equal rounds, got --microbatches "
        "{1}; use a multiple of {0}",
        rounds, m);
  return check_layers("interleaved-1f1b", shape, shape.ranks * chunks);
}

Result<Schedule> build(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const int m = *shape.microbatches;
  const int chunks = shape.chunks.value_or(kDefaultChunks);
  const int group = group_of(shape);
  PLAIT_TRY(Layout layout,
            pipeline_layout("interleaved-1f1b", shape, p * chunks, [p](int stage) { return stage % p; }));
  std::vector<Row> rows(static_cast<std::size_t>(p));
  for (int rank = 0; rank < p; ++rank) {
    Row& row = rows[static_cast<std::size_t>(rank)];
    const auto add_forward = [&](int step) {
      const auto [microbatch, chunk] = interleaved_unit(step, m, group, chunks);
      row.push_back(forward(chunk * p + rank, microbatch));
    };
    const auto add_backward = [&](int step) {
      const auto [microbatch, chunk] = interleaved_unit(step, m, group, chunks);
      row.push_back(backward((chunks - 1 - chunk) * p + rank, microbatch));
    };
    const int warmup = warmup_of(rank, shape);
    // 1. Warm-up.
    for (int step = 0; step < warmup; ++step) add_forward(step);
    // 2. Steady: one forward, one backward.
    for (int step = warmup; step < m * chunks; ++step) {
      add_forward(step);
      add_backward(step - warmup);
    }
    // 3. Cool-down.
    for (int step = m * chunks - warmup; step < m * chunks; ++step) add_backward(step);
  }
  return Schedule{.layout = std::move(layout), .rows = std::move(rows)};
}

Expectation expect(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const int m = *shape.microbatches;
  const int chunks = shape.chunks.value_or(kDefaultChunks);
  std::vector<int> peaks;
  for (int rank = 0; rank < p; ++rank) peaks.push_back(std::min(warmup_of(rank, shape) + 1, m * chunks));
  Expectation expected{.peak_activation_units = std::move(peaks),
                       .sends = count_sends(shape, p * chunks, [p](int stage) { return stage % p; })};
  if (m % p == 0 && shape.times.forward <= shape.times.backward + shape.times.weight) {
    expected.makespan = m * work(shape.times) + (p - 1) * work(shape.times) / chunks;
    expected.max_idle = (p - 1) * work(shape.times) / chunks;
  }
  return expected;
}

constexpr ScheduleInfo kInfo{
    .name = "interleaved-1f1b",
    .summary = "1F1B over v chunks per rank: 1/v of the bubble for v times the transfers",
    .needs = "m a multiple of p (megatron) or of max(1, floor(m/p)) (torch); chunks 2 unless given",
    .forms = "bubble (p-1)(F+B+W)/v for m a multiple of p; memory (warmup+1)/v",
    .source = "Narayanan et al. 2021, arXiv:2104.04473, sec. 2.2.2",
    .supports = &supports,
    .build = &build,
    .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
