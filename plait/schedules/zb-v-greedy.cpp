#include "plait/schedules/common.h"
#include "plait/schedules/list_scheduler.h"
#include "plait/schedules/zb_v_order.h"

#include <algorithm>

namespace plait {
namespace {

int memory_limit(const ScheduleShape& shape) {
  return shape.memory_limit.value_or(shape.ranks);
}

Result<> supports(const ScheduleShape& shape) {
  PLAIT_TRY_VOID(check_v_shape("zb-v-greedy", shape));
  if (memory_limit(shape) < 1)
    return make_error(ErrorCode::kInvalidArgument, "schedule.memory",
                      "zb-v-greedy: the memory limit is {}; at least 1 micro-batch is needed", memory_limit(shape));
  const OpTimes& times = shape.times;
  if (times.forward < 0 || times.backward < 0 || times.weight < 0 || times.transfer < 0)
    return make_error(ErrorCode::kInvalidArgument, "schedule.times",
                      "zb-v-greedy: is built from times, and they must not be negative");
  return {};
}

/// The better of greedy runs in the V under the memory limit, by the longest span of a rank. The fixed order is the first
/// candidate where it keeps the limit, so the result is never worse than zb-v.
Result<Schedule> build(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const int m = *shape.microbatches;
  const auto home = [p](int stage) { return v_rank(stage, p); };
  PLAIT_TRY(Layout layout, pipeline_layout("zb-v-greedy", shape, 2 * p, home));
  // All times in halves of a tick, so that half a share is exact.
  const OpTimes halves{.forward = shape.times.forward,
                       .backward = shape.times.backward,
                       .weight = shape.times.weight,
                       .transfer = 2 * shape.times.transfer};
  ListSpec spec{.num_ranks = p,
                .num_stages = 2 * p,
                .num_microbatches = m,
                .home = home,
                .times = halves,
                .backward = ListSpec::Backward::kSplit,
                .memory_limit = 2 * memory_limit(shape)};
  std::vector<Row> best;
  std::optional<Ticks> best_span;
  const auto consider = [&](std::vector<Row> rows) {
    const Ticks span = longest_span(rows, spec);
    if (best_span && span >= *best_span) return;
    best_span = span;
    best = std::move(rows);
  };
  if (memory_limit(shape) >= p) consider(zb_v_order(p, m));
  for (const auto fill : {ListSpec::Fill::kIfFits, ListSpec::Fill::kAtOnce}) {
    spec.fill = fill;
    if (auto rows = list_schedule(spec)) consider(*std::move(rows));
  }
  PLAIT_CHECK(best_span.has_value(), "one micro-batch fits into the limit");
  return Schedule{.layout = std::move(layout), .rows = std::move(best)};
}

Expectation expect(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const OpTimes& times = shape.times;
  Expectation expected{.sends = count_sends(shape, 2 * p, [p](int stage) { return v_rank(stage, p); })};
  const bool unit = times.forward == times.backward && times.backward == times.weight && times.transfer == 0;
  if (unit && *shape.microbatches >= 2 * p && memory_limit(shape) >= p) expected.max_idle = 0;
  return expected;
}

constexpr ScheduleInfo kInfo{
    .name = "zb-v-greedy",
    .summary = "ZB-V for unequal times: greedy in the V under 1F1B's memory, never worse than zb-v",
    .needs = "any p, m; exactly two chunks; reads the times, the transfer time and the memory limit (p unless given)",
    .forms = "memory at most the limit; bubble 0 if F = B = W, for m >= 2p",
    .source = "Qi et al. 2023, arXiv:2401.10241, sec. 6, greedy variant",
    .supports = &supports,
    .build = &build,
    .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
