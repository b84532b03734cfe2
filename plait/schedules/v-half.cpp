#include "plait/schedules/common.h"
#include "plait/schedules/v_pattern.h"

namespace plait {
namespace {

Result<> supports(const ScheduleShape& shape) {
  ScheduleShape squeezed = shape;  // with or without: the sizes count
  squeezed.squeeze = Squeeze::kFull;
  return check_v_shape("v-half", squeezed);
}

Result<Schedule> build(const ScheduleShape& shape) {
  const int p = shape.ranks;
  PLAIT_TRY(Layout layout, pipeline_layout("v-half", shape, 2 * p, [p](int stage) { return v_rank(stage, p); }));
  const VPattern pattern = v_half_pattern(p);
  auto rows = shape.squeeze == Squeeze::kPatternOnly ? repeat_pattern(pattern, *shape.microbatches)
                                                     : squeeze_pattern(pattern, *shape.microbatches);
  return Schedule{.layout = std::move(layout), .rows = std::move(rows)};
}

/// Bubble of the squeezed schedule in slots, a slot being an F, B or W of one chunk.
int bubble_slots(int num_ranks) {
  return num_ranks % 2 == 0 ? 3 * num_ranks - 7 : 3 * num_ranks - 4;
}

Expectation expect(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const OpTimes& times = shape.times;
  Expectation expected{.sends = count_sends(shape, 2 * p, [p](int stage) { return v_rank(stage, p); })};
  const bool unit = times.forward == times.backward && times.backward == times.weight;
  if (p >= 3 && *shape.microbatches >= 2 * p && shape.squeeze == Squeeze::kFull)
    expected.peak_activation_units = std::vector<int>(static_cast<std::size_t>(p), 2 * ((p + 2) / 2));
  if (!unit || p < 3 || *shape.microbatches < 2 * p || shape.squeeze == Squeeze::kPatternOnly) return expected;
  // Rank 0 works longest: its idle time is the bubble, and its span the makespan.
  expected.max_idle = bubble_slots(p) * times.forward / 2;
  expected.makespan = *shape.microbatches * work(times) + *expected.max_idle;
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
