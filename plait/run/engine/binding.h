#pragma once

#include "plait/base/result.h"
#include "plait/ir/edge_tensors.h"
#include "plait/ir/program.h"
#include "plait/run/engine/transport.h"
#include "plait/run/model/stage_module.h"

#include <cstdint>
#include <variant>
#include <vector>

namespace plait {

inline constexpr std::int32_t kAbsent = -1;

/// Where an instruction finds a value: in a slot of its rank, after `transfer` arrived if there is one.
struct Source {
  std::int32_t slot = kAbsent;    ///< none: the instruction has no such input
  TransferId transfer = kAbsent;  ///< none: the value was made on this rank
  friend bool operator==(const Source&, const Source&) = default;
};

/// Entries [begin, end) of one of the lists of a BoundRow.
struct Range {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  [[nodiscard]] bool empty() const { return begin == end; }
  friend bool operator==(const Range&, const Range&) = default;
};
/// Partial weight gradients that arrive before an instruction reads its group's: a range of BoundRow::arrivals.
using Arrivals = Range;
/// Weights that an instruction is the first to read, and so waits for: a range of BoundRow::weights.
using FirstReads = Range;

struct BoundNothing {
  friend bool operator==(const BoundNothing&, const BoundNothing&) = default;
};
struct BoundOp {
  OpKind kind = OpKind::kForward;
  std::int32_t stage = 0;
  std::int32_t data = 0;  ///< index into the step's slices: micro-batch x slices + slice
  std::int32_t slice = 0;
  Source input;                   ///< payload slot, where one edge brings something: in_edge
  std::int32_t output = kAbsent;  ///< payload slot, where one edge takes something: out_edge
  EdgeId in_edge;
  EdgeId out_edge;
  Range inputs;  ///< of BoundRow::branches, where several do
  Range outputs;
  Source stash;                             ///< F writes the slot; R takes from it and writes it; B and BW take from it
  StashRule rule = StashRule::kEverything;  ///< of F and R
  Source weight_stash;                      ///< B writes the slot; W takes from it
  std::int32_t cache = kAbsent;             ///< keys and values of the micro-batch, where sequences are cut
  enum class CacheUse : std::uint8_t { kStays, kEnds } cache_use = CacheUse::kStays;
  FirstReads weights;
  friend bool operator==(const BoundOp&, const BoundOp&) = default;
};
struct BoundSend {
  TransferId transfer = kAbsent;
  ValueKind kind = ValueKind::kActivation;
  Source source;  ///< slot of the kind; the group for a weight or its gradient
  Arrivals arrivals;
  FirstReads weights;
  friend bool operator==(const BoundSend&, const BoundSend&) = default;
};
struct BoundReceive {
  TransferId transfer = kAbsent;
  ValueKind kind = ValueKind::kActivation;
  std::int32_t group = kAbsent;  ///< of a weight or its gradient
  friend bool operator==(const BoundReceive&, const BoundReceive&) = default;
};
struct BoundWaitSent {
  TransferId transfer = kAbsent;
  friend bool operator==(const BoundWaitSent&, const BoundWaitSent&) = default;
};
/// Enters the collective that brings the weights of a group: broadcast or all_gather.
struct BoundGather {
  CollectiveId collective = kAbsent;
  GroupId group;
  FirstReads weights;  ///< the root reads its own
  friend bool operator==(const BoundGather&, const BoundGather&) = default;
};
/// Waits for weights as a first reader does.
struct BoundAwaitWeights {
  FirstReads weights;
  friend bool operator==(const BoundAwaitWeights&, const BoundAwaitWeights&) = default;
};
/// Drops the oldest copy of a group's weights.
struct BoundFree {
  GroupId group;
  FirstReads weights;
  friend bool operator==(const BoundFree&, const BoundFree&) = default;
};
/// Enters or finishes a reduction of a group's gradient.
struct BoundReduceGrad {
  CollectiveId collective = kAbsent;
  GroupId group;
  friend bool operator==(const BoundReduceGrad&, const BoundReduceGrad&) = default;
};
struct BoundFinishGrad {
  CollectiveId collective = kAbsent;
  GroupId group;
  friend bool operator==(const BoundFinishGrad&, const BoundFinishGrad&) = default;
};
/// Enters or finishes the all-reduce of the norm. What arrived for any group is added before.
struct BoundReduceNorm {
  CollectiveId collective = kAbsent;
  Arrivals arrivals;
  friend bool operator==(const BoundReduceNorm&, const BoundReduceNorm&) = default;
};
struct BoundFinishNorm {
  CollectiveId collective = kAbsent;
  friend bool operator==(const BoundFinishNorm&, const BoundFinishNorm&) = default;
};
struct BoundAdd {
  Arrivals arrivals;
  friend bool operator==(const BoundAdd&, const BoundAdd&) = default;
};
struct BoundStep {
  GroupId group;
  Arrivals arrivals;
  enum class Norm : std::uint8_t { kKnown, kValidates } norm = Norm::kKnown;  ///< known before, or it validates behind
  friend bool operator==(const BoundStep&, const BoundStep&) = default;
};
struct BoundValidate {
  CollectiveId collective = kAbsent;  ///< of the norm
  friend bool operator==(const BoundValidate&, const BoundValidate&) = default;
};

using BoundInstr = std::variant<BoundNothing, BoundOp, BoundSend, BoundReceive, BoundWaitSent, BoundReduceGrad,
                                BoundFinishGrad, BoundReduceNorm, BoundFinishNorm, BoundAdd, BoundStep, BoundGather,
                                BoundAwaitWeights, BoundFree, BoundValidate>;

struct Arrival {
  GroupId group;
  TransferId transfer = kAbsent;
  friend bool operator==(const Arrival&, const Arrival&) = default;
};

/// Weights under way: by a transfer or a collective.
struct WeightArrival {
  GroupId group;
  TransferId transfer = kAbsent;
  CollectiveId collective = kAbsent;
  friend bool operator==(const WeightArrival&, const WeightArrival&) = default;
};

/// One of several edges into or out of an op.
struct Branch {
  EdgeId edge;
  Source source;  ///< payload slot; of an output the slot alone
  friend bool operator==(const Branch&, const Branch&) = default;
};

/// One rank's row with every name resolved: instruction i of the row is instrs[i].
struct BoundRow {
  std::vector<BoundInstr> instrs;
  std::vector<Arrival> arrivals;
  std::vector<WeightArrival> weights;
  std::vector<Branch> branches;
  std::vector<StageId> stages;  ///< that have ops here, ascending
  int num_payloads = 0;
  int num_stashes = 0;
  int num_weight_stashes = 0;
  int num_caches = 0;
};

struct BoundProgram {
  Routes routes;
  std::vector<EdgeTensors> edges;
  std::vector<BoundRow> rows;
  bool has_norm = false;  ///< every Step stands behind a finished reduction of the norm, or is validated by one
};

/// Resolves all names of a program to slots, transfers and collectives, so that running it looks nothing up.
///
/// \errors kUnsupported "engine.*": keys and values that travel; collectives of other values than weights,
///         their gradients and the norm; kInvalidSchedule "engine.unmatched": a receive without its send;
///         "engine.weight_not_here": an op on a rank to which the weights never came
Result<BoundProgram> bind(const Program& program);

}  // namespace plait
