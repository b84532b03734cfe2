#include "plait/schedules/common.h"
#include "plait/schedules/slices.h"

#include <algorithm>

namespace plait {
namespace {

/// Units (a slice of a micro-batch) that a rank runs forward before its first pair.
int warmup_of(int rank, const ScheduleShape& shape) {
  return std::min(shape.ranks - rank - 2 + *shape.slices, *shape.microbatches * *shape.slices);
}

Result<> supports(const ScheduleShape& given) {
  PLAIT_TRY_VOID(check_sizes("seq1f1b", given));
  if (given.chunks.value_or(1) != 1)
    return make_error(ErrorCode::kInvalidArgument, "schedule.chunks",
                      "seq1f1b: has one stage per rank, got --chunks {}; use --chunks 1, or seq1f1b-interleaved",
                      *given.chunks);
  return check_layers("seq1f1b", given, given.ranks);
}

Result<Schedule> build(const ScheduleShape& given) {
  const ScheduleShape shape = with_slices(given);
  const int p = shape.ranks;
  const int k = *shape.slices;
  const int num_units = *shape.microbatches * k;
  PLAIT_TRY(Layout layout, pipeline_layout("seq1f1b", shape, p, [](int stage) { return stage; }));
  std::vector<Row> rows(static_cast<std::size_t>(p));
  for (int rank = 0; rank < p; ++rank) {
    Row& row = rows[static_cast<std::size_t>(rank)];
    const int warmup = warmup_of(rank, shape);
    // 1. Warm-up: as 1F1B's, and the rest of the first micro-batch, whose last slice is the first to go back.
    for (int unit = 0; unit < warmup; ++unit) row.push_back(forward_unit(rank, unit, k));
    // 2. Steady: one forward, one backward.
    for (int unit = warmup; unit < num_units; ++unit) {
      row.push_back(forward_unit(rank, unit, k));
      row.push_back(reversed_unit(OpKind::kBackward, rank, unit - warmup, k));
    }
    // 3. Cool-down.
    for (int unit = num_units - warmup; unit < num_units; ++unit)
      row.push_back(reversed_unit(OpKind::kBackward, rank, unit, k));
  }
  return Schedule{.layout = std::move(layout), .rows = std::move(rows)};
}

Expectation expect(const ScheduleShape& given) {
  const ScheduleShape shape = with_slices(given);
  const int p = shape.ranks;
  const int k = *shape.slices;
  const int m = *shape.microbatches;
  std::vector<int> peaks;
  for (int rank = 0; rank < p; ++rank) peaks.push_back(std::min(warmup_of(rank, shape) + 1, m * k));
  return Expectation{.makespan = m * work(shape.times) + (p - 1) * work(shape.times) / k,
                     .max_idle = (p - 1) * work(shape.times) / k,
                     .peak_activation_units = std::move(peaks),
                     .sends = count_sends(shape, p, [](int stage) { return stage; })};
}

constexpr ScheduleInfo kInfo{
    .name = "seq1f1b",
    .summary = "1F1B over slices of the sequence: 1/k of the bubble and nearly 1/k of the memory",
    .needs = "any p, m, k; one chunk; slices 2 unless given",
    .forms = "bubble (p-1)(F+B+W)/k; memory min(p-r-1+k, m k)/k",
    .source = "Sun et al. 2024, arXiv:2406.03488, sec. 3",
    .supports = &supports,
    .build = &build,
    .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
