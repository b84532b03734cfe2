#pragma once

#include "plait/base/ids.h"
#include "plait/base/result.h"
#include "plait/ir/program.h"
#include "plait/sim/cluster.h"
#include "plait/sim/rank_memory.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace plait {

/// What one op costs: integer ticks on the compute lane, and what it does to the rank's memory, in this order:
/// `alloc` is taken when it starts, `transient` lives while it runs, `freed` is given back when it ends.
struct OpCost {
  std::int64_t ticks = 0;
  std::int64_t alloc = 0;
  std::int64_t transient = 0;
  std::int64_t freed = 0;
  friend bool operator==(const OpCost&, const OpCost&) = default;
};

/// What a parameter group costs on each of its homes (one shard of it where it is sharded).
struct GroupCost {
  Bytes weight;     ///< whole weight in the type that computes and travels
  Bytes gradient;   ///< accumulated gradient
  Bytes optimizer;  ///< master weights and moments
  std::int64_t step_ticks = 0;
  std::int64_t add_ticks = 0;
  Bytes undo;  ///< what a step that is validated later keeps until then: masters and moments as they were
  friend bool operator==(const GroupCost&, const GroupCost&) = default;
};

/// Who is charged for a message between its Send and its reader.
enum class MessageBytes : std::uint8_t {
  kBothEnds,  ///< the sender until its WaitSend, the receiver from its Recv: buffers of a network
  kInFlight,  ///< nobody: handed over in one memory; the reader from when it takes it
};

/// Durations and bytes of everything a program of one layout can contain. Where it comes from (abstract numbers, a table,
/// shapes x device, a calibration) is the business of the functions that make one.
struct CostModel {
  std::int64_t ticks_per_unit = 1;  ///< ticks in one unit of the times that came in
  std::string unit;                 ///< "" for bare numbers, else "s", "ms", ...
  int num_stages = 0;
  int num_slices = 0;
  std::vector<OpCost> ops;                ///< [kind][stage][slice], through op()
  std::vector<Bytes> edge_bytes;          ///< [edge][slice]: an activation or its gradient on the wire
  std::vector<Bytes> stash_bytes;         ///< [stage][slice]: kept from F to B
  std::vector<Bytes> remade_bytes;        ///< [stage][slice]: what R adds to it
  std::vector<Bytes> logit_bytes;         ///< [stage][slice]: the logits' part of the two
  std::vector<Bytes> weight_stash_bytes;  ///< [stage][slice]: kept from B to W
  std::vector<Bytes> kv_bytes;            ///< [stage][slice]
  std::vector<GroupCost> groups;          ///< [group]
  Bytes norm_bytes;
  Bytes fixed_bytes;  ///< on every rank, from start to end (context, library workspaces)
  MessageBytes messages = MessageBytes::kBothEnds;
  Bytes block_bytes{1};            ///< the allocator rounds every buffer up to a multiple of it
  std::int64_t latency = 0;        ///< fixed time of a transfer between ranks, where there is no cluster
  std::optional<Cluster> cluster;  ///< links with bandwidth and sharing
  /// Per rank, for one program: its memory is this, whatever the bytes above say. Empty: it follows from them.
  std::vector<RankMemory> known_memory;

  [[nodiscard]] std::size_t at(OpKind kind, StageId stage, SliceId slice) const {
    return (static_cast<std::size_t>(kind) * static_cast<std::size_t>(num_stages) + stage.index()) *
               static_cast<std::size_t>(num_slices) +
           slice.index();
  }
  [[nodiscard]] const OpCost& op(OpKind kind, StageId stage, SliceId slice) const {
    return ops[at(kind, stage, slice)];
  }
  [[nodiscard]] OpCost& op(OpKind kind, StageId stage, SliceId slice) { return ops[at(kind, stage, slice)]; }
  /// Index into the tables by stage (or edge) and slice.
  [[nodiscard]] std::size_t cell(std::size_t subject, SliceId slice) const {
    return subject * static_cast<std::size_t>(num_slices) + slice.index();
  }
  friend bool operator==(const CostModel&, const CostModel&) = default;
};

inline constexpr int kNumOpKinds = 5;

/// All costs zero, tables sized for the layout.
CostModel zero_costs(const Layout& layout);

/// Refuses a model that does not fit the layout, or has negative times or bytes.
/// \errors kInvalidArgument "sim.cost_shape", "sim.negative"
Result<> check_costs(const Layout& layout, const CostModel& costs);

/// Bytes of a value on the wire and in a buffer.
Bytes value_bytes(const CostModel& costs, const Value& value);

}  // namespace plait
