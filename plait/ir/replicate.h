#pragma once

#include "plait/base/result.h"
#include "plait/ir/program.h"

namespace plait {

/// What a replica keeps of the weights that all replicas hold.
enum class ReplicaState : std::uint8_t {
  kWhole,    ///< weights and optimizer state; gradients are all-reduced
  kSharded,  ///< a shard of both: weights are gathered once a step, gradients scattered
};

/// Puts `replicas` copies of a schedule of P ranks and M micro-batches side by side: copy r is ranks r P to r P + P - 1 and
/// micro-batches r M to r M + M - 1. Every stage and group gets the homes of all copies, so the sum over the replicas
/// follows from the data flow: with kWhole lowering all-reduces each group over its homes, with kSharded the gathers stand
/// at the start of a row and the scatters behind the last op that uses the group.
///
/// \errors kInvalidArgument "schedule.replicas": fewer than 1, or a schedule that shards weights or sums gradients over
///         its ranks itself; with kSharded also one whose weights travel
Result<Schedule> replicate(const Schedule& one, int replicas, ReplicaState state);

}  // namespace plait
