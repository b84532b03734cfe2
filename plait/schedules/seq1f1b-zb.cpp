#include "plait/schedules/common.h"
#include "plait/schedules/slices.h"

#include <algorithm>

namespace plait {
namespace {

Result<> supports(const ScheduleShape& given) {
  PLAIT_TRY_VOID(check_sizes("seq1f1b-zb", given));
  if (given.chunks.value_or(1) != 1)
    return make_error(ErrorCode::kInvalidArgument, "schedule.chunks",
                      "seq1f1b-zb: has one stage per rank, got --chunks {}; use --chunks 1", *given.chunks);
  return check_layers("seq1f1b-zb", given, given.ranks);
}

Result<Schedule> build(const ScheduleShape& given) {
  const ScheduleShape shape = with_slices(given);
  const int p = shape.ranks;
  const int k = *shape.slices;
  const int num_units = *shape.microbatches * k;
  PLAIT_TRY(Layout layout, pipeline_layout("seq1f1b-zb", shape, p, [](int stage) { return stage; }));
  std::vector<Row> rows(static_cast<std::size_t>(p));
  for (int rank = 0; rank < p; ++rank) {
    Row& row = rows[static_cast<std::size_t>(rank)];
    const int warmup = std::min(p - rank - 2 + k, num_units);
    int next_weight = 0;
    const auto add_weight = [&] { row.push_back(reversed_unit(OpKind::kBackwardWeight, rank, next_weight++, k)); };
    // 1. Warm-up, as Seq1F1B's.
    for (int unit = 0; unit < warmup; ++unit) row.push_back(forward_unit(rank, unit, k));
    // 2. Steady: F, B, W, with W lagging B by `rank` units, as ZB-H1's.
    for (int i = 0; i < num_units - warmup; ++i) {
      row.push_back(forward_unit(rank, warmup + i, k));
      row.push_back(reversed_unit(OpKind::kBackwardInput, rank, i, k));
      if (i >= rank) add_weight();
    }
    // 3. Cool-down: W fills the places that forwards no longer take.
    for (int i = num_units - warmup; i < num_units; ++i) {
      row.push_back(reversed_unit(OpKind::kBackwardInput, rank, i, k));
      add_weight();
    }
    // 4. The weight gradients that are left.
    while (next_weight < num_units) add_weight();
  }
  return Schedule{.layout = std::move(layout), .rows = std::move(rows)};
}

Expectation expect(const ScheduleShape& given) {
  const ScheduleShape shape = with_slices(given);
  const int p = shape.ranks;
  const int m = *shape.microbatches;
  const int k = *shape.slices;
  const OpTimes& times = shape.times;
  Expectation expected{.sends = count_sends(shape, p, [](int stage) { return stage; })};
  if (m * k < 2 * (p + k)) return expected;
  expected.peak_activation_units = std::vector<int>(static_cast<std::size_t>(p), p - 1 + k);
  if (times.weight > std::min(times.forward, times.backward)) return expected;
  expected.max_idle = (p - 1) * (times.forward + times.backward - times.weight) / k;
  expected.makespan = m * work(times) + *expected.max_idle;
  return expected;
}

constexpr ScheduleInfo kInfo{.name = "seq1f1b-zb",
                             .summary = "Seq1F1B with split backward: ZB-H1 over slices of the sequence",
                             .needs = "any p, m, k; one chunk; slices 2 unless given",
                             .forms =
                                 "as ZB-H1 over slices, for m k >= 2(p+k): bubble (p-1)(F+B-W)/k if W <= F and W <= B; "
                                 "memory (p-1+k)/k (found by replay)",
                             .source = "Sun et al. 2024, arXiv:2406.03488, sec. 3.4, with the order of ZB-H1",
                             .supports = &supports,
                             .build = &build,
                             .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
