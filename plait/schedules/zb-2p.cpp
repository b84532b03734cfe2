#include "plait/schedules/common.h"
#include "plait/schedules/zb_heuristic.h"

namespace plait {
namespace {

int memory_limit(const ScheduleShape& shape) {
  return shape.memory_limit.value_or(2 * shape.ranks);
}

Result<> supports(const ScheduleShape& shape) {
  PLAIT_TRY_VOID(check_plain("zb-2p", shape));
  if (memory_limit(shape) < 1)
    return make_error(ErrorCode::kInvalidArgument, "schedule.memory",
                      "zb-2p: the memory limit is {}; at least 1 micro-batch is needed", memory_limit(shape));
  if (shape.times.forward < 0 || shape.times.backward < 0 || shape.times.weight < 0 || shape.times.transfer < 0)
    return make_error(ErrorCode::kInvalidArgument, "schedule.times",
                      "zb-2p: is built from times, and they must not be negative");
  return {};
}

Result<Schedule> build(const ScheduleShape& shape) {
  PLAIT_TRY(Layout layout, pipeline_layout("zb-2p", shape, shape.ranks, [](int stage) { return stage; }));
  PLAIT_TRY(auto rows, zb_heuristic_order(shape.ranks, *shape.microbatches, shape.times, memory_limit(shape)));
  return Schedule{.layout = std::move(layout), .rows = std::move(rows)};
}

Expectation expect(const ScheduleShape& shape) {
  return Expectation{.sends = count_sends(shape, shape.ranks, [](int stage) { return stage; })};
}

constexpr ScheduleInfo kInfo{.name = "zb-2p",
                             .summary = "zero-bubble order computed from times under 2p micro-batches of memory",
                             .needs = "any p, m; one chunk; reads the times, the transfer time and the memory limit",
                             .forms = "memory at most the limit, 2p unless given",
                             .source = "Qi et al. 2023, arXiv:2401.10241, sec. 3.1 (ZB-2p)",
                             .supports = &supports,
                             .build = &build,
                             .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
