#include "plait/schedules/common.h"

#include <algorithm>

namespace plait {
namespace {

Result<> supports(const ScheduleShape& shape) {
  return check_plain("zb-h1", shape);
}

Result<Schedule> build(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const int m = *shape.microbatches;
  PLAIT_TRY(Layout layout, pipeline_layout("zb-h1", shape, p, [](int stage) { return stage; }));
  std::vector<Row> rows(static_cast<std::size_t>(p));
  for (int rank = 0; rank < p; ++rank) {
    Row& row = rows[static_cast<std::size_t>(rank)];
    const int warmup = std::min(m, p - rank - 1);
    int next_weight = 0;
    // 1. Warm-up, as 1F1B's.
    for (int i = 0; i < warmup; ++i) row.push_back(forward(rank, i));
    // 2. Steady: F, B, W, with W lagging B by `rank`.
    for (int i = 0; i < m - warmup; ++i) {
      row.push_back(forward(rank, warmup + i));
      row.push_back(backward_input(rank, i));
      if (i >= rank) row.push_back(backward_weight(rank, next_weight++));
    }
    // 3. Cool-down: W fills the places that forwards no longer take.
    for (int i = m - warmup; i < m; ++i) {
      row.push_back(backward_input(rank, i));
      row.push_back(backward_weight(rank, next_weight++));
    }
    // 4. The weight gradients that are left.
    while (next_weight < m) row.push_back(backward_weight(rank, next_weight++));
  }
  return Schedule{.layout = std::move(layout), .rows = std::move(rows)};
}

Expectation expect(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const int m = *shape.microbatches;
  Expectation expected{.sends = count_sends(shape, p, [](int stage) { return stage; })};
  if (m < 2 * p) return expected;
  expected.peak_activation_units = std::vector<int>(static_cast<std::size_t>(p), p);
  // A longer W would stand in the way of what other ranks wait for.
  if (shape.times.weight > std::min(shape.times.forward, shape.times.backward)) return expected;
  expected.max_idle = (p - 1) * (shape.times.forward + shape.times.backward - shape.times.weight);
  expected.makespan = m * work(shape.times) + *expected.max_idle;
  return expected;
}

constexpr ScheduleInfo kInfo{.name = "zb-h1",
                             .summary = "1F1B with split backward: weight gradients fill the bubble at 1F1B's memory",
                             .needs = "any p, m; one chunk",
                             .forms = "for m >= 2p: bubble (p-1)(F+B-W) if W <= F and W <= B; memory p",
                             .source = "Qi et al. 2023, arXiv:2401.10241, fig. 3 (ZB-H1)",
                             .supports = &supports,
                             .build = &build,
                             .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
