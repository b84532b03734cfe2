#include "plait/schedules/common.h"

namespace plait {
namespace {

Result<> supports(const ScheduleShape& shape) {
  return check_plain("forward", shape);
}

Result<Schedule> build(const ScheduleShape& shape) {
  PLAIT_TRY(Layout layout, pipeline_layout(
                               "forward", shape, shape.ranks, [](int stage) { return stage; }, Mode::kForward));
  std::vector<Row> rows(static_cast<std::size_t>(shape.ranks));
  for (int rank = 0; rank < shape.ranks; ++rank)
    for (int m = 0; m < *shape.microbatches; ++m) rows[static_cast<std::size_t>(rank)].push_back(forward(rank, m));
  return Schedule{.layout = std::move(layout), .rows = std::move(rows)};
}

Expectation expect(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const int m = *shape.microbatches;
  return Expectation{.makespan = (m + p - 1) * shape.times.forward, .max_idle = 0, .sends = std::int64_t{p - 1} * m};
}

constexpr ScheduleInfo kInfo{.name = "forward",
                             .summary = "forwards only, for evaluation and serving",
                             .needs = "any p, m; one chunk",
                             .forms = "makespan (m+p-1)F, no idle time inside a rank's span",
                             .source = "the forward half of GPipe, arXiv:1811.06965",
                             .supports = &supports,
                             .build = &build,
                             .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
