#include "plait/schedules/common.h"
#include "plait/schedules/slices.h"

#include <algorithm>

namespace plait {
namespace {

constexpr int kDefaultChunks = 2;

/// Units of a group: p where the slices divide it; else the next multiple of k, since a group must hold whole
/// micro-batches for their last slices to be there when the backwards begin.
int group_of(const ScheduleShape& shape) {
  return (shape.ranks + *shape.slices - 1) / *shape.slices * *shape.slices;
}

int warmup_of(int rank, const ScheduleShape& shape) {
  const int chunks = shape.chunks.value_or(kDefaultChunks);
  return std::min(2 * (shape.ranks - rank - 1) + (chunks - 1) * group_of(shape) + *shape.slices - 1,
                  *shape.microbatches * *shape.slices * chunks);
}

Result<> supports(const ScheduleShape& given) {
  PLAIT_TRY_VOID(check_sizes("seq1f1b-interleaved", given));
  const ScheduleShape shape = with_slices(given);
  const int chunks = shape.chunks.value_or(kDefaultChunks);
  const int group = group_of(shape);
  if (const int rest = *shape.microbatches * *shape.slices % group; chunks > 1 && rest != 0)
    return make_error(
        ErrorCode::kInvalidArgument, "schedule.microbatches",
        "seq1f1b-interleaved: takes slices in groups of {} for {} ranks, got --microbatches {} with --slices {}; use a "
        "multiple of {} micro-batches",
        group, shape.ranks, *shape.microbatches, *shape.slices, group / *shape.slices);
  return check_layers("seq1f1b-interleaved", given, shape.ranks * chunks);
}

Result<Schedule> build(const ScheduleShape& given) {
  const ScheduleShape shape = with_slices(given);
  const int p = shape.ranks;
  const int k = *shape.slices;
  const int num_units = *shape.microbatches * k;
  const int chunks = shape.chunks.value_or(kDefaultChunks);
  const int group = group_of(shape);
  PLAIT_TRY(Layout layout,
            pipeline_layout("seq1f1b-interleaved", shape, p * chunks, [p](int stage) { return stage % p; }));
  std::vector<Row> rows(static_cast<std::size_t>(p));
  for (int rank = 0; rank < p; ++rank) {
    Row& row = rows[static_cast<std::size_t>(rank)];
    const auto add_forward = [&](int step) {
      const auto [unit, chunk] = interleaved_unit(step, num_units, group, chunks);
      row.push_back(forward_unit(chunk * p + rank, unit, k));
    };
    const auto add_backward = [&](int step) {
      const auto [unit, chunk] = interleaved_unit(step, num_units, group, chunks);
      row.push_back(reversed_unit(OpKind::kBackward, (chunks - 1 - chunk) * p + rank, unit, k));
    };
    const int warmup = warmup_of(rank, shape);
    // 1. Warm-up: Megatron's, and the rest of the first micro-batch.
    for (int step = 0; step < warmup; ++step) add_forward(step);
    // 2. Steady: one forward, one backward.
    for (int step = warmup; step < num_units * chunks; ++step) {
      add_forward(step);
      add_backward(step - warmup);
    }
    // 3. Cool-down.
    for (int step = num_units * chunks - warmup; step < num_units * chunks; ++step) add_backward(step);
  }
  return Schedule{.layout = std::move(layout), .rows = std::move(rows)};
}

Expectation expect(const ScheduleShape& given) {
  const ScheduleShape shape = with_slices(given);
  const int p = shape.ranks;
  const int chunks = shape.chunks.value_or(kDefaultChunks);
  std::vector<int> peaks;
  for (int rank = 0; rank < p; ++rank)
    peaks.push_back(std::min(warmup_of(rank, shape) + 1, *shape.microbatches * *shape.slices * chunks));
  return Expectation{.peak_activation_units = std::move(peaks),
                     .sends = count_sends(shape, p * chunks, [p](int stage) { return stage % p; })};
}

constexpr ScheduleInfo kInfo{
    .name = "seq1f1b-interleaved",
    .summary = "Seq1F1B over v chunks per rank",
    .needs = "m k a multiple of the group: p, rounded up to a multiple of k; chunks 2, slices 2 unless given",
    .forms = "memory (warmup+1)/(v k), warmup = 2(p-r-1) + (v-1) group + k-1",
    .source = "Sun et al. 2024, arXiv:2406.03488, sec. 3.3",
    .supports = &supports,
    .build = &build,
    .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
