#include "plait/schedules/common.h"
#include "plait/schedules/dualpipe_steps.h"

namespace plait {
namespace {

Result<> supports(const ScheduleShape& shape) {
  PLAIT_TRY_VOID(check_v_shape("dualpipev", shape));
  if (*shape.microbatches < 2 * shape.ranks)
    return make_error(
        ErrorCode::kInvalidArgument, "schedule.microbatches",
        "dualpipev: needs a micro-batch for each of its {0} stages, got --microbatches {1}; use at least {0}",
        2 * shape.ranks, *shape.microbatches);
  return {};
}

Result<Schedule> build(const ScheduleShape& shape) {
  const int p = shape.ranks;
  PLAIT_TRY(Layout layout, pipeline_layout("dualpipev", shape, 2 * p, [p](int stage) { return v_rank(stage, p); }));
  std::vector<Row> rows;
  for (int rank = 0; rank < p; ++rank) {
    rows.push_back(dualpipe_row({.depth = p,
                                 .position = rank,
                                 .num_microbatches = *shape.microbatches,
                                 .op = [&](OpKind kind, int phase, int index) {
                                   return Op{.kind = kind,
                                             .stage = StageId{phase == 0 ? rank : v_second_stage(rank, p)},
                                             .microbatch = MicrobatchId{index},
                                             .slice = {}};
                                 }}));
  }
  return Schedule{.layout = std::move(layout), .rows = std::move(rows)};
}

Expectation expect(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const OpTimes& times = shape.times;
  Expectation expected{.peak_activation_units = std::vector<int>(static_cast<std::size_t>(p), 2 * p + 1),
                       .sends = count_sends(shape, 2 * p, [p](int stage) { return v_rank(stage, p); })};
  if (dualpipe_bubble_holds(p, times))
    expected.max_idle = (p - 1) * (times.forward + times.backward - times.weight) / 2;
  return expected;
}

constexpr ScheduleInfo kInfo{
    .name = "dualpipev",
    .summary = "DualPipe cut in half: two chunks per rank in a V, one copy of the weights",
    .needs = "m at least 2p; exactly two chunks",
    .forms = "bubble (p-1)(F+B-W)/2 with pairs in order, memory p+1/2",
    .source = "github.com/deepseek-ai/DualPipe; torch.distributed.pipelining 2.15, ScheduleDualPipeV",
    .supports = &supports,
    .build = &build,
    .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
