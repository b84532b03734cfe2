#include "plait/schedules/weight_ring.h"

namespace plait {
namespace {

Result<> supports(const ScheduleShape& shape) {
  return check_ring("wzb1-reconstructed", shape);
}

/// Interleave with B and W apart. In the last round rank r leaves the W of shards above r for P turns later, when D_j
/// passes it again on its way home: the P - 1 - r idle turns of a rank that finishes early, one W each.
RingPlan plan_of(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const int rounds = *shape.microbatches / p;
  RingPlan plan{.ranks = p, .rounds = rounds, .turns = (rounds + 2) * p - 1, .forward_turns = (rounds + 1) * p};
  plan.backward_ops = RingPlan::Backward::kSplit;
  plan.forward = [plan](int rank, int turn) { return interleaved_forward(plan, rank, turn); };
  plan.backward = [plan](int rank, int turn) { return interleaved_backward(plan, rank, turn); };
  plan.weight = [plan](int rank, int turn) -> std::optional<RingWork> {
    const auto waits = [&](const RingWork& work) {
      return work.microbatch / plan.ranks == plan.rounds - 1 && work.shard > rank;
    };
    if (const auto now = interleaved_backward(plan, rank, turn); now && !waits(*now)) return now;
    if (const auto then = interleaved_backward(plan, rank, turn - plan.ranks); then && waits(*then)) return then;
    return {};
  };
  return plan;
}

Result<Schedule> build(const ScheduleShape& shape) {
  return write_ring("wzb1-reconstructed", shape, plan_of(shape));
}

Expectation expect(const ScheduleShape& shape) {
  return expect_ring(plan_of(shape), shape.ranks);
}

constexpr ScheduleInfo kInfo{
    .name = "wzb1-reconstructed",
    .summary = "weipipe with split backwards: the last round's W fill the idle turns at the end (reconstruction)",
    .needs = "m = R p, p divides the layers",
    .forms = "in lock step as weipipe: (R+2)p - 1 turns; memory one micro-batch, all layers",
    .source = "derived from the idea in Lin et al. 2025, WeiPipe, PPoPP 2025; not the authors' table",
    .supports = &supports,
    .build = &build,
    .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
