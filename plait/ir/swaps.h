#pragma once

#include "plait/base/result.h"
#include "plait/ir/program.h"

#include <vector>

namespace plait {

/// Gathers the sends and receives of lowered rows in batches, swaps where the order allows it:
///
///   rank a:  P1 send(x)->b            P1 batch(2) send(x)->b recv(y)<-b
///            ... recv(y)<-b A3   =>   ... A3
///   rank b:  A2 send(y)->a            A2 batch(2) send(y)->a recv(x)<-a
///            ... recv(x)<-a P4        ... P4
///
/// Sends stay where they are; what one gap between two ops sends to one peer is one batch. Two batches of opposite directions
/// become a swap when each is read behind the op that makes the other. That costs no rank a wait that its own order does
/// not: a reader of x stands behind y's op anyway. What finds no partner is a batch of its own, whose receives are posted
/// behind the op of the same fold before their reader, and behind the two ranks' previous exchange.
///
/// Layout::folds: only transfers of one fold are swapped, and an op waits for what its own fold has under way, sends
/// included; so with two folds a transfer has an op of the other fold to hide behind.
///
/// \errors kInvalidSchedule "lower.swaps" if pairs stand in the rows: nothing may be received inside one
Result<std::vector<Row>> add_swaps(const Layout& layout, const std::vector<Row>& rows);

}  // namespace plait
