#include "plait/schedules/common.h"
#include "plait/schedules/dualpipe_steps.h"

#include <algorithm>

namespace plait {
namespace {

Result<> supports(const ScheduleShape& shape) {
  PLAIT_TRY_VOID(check_plain("dualpipe", shape));
  if (shape.ranks % 2 != 0)
    return make_error(ErrorCode::kInvalidArgument, "schedule.ranks",
                      "dualpipe: two streams meet in the middle, got --ranks {}; use an even number, or dualpipev",
                      shape.ranks);
  if (*shape.microbatches % 2 != 0 || *shape.microbatches < 2 * shape.ranks)
    return make_error(
        ErrorCode::kInvalidArgument, "schedule.microbatches",
        "dualpipe: the streams take half of the micro-batches each, at least {} for {} ranks, got --microbatches {}; "
        "use an even number from {} on",
        shape.ranks, shape.ranks, *shape.microbatches, 2 * shape.ranks);
  return {};
}

/// Stage s lives on ranks s and p-1-s. Micro-batches 0..m/2-1 run down the ranks (stage s on rank s), m/2..m-1 run up (stage
/// s on rank p-1-s).
Result<Schedule> build(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const int half = *shape.microbatches / 2;
  PLAIT_TRY(Layout layout, replicated_layout("dualpipe", shape, p, [p](int stage) {
              return std::vector<RankId>{RankId{stage}, RankId{p - 1 - stage}};
            }));
  std::vector<Row> rows;
  for (int rank = 0; rank < p; ++rank) {
    rows.push_back(dualpipe_row({.depth = p / 2,
                                 .position = std::min(rank, p - 1 - rank),
                                 .num_microbatches = half,
                                 .op = [&](OpKind kind, int phase, int index) {
                                   const bool down = (phase == 0) == (rank < p / 2);
                                   return Op{.kind = kind,
                                             .stage = StageId{down ? rank : p - 1 - rank},
                                             .microbatch = MicrobatchId{down ? index : half + index},
                                             .slice = {}};
                                 }}));
  }
  return Schedule{.layout = std::move(layout), .rows = std::move(rows)};
}

Expectation expect(const ScheduleShape& shape) {
  const int p = shape.ranks;
  Expectation expected{.peak_activation_units = std::vector<int>(static_cast<std::size_t>(p), p + 1),
                       .sends = count_sends(shape, p, [](int stage) { return stage; })};
  if (dualpipe_bubble_holds(shape.ranks / 2, shape.times))
    expected.max_idle = (p / 2 - 1) * (shape.times.forward + shape.times.backward - shape.times.weight);
  return expected;
}

constexpr ScheduleInfo kInfo{
    .name = "dualpipe",
    .summary = "two streams from both ends over two copies of the weights, forward and backward in pairs",
    .needs = "p even; m even and at least 2p; one chunk",
    .forms = "bubble (p/2-1)(F+B-W) with pairs in order, memory p+1, two copies of the weights",
    .source = "DeepSeek-AI 2024, arXiv:2412.19437, fig. 5; github.com/deepseek-ai/DualPipe",
    .supports = &supports,
    .build = &build,
    .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
