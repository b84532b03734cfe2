#include "plait/schedules/common.h"

#include <algorithm>

namespace plait {
namespace {

Result<> supports(const ScheduleShape& shape) {
  return check_plain("1f1b", shape);
}

Result<Schedule> build(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const int num_microbatches = *shape.microbatches;
  PLAIT_TRY(Layout layout, pipeline_layout("1f1b", shape, p, [](int stage) { return stage; }));
  std::vector<Row> rows(static_cast<std::size_t>(p));
  for (int rank = 0; rank < p; ++rank) {
    Row& row = rows[static_cast<std::size_t>(rank)];
    row.reserve(2 * static_cast<std::size_t>(num_microbatches));
    const int warmup = std::min(num_microbatches, p - rank - 1);
    // 1. Warm-up: one forward for every rank behind this one.
    for (int m = 0; m < warmup; ++m) row.push_back(forward(rank, m));
    // 2. Steady: one forward, one backward.
    for (int m = warmup; m < num_microbatches; ++m) {
      row.push_back(forward(rank, m));
      row.push_back(backward(rank, m - warmup));
    }
    // 3. Cool-down: the backwards of the warm-up's worth of micro-batches.
    for (int m = num_microbatches - warmup; m < num_microbatches; ++m) row.push_back(backward(rank, m));
  }
  return Schedule{.layout = std::move(layout), .rows = std::move(rows)};
}

Expectation expect(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const int m = *shape.microbatches;
  const Ticks op = shape.times.forward + shape.times.backward + shape.times.weight;
  std::vector<int> peaks;
  for (int rank = 0; rank < p; ++rank) peaks.push_back(std::min(m, p - rank));
  return Expectation{.makespan = (m + p - 1) * op,
                     .max_idle = (p - 1) * op,
                     .peak_activation_units = std::move(peaks),
                     .sends = std::int64_t{2} * (p - 1) * m};
}

constexpr ScheduleInfo kInfo{.name = "1f1b",
                             .summary = "one forward, one backward: GPipe's bubble with p micro-batches in flight",
                             .needs = "any p, m; one chunk",
                             .forms = "bubble (p-1)(F+B+W); memory min(m, p-r)",
                             .source = "Narayanan et al. 2021, arXiv:2104.04473, sec. 2.2.1 (PipeDream-flush)",
                             .supports = &supports,
                             .build = &build,
                             .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
