#pragma once

#include "plait/schedules/schedule_info.h"

#include <functional>
#include <optional>
#include <string_view>

namespace plait {

/// An op of a shard for one of the rank's micro-batches.
struct RingWork {
  int shard = 0;
  int microbatch = 0;
  friend bool operator==(const RingWork&, const RingWork&) = default;
};

/// What every rank of a ring does in every turn. Weights and gradients all hop from rank r to r + 1 once a turn:
///
///     forward flow    turns [0, forward_turns): rank r holds shard (t - r) mod P
///     backward flow   turns [P, turns): rank r holds shard (r - 1 - t) mod P
///     gradient flow   D_j from its first contribution on, where the backward flow has (or would have) W_j
///
/// Shard j belongs to rank (j + 1) mod P, which is the backward flow's layout at turn P; before turn 0 one swap
/// r <-> (P + 1 - r) mod P makes the forward flow's layout of it.
struct RingPlan {
  int ranks = 1;
  int rounds = 1;
  int turns = 1;
  int forward_turns = 1;
  enum class Backward : std::uint8_t { kWhole, kSplit };
  Backward backward_ops = Backward::kWhole;  ///< BW at once, or B and W apart
  std::function<std::optional<RingWork>(int rank, int turn)> forward;
  std::function<std::optional<RingWork>(int rank, int turn)> backward;
  std::function<std::optional<RingWork>(int rank, int turn)> weight;  ///< only where they are apart
};

/// Work of Interleave, at distance u = t - r from the rank's first turn: F of round u div P; from u = P on B of the round
/// before, shards descending.
std::optional<RingWork> interleaved_forward(const RingPlan& plan, int rank, int turn);
std::optional<RingWork> interleaved_backward(const RingPlan& plan, int rank, int turn);

/// check_rounds, and nothing that a ring has no use for: groups, prefetch.
Result<> check_ring(std::string_view name, const ScheduleShape& shape);

/// Closed forms: messages, and `peak_units` shards of stashes on every rank. No makespan: with two buffers a flow, the last
/// rank cannot hand on before the first has come round to take it, so the ring runs about as in lock step even where
/// transfers take no time.
Expectation expect_ring(const RingPlan& plan, int peak_units);

/// Writes the plan down. Per turn and rank: hand on the weights held and post the receives of the next ones; the backward,
/// the sum with the gradient that arrived, its hop; the forward; the waits, and the copies are freed.
///
/// Two buffers per flow are enough: the shard of this turn and the one under way.
Result<Schedule> write_ring(std::string_view name, const ScheduleShape& shape, const RingPlan& plan);

/// Point-to-point messages of the plan: the swap, the hops of both weight flows, the hops of the gradients.
std::int64_t count_ring_sends(const RingPlan& plan);

}  // namespace plait
