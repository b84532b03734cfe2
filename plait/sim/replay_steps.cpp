// Where a rank has turns, and what ends its row: optimizer steps and their validation.

#include "plait/sim/replay.h"

#include <algorithm>

namespace plait::sim_detail {

Replay::Progress Replay::end_turn(std::size_t rank) {
  Lane& lane = lanes_[rank];
  if (lane.turn >= turns_.size()) turns_.resize(lane.turn + 1);
  CollectiveState& turn = turns_[lane.turn];
  if (!lane.in_turn) {
    lane.in_turn = true;
    turn.start = std::max(turn.start, lane.clock);
    if (++turn.entered == num_ranks_) {
      turn.complete = true;
      for (const std::int32_t waiter : turn.waiters) push(waiter, turn.start);
    }
  }
  if (!turn.complete) {
    turn.waiters.push_back(static_cast<std::int32_t>(rank));
    return Progress::kBlocked;
  }
  lane.clock = std::max(lane.clock, turn.start);
  lane.in_turn = false;
  ++lane.turn;
  return Progress::kDone;
}

Replay::Progress Replay::optimizer_step(std::size_t rank, const Step& step) {
  if (step.group.index() >= layout_.groups.size()) return fail(rank, "sim.unverified", "group is out of range");
  Lane& lane = lanes_[rank];
  const GroupCost& cost = costs_.groups[step.group.index()];
  const auto shards = static_cast<std::int64_t>(layout_.groups[step.group.index()].residency == Residency::kSharded
                                                    ? layout_.groups[step.group.index()].homes.size()
                                                    : 1);
  if (lane.next < lane.trial_end) {
    const std::int64_t undo = (cost.undo.value() + shards - 1) / shards;
    lane.undo_bytes += undo;
    hold_bytes(rank, undo);
  }
  if (cost.step_ticks == 0) return Progress::kDone;
  lane.clock += cost.step_ticks / shards;
  lane.busy += cost.step_ticks / shards;
  lane.last_busy_end = lane.clock;
  return Progress::kDone;
}

/// The steps stand, as they do in all but few steps of a training: what a redone one takes is not counted.
Replay::Progress Replay::validate(std::size_t rank) {
  const Progress progress =
      wait_collective(rank, WaitCollective{.kind = CollectiveKind::kAllReduce, .value = Value::norm()});
  if (progress != Progress::kDone) return progress;
  Lane& lane = lanes_[rank];
  lane.validated = lane.clock;
  lane.bytes -= lane.undo_bytes;
  lane.undo_bytes = 0;
  return Progress::kDone;
}

}  // namespace plait::sim_detail
