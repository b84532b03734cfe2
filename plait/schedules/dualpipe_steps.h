#pragma once

#include "plait/ir/program.h"
#include "plait/schedules/schedule_info.h"

#include <functional>

namespace plait {

/// What DualPipe and DualPipeV share. Two phases run against each other: two streams of micro-batches, or the two chunks of a V.
struct DualPipeSteps {
  int depth = 1;             ///< ranks of one arm: half of the ranks, or all of them in a V
  int position = 0;          ///< of this rank in its arm, 0 at the end where phase 0 enters
  int num_microbatches = 1;  ///< of one phase
  /// The op of `kind` for the index-th micro-batch of a phase (0 or 1).
  std::function<Op(OpKind kind, int phase, int index)> op;
};

/// The row of one rank, in eight steps.
Row dualpipe_row(const DualPipeSteps& steps);

/// Whether the stated bubble holds: for equal times always; for others, W is the shortest, neither way outruns the other and
/// an arm has at most six ranks. These bounds were found by replay (m = 2p..3p+2).
bool dualpipe_bubble_holds(int depth, const OpTimes& times);

}  // namespace plait
