#include "plait/schedules/common.h"
#include "plait/schedules/weight_ring.h"
#include "plait/schedules/weight_rows.h"

namespace plait {
namespace {

Result<> supports(const ScheduleShape& shape) {
  PLAIT_TRY_VOID(check_rounds("weipipe-naive", shape));
  if (shape.groups)
    return make_error(ErrorCode::kInvalidArgument, "schedule.flag",
                      "weipipe-naive: has one ring, got --groups {}; leave it out, or use tawpipe", *shape.groups);
  return {};
}

/// Per micro-batch P turns with F, then P turns with B. Both weight flows keep turning although a turn uses only one of
/// them: the redundancy that Interleave removes. A gradient goes round once between two rounds.
RingPlan plan_of(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const int rounds = *shape.microbatches / p;
  RingPlan plan{.ranks = p, .rounds = rounds, .turns = 2 * p * rounds + p - 1, .forward_turns = 2 * p * rounds};
  plan.forward = [p, rounds](int rank, int turn) -> std::optional<RingWork> {
    const int u = turn - rank;
    if (u < 0 || u >= 2 * p * rounds || u % (2 * p) >= p) return {};
    return RingWork{.shard = u % p, .microbatch = u / (2 * p) * p + rank};
  };
  plan.backward = [p, rounds](int rank, int turn) -> std::optional<RingWork> {
    const int u = turn - rank;
    if (u < 0 || u >= 2 * p * rounds || u % (2 * p) < p) return {};
    return RingWork{.shard = p - 1 - u % p, .microbatch = u / (2 * p) * p + rank};
  };
  return plan;
}

Result<Schedule> build(const ScheduleShape& shape) {
  return write_ring("weipipe-naive", shape, plan_of(shape));
}

/// No makespan: with two buffers a flow, the last rank cannot hand on before the first has come round to take it, so the
/// ring runs about as in lock step even where transfers take no time.
Expectation expect(const ScheduleShape& shape) {
  return Expectation{.peak_activation_units = std::vector<int>(static_cast<std::size_t>(shape.ranks), shape.ranks),
                     .sends = count_ring_sends(plan_of(shape))};
}

constexpr ScheduleInfo kInfo{
    .name = "weipipe-naive",
    .summary =
        "weights travel round a ring; forward and backward of a micro-batch one after the other (reconstruction)",
    .needs = "m = R p, p divides the layers",
    .forms = "in lock step 2pR + p - 1 turns; memory one micro-batch, all layers",
    .source = "Lin et al. 2025, WeiPipe, PPoPP 2025 (Naive; its table is not public, reconstructed)",
    .supports = &supports,
    .build = &build,
    .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
