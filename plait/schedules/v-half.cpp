#include "plait/schedules/v_pattern.h"

namespace plait {
namespace {

Result<> supports(const ScheduleShape& shape) {
  return check_v_pattern("v-half", shape);
}

Result<Schedule> build(const ScheduleShape& shape) {
  return build_v_pattern("v-half", shape, v_half_pattern(shape.ranks));
}

int bubble_slots(int num_ranks) {
  return num_ranks % 2 == 0 ? 3 * num_ranks - 7 : 3 * num_ranks - 4;
}

Expectation expect(const ScheduleShape& shape) {
  const int p = shape.ranks;
  Expectation expected = expect_v_pattern(shape, bubble_slots(p));
  if (has_v_forms(shape))
    expected.peak_activation_units = std::vector<int>(static_cast<std::size_t>(p), 2 * ((p + 2) / 2));
  return expected;
}

constexpr ScheduleInfo kInfo{
    .name = "v-half",
    .summary = "half of the activation memory of 1F1B, about half of its bubble",
    .needs = "any p, m; exactly two chunks",
    .forms = "for m >= 2p, F = B = W: bubble (3p-7)F/2 (p even) or (3p-4)F/2 (odd); memory floor((p+2)/2)",
    .source = "Qi et al. 2024, arXiv:2405.15362",
    .supports = &supports,
    .build = &build,
    .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
