#include "plait/schedules/weight_ring.h"

#include <algorithm>

namespace plait {
namespace {

Result<> supports(const ScheduleShape& shape) {
  return check_ring("wzb2-reconstructed", shape);
}

/// Interleave with B and W apart: every W stands P turns behind its B, when D_j comes past again. Nothing waits for a W
/// but its gradient, so the ring of weights may run ahead of that of gradients.
RingPlan plan_of(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const int rounds = *shape.microbatches / p;
  RingPlan plan{.ranks = p, .rounds = rounds, .turns = (rounds + 3) * p - 1, .forward_turns = (rounds + 1) * p};
  plan.backward_ops = RingPlan::Backward::kSplit;
  plan.forward = [plan](int rank, int turn) { return interleaved_forward(plan, rank, turn); };
  plan.backward = [plan](int rank, int turn) { return interleaved_backward(plan, rank, turn); };
  plan.weight = [plan](int rank, int turn) { return interleaved_backward(plan, rank, turn - plan.ranks); };
  return plan;
}

Result<Schedule> build(const ScheduleShape& shape) {
  return write_ring("wzb2-reconstructed", shape, plan_of(shape));
}

Expectation expect(const ScheduleShape& shape) {
  return expect_ring(plan_of(shape), std::min(2, *shape.microbatches / shape.ranks) * shape.ranks);
}

constexpr ScheduleInfo kInfo{
    .name = "wzb2-reconstructed",
    .summary = "weipipe with split backwards: every W a whole round of the ring behind its B (reconstruction)",
    .needs = "m = R p, p divides the layers",
    .forms = "in lock step (R+3)p - 1 turns; memory min(R, 2) micro-batches, all layers",
    .source = "derived from the idea in Lin et al. 2025, WeiPipe, PPoPP 2025; not the authors' table",
    .supports = &supports,
    .build = &build,
    .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
