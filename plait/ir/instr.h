#pragma once

#include "plait/base/ids.h"
#include "plait/ir/value.h"

#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

namespace plait {

enum class OpKind : std::uint8_t {
  kForward,         ///< F
  kBackwardInput,   ///< B: gradient of the input
  kBackwardWeight,  ///< W: gradient of the weights
  kBackward,        ///< BW: both at once
  kRecompute,       ///< R: makes the stash again from what F kept
};

/// "F", "B", "W", "BW", "R".
std::string_view to_string(OpKind kind);

/// One computation. Where it stands is where it runs.
struct Op {
  OpKind kind = OpKind::kForward;
  StageId stage;
  MicrobatchId microbatch;
  SliceId slice;
  friend bool operator==(const Op&, const Op&) = default;
};

/// The next two ops of the row (sends of the first may stand between) form one unit, DualPipe's F&B. They run in order.
struct Pair {
  friend bool operator==(const Pair&, const Pair&) = default;
};
/// An idle cell: alignment only.
struct Idle {
  friend bool operator==(const Idle&, const Idle&) = default;
};
/// End of a turn: in lock step all ranks wait for each other here.
struct Turn {
  friend bool operator==(const Turn&, const Turn&) = default;
};

/// The next `count` instructions are sends and receives with one peer, posted together (NCCL's group, PyTorch's
/// batch_isend_irecv). What they meet stands in one batch of the peer. Where sends and receives block until matched,
/// posting a batch does not: it moves as a whole once both ranks have posted theirs, and its readers and waits wait for that.
struct Batch {
  int count = 1;
  friend bool operator==(const Batch&, const Batch&) = default;
};

/// Starts to send `value` to `peer`; this rank no longer holds it. The buffer lives until the transfer is complete.
struct Send {
  Value value;
  RankId peer;
  friend bool operator==(const Send&, const Send&) = default;
};
/// Posts the receive of `value` from `peer`; the first op that reads the value waits for it.
struct Recv {
  Value value;
  RankId peer;
  friend bool operator==(const Recv&, const Recv&) = default;
};
/// Waits until the send of `value` to `peer` is complete. Every Send has exactly one, later in its row.
struct WaitSend {
  Value value;
  RankId peer;
  friend bool operator==(const WaitSend&, const WaitSend&) = default;
};

enum class CollectiveKind : std::uint8_t { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kReduce, kAllToAll };
/// "all_reduce", "reduce_scatter", ...
std::string_view to_string(CollectiveKind kind);

/// Enters a collective over `ranks`; `root` counts for broadcast and reduce. Members enter in the same order.
///   all_gather weight       the whole weight is on every member until it is freed
///   broadcast weight        the root's weight is on every member
///   all_reduce weight_grad  the sum of the members' partial gradients is on every member
///   reduce weight_grad      the sum of the members' partial gradients is the root's partial, the others have none left
///   reduce_scatter weight_grad  each member's shard of the sum is added to what the member has of that shard
///   A gradient may be reduced again once more was added, and the last reduction is waited for.
///   all_reduce norm         the global square sum is on every member
struct Collective {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  RankSetId ranks;
  RankId root;
  Value value;
  friend bool operator==(const Collective&, const Collective&) = default;
};
/// Waits until this rank's part of the collective on `value` is complete. A gathered or broadcast weight is waited for
/// by its first reader as a received value is, and needs none; a reduction needs exactly one.
struct WaitCollective {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Value value;
  friend bool operator==(const WaitCollective&, const WaitCollective&) = default;
};

/// Drops this rank's oldest copy of a gathered, broadcast or received weight. A rank may hold several copies of one
/// weight, and a home some beside its own. They are alike: the oldest is read, sent and freed first; a home reads and
/// sends its own.
struct Free {
  Value value;
  friend bool operator==(const Free&, const Free&) = default;
};
/// Adds a received partial weight gradient to this rank's own.
struct Add {
  GroupId group;
  friend bool operator==(const Add&, const Add&) = default;
};
/// Optimizer step of a group on one of its homes: consumes the complete gradient, makes the next version of the weight.
/// It stands behind the wait for the norm, or before a Validate.
struct Step {
  GroupId group;
  friend bool operator==(const Step&, const Step&) = default;
};
/// Waits for the norm in place of a WaitCollective and judges the row's steps so far, which did not know it: a norm that is
/// not finite undoes them, one beyond the clipping limit undoes them and steps again with clipped gradients. What a step
/// leaves is read by nobody in the same program, so that nobody reads what is undone. At most one in a row.
struct Validate {
  friend bool operator==(const Validate&, const Validate&) = default;
};

using Instr = std::variant<Op, Pair, Idle, Turn, Send, Recv, WaitSend, Collective, WaitCollective, Free, Add, Step,
                           Batch, Validate>;
using Row = std::vector<Instr>;

/// Kind of an instruction as `stats` and the text format name it: "op", "send", "recv", "wait_send", "all_reduce", ...
std::string_view kind_name(const Instr& instr);

}  // namespace plait
