#pragma once

#include "plait/base/result.h"
#include "plait/ir/program.h"

#include <vector>

/// The last two passes of PyTorch's lowering. Rows hold each transfer once: a Send with its WaitSend in the sender's row
/// and its Recv in the reader's; the stages are a chain.
namespace plait {

/// Moves each Recv to just before the op that reads its value (before the pair that holds it). Before a Send to a higher
/// rank all deferred receives from that rank are posted, so that the lower rank of two receives before it sends.
std::vector<Row> defer_receives(const Layout& layout, const std::vector<Row>& rows);

/// Moves waits forward, rank by rank, so that no rank has more than `limit` sends that are not waited for. Before a Send
/// that would exceed it stands the wait for the oldest pending send whose receive is sure to be posted by then, that is,
/// the receive precedes this place in the order that rows, transfers and the waits so far impose; failing that, the
/// wait for the oldest one that closes no circle in this order.
///
/// \errors kInvalidArgument lowering.max_outstanding_sends if no wait can move
/// \cost   O(ranks x instructions)
Result<std::vector<Row>> limit_outstanding_sends(const Layout& layout, const std::vector<Row>& rows, int limit);

}  // namespace plait
