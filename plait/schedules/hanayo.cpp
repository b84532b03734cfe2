#include "plait/schedules/common.h"
#include "plait/schedules/list_scheduler.h"

namespace plait {
namespace {

constexpr int kDefaultChunks = 2;  // one wave

Result<> supports(const ScheduleShape& shape) {
  PLAIT_TRY_VOID(check_sizes("hanayo", shape));
  PLAIT_TRY_VOID(check_whole_sequences("hanayo", shape));
  const int chunks = shape.chunks.value_or(kDefaultChunks);
  if (chunks % 2 != 0)
    return make_error(
        ErrorCode::kInvalidArgument, "schedule.chunks",
        "hanayo: a wave runs down and up the ranks, so W waves are --chunks 2W, got --chunks {}; use an even number",
        chunks);
  return check_layers("hanayo", shape, shape.ranks * chunks);
}

/// The order is greedy: no order is published in a form that could be restated. One forward takes a slot and one full backward
/// two; no rank holds more than 1F1B's p micro-batches. How many may be in flight is tried, the shortest step wins.
Result<Schedule> build(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const int chunks = shape.chunks.value_or(kDefaultChunks);
  const auto home = [p](int stage) { return v_rank(stage, p); };
  PLAIT_TRY(Layout layout, pipeline_layout("hanayo", shape, p * chunks, home));
  ListSpec spec{.num_ranks = p,
                .num_stages = p * chunks,
                .num_microbatches = *shape.microbatches,
                .home = home,
                .times = {.forward = 1, .backward = 1, .weight = 1, .transfer = 0},
                .backward = ListSpec::Backward::kFull,
                .memory_limit = p * chunks};
  std::optional<Ticks> shortest;
  std::vector<Row> best;
  for (const int in_flight : {p, p + 1, p + (p + 1) / 2, 2 * p}) {
    spec.in_flight_limit = in_flight;
    auto rows = list_schedule(spec);
    PLAIT_CHECK(rows.has_value(), "the limit holds a chunk of every stage");
    const Ticks span = longest_span(*rows, spec);
    if (shortest && span >= *shortest) continue;
    shortest = span;
    best = *std::move(rows);
  }
  return Schedule{.layout = std::move(layout), .rows = std::move(best)};
}

Expectation expect(const ScheduleShape& shape) {
  const int p = shape.ranks;
  return Expectation{.sends = count_sends(shape, p * shape.chunks.value_or(kDefaultChunks),
                                          [p](int stage) { return v_rank(stage, p); })};
}

constexpr ScheduleInfo kInfo{.name = "hanayo",
                             .summary = "waves: the stages run down and up the ranks W times, one copy of the weights",
                             .needs = "any p, m; chunks 2W for W waves, 2 unless given",
                             .forms = "memory at most p; no bubble is stated",
                             .source = "Liu et al. 2023, arXiv:2308.15762; placement from there, greedy order",
                             .supports = &supports,
                             .build = &build,
                             .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
