#include "plait/schedules/weight_ring.h"

namespace plait {
namespace {

Result<> supports(const ScheduleShape& shape) {
  return check_ring("weipipe-naive", shape);
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

Expectation expect(const ScheduleShape& shape) {
  return expect_ring(plan_of(shape), shape.ranks);
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
