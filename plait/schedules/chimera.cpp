#include "plait/schedules/common.h"

#include <algorithm>
#include <utility>

namespace plait {
namespace {

Result<> supports(const ScheduleShape& shape) {
  PLAIT_TRY_VOID(check_plain("chimera", shape));
  if (shape.ranks % 2 != 0)
    return make_error(
        ErrorCode::kInvalidArgument, "schedule.ranks",
        "chimera: merges two directions without conflict on an even number of ranks only, got --ranks {}; use an "
        "even number, or hanayo",
        shape.ranks);
  if (*shape.microbatches % shape.ranks != 0)
    return make_error(
        ErrorCode::kInvalidArgument, "schedule.microbatches",
        "chimera: runs units of {0} micro-batches (the ranks), got --microbatches {1}; use a multiple of {0}",
        shape.ranks, *shape.microbatches);
  return {};
}

/// One direction's ops of a unit at distance `position` from where its micro-batches enter, with the slots of 1F1B in steady
/// state. Forwards and backwards of a rank take every other slot, and the other direction's take the slots between.
void add_direction(std::vector<std::pair<int, Op>>& slots, int num_ranks, int position, int first_microbatch) {
  for (int i = 0; i < num_ranks / 2; ++i) {
    slots.emplace_back(position + 2 * i, forward(position, first_microbatch + i));
    slots.emplace_back(2 * num_ranks - 1 - position + 2 * i, backward(position, first_microbatch + i));
  }
}

/// Stage s lives on ranks s and p-1-s. Of the p micro-batches of a unit the first half runs down the ranks, the second half up.
Result<Schedule> build(const ScheduleShape& shape) {
  const int p = shape.ranks;
  PLAIT_TRY(Layout layout, replicated_layout("chimera", shape, p, [p](int stage) {
              return std::vector<RankId>{RankId{stage}, RankId{p - 1 - stage}};
            }));
  std::vector<Row> rows(static_cast<std::size_t>(p));
  for (int rank = 0; rank < p; ++rank) {
    for (int first = 0; first < *shape.microbatches; first += p) {
      std::vector<std::pair<int, Op>> slots;
      add_direction(slots, p, rank, first);
      add_direction(slots, p, p - 1 - rank, first + p / 2);
      std::sort(slots.begin(), slots.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
      for (const auto& [slot, op] : slots) rows[static_cast<std::size_t>(rank)].push_back(op);
    }
  }
  return Schedule{.layout = std::move(layout), .rows = std::move(rows)};
}

Expectation expect(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const int m = *shape.microbatches;
  const Ticks forward_time = shape.times.forward;
  const Ticks backward_time = shape.times.backward + shape.times.weight;
  Expectation expected{.sends = count_sends(shape, p, [](int stage) { return stage; })};
  if (m != p) return expected;
  // In units of F: 2N + D-2 when a full backward takes F, 2 (1.5N + D-2) when it takes 2F.
  if (backward_time == forward_time) expected.makespan = (2 * m + p - 2) * forward_time;
  if (backward_time == 2 * forward_time) expected.makespan = (3 * m + 2 * p - 4) * forward_time;
  std::vector<int> peaks;
  for (int rank = 0; rank < p; ++rank) peaks.push_back(std::min(p / 2, p - rank) + std::min(p / 2, rank + 1));
  expected.peak_activation_units = std::move(peaks);
  return expected;
}

constexpr ScheduleInfo kInfo{
    .name = "chimera",
    .summary = "two directions of 1F1B merged over two copies of the weights",
    .needs = "p even; m a multiple of p; one chunk",
    .forms = "for m = p: bubble ratio (p-2)/(2m+p-2) if B+W = F, (p-2)/(1.5m+p-2) if B+W = 2F; memory p/2+1 .. p",
    .source = "Li and Hoefler 2021, arXiv:2107.06925, fig. 3; longer steps concatenate units (direct)",
    .supports = &supports,
    .build = &build,
    .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
