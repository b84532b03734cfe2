#include "plait/schedules/common.h"

namespace plait {
namespace {

Result<> supports(const ScheduleShape& shape) {
  return check_plain("gpipe", shape);
}

Result<Schedule> build(const ScheduleShape& shape) {
  const int num_microbatches = *shape.microbatches;
  PLAIT_TRY(Layout layout, pipeline_layout("gpipe", shape, shape.ranks, [](int stage) { return stage; }));
  std::vector<Row> rows(static_cast<std::size_t>(shape.ranks));
  for (int rank = 0; rank < shape.ranks; ++rank) {
    Row& row = rows[static_cast<std::size_t>(rank)];
    row.reserve(2 * static_cast<std::size_t>(num_microbatches));
    // 1. All forwards.
    for (int m = 0; m < num_microbatches; ++m) row.push_back(forward(rank, m));
    // 2. All backwards, ascending as PyTorch runs them.
    for (int m = 0; m < num_microbatches; ++m) row.push_back(backward(rank, m));
  }
  return Schedule{.layout = std::move(layout), .rows = std::move(rows)};
}

Expectation expect(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const int m = *shape.microbatches;
  const Ticks op = shape.times.forward + shape.times.backward + shape.times.weight;
  return Expectation{.makespan = (m + p - 1) * op,
                     .max_idle = (p - 1) * op,
                     .peak_activation_units = std::vector<int>(static_cast<std::size_t>(p), m),
                     .sends = std::int64_t{2} * (p - 1) * m};
}

constexpr ScheduleInfo kInfo{.name = "gpipe",
                             .summary = "all forwards, then all backwards",
                             .needs = "any p, m; one chunk",
                             .forms = "bubble (p-1)(F+B+W); memory m",
                             .source = "Huang et al. 2019, arXiv:1811.06965, fig. 2c",
                             .supports = &supports,
                             .build = &build,
                             .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
