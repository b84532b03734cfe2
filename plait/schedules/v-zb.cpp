#include "plait/schedules/common.h"
#include "plait/schedules/v_pattern.h"

#include <algorithm>

namespace plait {
namespace {

/// Ranks up to which a memory limit below p is searched for: the time grows with the fourth power.
constexpr int kMostRanksOfTightSearch = 16;

int memory_limit(const ScheduleShape& shape) {
  return shape.memory_limit.value_or(shape.ranks);
}

Result<> supports(const ScheduleShape& shape) {
  PLAIT_TRY_VOID(check_v_shape("v-zb", shape));
  const int least = (shape.ranks + 4) / 3;
  if (shape.ranks > 1 && memory_limit(shape) < least)
    return make_error(
        ErrorCode::kInvalidArgument, "schedule.memory",
        "v-zb: no V pattern of {} ranks keeps less than {} micro-batches, got a memory limit of {}; raise it",
        shape.ranks, least, memory_limit(shape));
  if (shape.ranks == 1 && memory_limit(shape) < 1)
    return make_error(ErrorCode::kInvalidArgument, "schedule.memory",
                      "v-zb: the memory limit is {}; at least 1 is needed", memory_limit(shape));
  if (memory_limit(shape) < shape.ranks && shape.ranks > kMostRanksOfTightSearch)
    return make_error(
        ErrorCode::kInvalidArgument, "schedule.memory",
        "v-zb: searches under a limit below p for up to {} ranks, got {}; leave the limit out, or use v-half or v-min",
        kMostRanksOfTightSearch, shape.ranks);
  return {};
}

Result<Schedule> build(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const int m = *shape.microbatches;
  PLAIT_TRY(Layout layout, pipeline_layout("v-zb", shape, 2 * p, [p](int stage) { return v_rank(stage, p); }));
  const int limit = 2 * memory_limit(shape);
  // What is best for 2p micro-batches is best for more: the steady state only gets longer.
  const auto found = search_v_pattern(p, 2 * p, limit);
  std::optional<std::vector<Row>> rows;
  if (found) rows = finish_pattern(found->pattern, found->finish, m, limit);
  if (!rows)
    return make_error(ErrorCode::kInfeasible, "schedule.memory",
                      "v-zb: found no pattern of {} ranks within {} micro-batches; raise the limit", p,
                      memory_limit(shape));
  return Schedule{.layout = std::move(layout), .rows = *std::move(rows)};
}

Expectation expect(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const int m = *shape.microbatches;
  const OpTimes& times = shape.times;
  Expectation expected{.sends = count_sends(shape, 2 * p, [p](int stage) { return v_rank(stage, p); })};
  if (p < 2 || m < 2 * p || memory_limit(shape) != p) return expected;
  expected.peak_activation_units = std::vector<int>(static_cast<std::size_t>(p), 2 * p);
  if (times.forward != times.backward || times.backward != times.weight) return expected;
  expected.max_idle = 0;
  // Every rank works through; the last one starts p-1 slots after the first.
  expected.makespan = m * work(times) + (p - 1) * times.forward / 2;
  return expected;
}

constexpr ScheduleInfo kInfo{.name = "v-zb",
                             .summary = "zero bubble at 1F1B's memory, found by the general search over V patterns",
                             .needs = "any p, m; exactly two chunks; reads the memory limit (p unless given)",
                             .forms = "bubble 0 for m >= 2p, F = B = W; memory p",
                             .source = "Qi et al. 2024, arXiv:2405.15362, sec. 4 (V-ZB)",
                             .supports = &supports,
                             .build = &build,
                             .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
