#include "plait/schedules/common.h"

#include <algorithm>

namespace plait {
namespace {

Result<> supports(const ScheduleShape& shape) {
  return check_plain("zb-h2", shape);
}

Result<Schedule> build(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const int m = *shape.microbatches;
  PLAIT_TRY(Layout layout, pipeline_layout("zb-h2", shape, p, [](int stage) { return stage; }));
  std::vector<Row> rows(static_cast<std::size_t>(p));
  for (int rank = 0; rank < p; ++rank) {
    Row& row = rows[static_cast<std::size_t>(rank)];
    // 1. Warm-up: two forwards for every rank behind this one and one for itself.
    int next_forward = 0;
    while (next_forward < std::min(m, 2 * (p - rank) - 1)) row.push_back(forward(rank, next_forward++));
    int next_weight = 0;
    for (int i = 0; i < m; ++i) {
      row.push_back(backward_input(rank, i));
      if (next_forward < m) {
        // 2. Steady: B, W, F, with W lagging B by 2 rank.
        if (i >= 2 * rank) row.push_back(backward_weight(rank, next_weight++));
        row.push_back(forward(rank, next_forward++));
      } else {
        // 3. Cool-down: B, W.
        row.push_back(backward_weight(rank, next_weight++));
      }
    }
    // 4. The weight gradients that are left.
    while (next_weight < m) row.push_back(backward_weight(rank, next_weight++));
  }
  return Schedule{.layout = std::move(layout), .rows = std::move(rows)};
}

Expectation expect(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const int m = *shape.microbatches;
  const OpTimes& times = shape.times;
  Expectation expected{.sends = count_sends(shape, p, [](int stage) { return stage; })};
  if (m < 2 * p) return expected;
  expected.peak_activation_units = std::vector<int>(static_cast<std::size_t>(p), 2 * p - 1);
  if (times.weight > times.forward) return expected;
  expected.max_idle = std::max<Ticks>(0, (p - 1) * (times.forward + times.backward - 2 * times.weight));
  // Without idle time every rank works through from its first forward; the spans are skewed by the forwards before it.
  if (times.forward == times.backward && times.backward == times.weight)
    expected.makespan = m * work(times) + (p - 1) * times.forward;
  return expected;
}

constexpr ScheduleInfo kInfo{.name = "zb-h2",
                             .summary = "zero bubble inside every rank's span, for twice 1F1B's memory",
                             .needs = "any p, m; one chunk",
                             .forms = "for m >= 2p: bubble max(0, (p-1)(F+B-2W)) if W <= F; memory 2p-1",
                             .source = "Qi et al. 2023, arXiv:2401.10241, fig. 3 (ZB-H2)",
                             .supports = &supports,
                             .build = &build,
                             .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
