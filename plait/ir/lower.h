#pragma once

#include "plait/base/result.h"
#include "plait/ir/program.h"

namespace plait {

/// Turns a schedule into a program, in three passes, four where the layout asks for swaps:
///
/// 1. add_transfers: a Send behind the op that writes a value read on another rank, and at that same moment of one
///    global order the matching Recv in the reader's row. Because a pair is created at one moment, all pairs match in one
///    global order and the program is safe even when Send and Recv block until matched.
/// -  add_swaps, with Exchanges::kSwaps only (swaps.h): sends and receives are gathered in batches.
/// 2. add_send_waits: the wait for an activation right behind the backward of the same stage, micro-batch and slice on
///    the same rank; all others behind the row's last op, in the order of the sends.
/// 3. add_steps (training only): all-reduce of the gradients of groups with several homes, all-reduce of the norm,
///    then the steps, each in the order of the group ids. With StepOrder::kPostValidated a rank steps without waiting for
///    the norm, and a Validate stands behind its steps.
///
/// A schedule's own routes stay where they stand; both ends of one are placed at one moment of the same global order where the
/// schedule allows it. Sends that the schedule waits for itself get no second wait.
///
/// \errors kInvalidSchedule: an id is out of range, an op stands twice (verify.duplicate_op), pairs are to be swapped (lower.swaps), or the ops wait for each
///         other in a circle (verify.deadlock); the message names rank, position and op
/// \source order of the sweeps: torch.distributed.pipelining 2.15, _add_send_recv
Result<Program> lower(const Schedule& schedule);

/// For a program that steps without taking the norm: all-reduces it behind each row and validates the steps.
///
/// \errors kInvalidSchedule "lower.validated" if the program takes the norm already
Result<Program> add_validation(Program program);

// The passes, for lowerings that mix them with passes of their own (PyTorch's). Each maps rows to rows.

enum class PairSends : std::uint8_t {
  kBehindOp,    ///< the first op's sends stand between the two ops of a pair
  kBehindPair,  ///< all sends of a pair stand behind its second op, as PyTorch's do
};

Result<> check_ops(const Schedule& schedule);
Result<std::vector<Row>> add_transfers(const Layout& layout, const std::vector<Row>& rows, PairSends pair_sends);
std::vector<Row> add_send_waits(const Layout& layout, std::vector<Row> rows);
void add_steps(Program& program);

}  // namespace plait
