#include "plait/schedules/v_pattern.h"

namespace plait {
namespace {

Result<> supports(const ScheduleShape& shape) {
  return check_v_pattern("v-min", shape);
}

Result<Schedule> build(const ScheduleShape& shape) {
  return build_v_pattern("v-min", shape, v_min_pattern(shape.ranks));
}

int bubble_slots(int num_ranks) {
  return num_ranks % 3 == 0 ? 4 * num_ranks - 7 : 4 * num_ranks - 5;
}

Expectation expect(const ScheduleShape& shape) {
  return expect_v_pattern(shape, bubble_slots(shape.ranks));
}

constexpr ScheduleInfo kInfo{
    .name = "v-min",
    .summary = "a third of the activation memory of 1F1B, about two thirds of its bubble",
    .needs = "any p, m; exactly two chunks",
    .forms = "for m >= 2p, F = B = W: bubble (4p-7)F/2 (3 divides p) or (4p-5)F/2; memory floor((p+4)/3)",
    .source = "Qi et al. 2024, arXiv:2405.15362",
    .supports = &supports,
    .build = &build,
    .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
