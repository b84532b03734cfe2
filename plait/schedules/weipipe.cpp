#include "plait/schedules/weight_ring.h"

namespace plait {
namespace {

Result<> supports(const ScheduleShape& shape) {
  return check_ring("weipipe", shape);
}

/// Per rank: r idle turns; P turns with F only; (R - 1) P turns with B of a round and F of the next, on complementary
/// shards; P turns with B only; P - 1 - r idle turns.
RingPlan plan_of(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const int rounds = *shape.microbatches / p;
  RingPlan plan{.ranks = p, .rounds = rounds, .turns = (rounds + 2) * p - 1, .forward_turns = (rounds + 1) * p};
  if (p == 1) plan.forward_turns = plan.turns;
  plan.forward = [plan](int rank, int turn) { return interleaved_forward(plan, rank, turn); };
  plan.backward = [plan](int rank, int turn) { return interleaved_backward(plan, rank, turn); };
  return plan;
}

Result<Schedule> build(const ScheduleShape& shape) {
  return write_ring("weipipe", shape, plan_of(shape));
}

Expectation expect(const ScheduleShape& shape) {
  return expect_ring(plan_of(shape), shape.ranks);
}

constexpr ScheduleInfo kInfo{
    .name = "weipipe",
    .summary = "weights and their gradients travel round a ring; every rank keeps its micro-batch through all layers",
    .needs = "m = R p, p divides the layers",
    .forms =
        "in lock step (R+2)p - 1 turns, bubble ratio (p-1)/(m+p-1) from R = 2 on; memory one micro-batch, all layers",
    .source = "Lin et al. 2025, WeiPipe, PPoPP 2025 (Interleave)",
    .supports = &supports,
    .build = &build,
    .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
