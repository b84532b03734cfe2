#pragma once

#include "plait/base/ids.h"
#include "plait/base/result.h"
#include "plait/ir/program.h"
#include "plait/sim/cost_model.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace plait {

/// How a transfer between ranks is timed. A Send leaves when the lane reaches it; the first reader waits for the arrival.
enum class TransferMode : std::uint8_t {
  kFree,      ///< arrives at once
  kFixed,     ///< arrives `latency` later, whatever the links
  kBuffered,  ///< leaves at once; takes the links' time, or `latency` where there is no cluster. Waiting for a send takes
              ///< time only where it is one of weights or their gradients, out of the sender's own buffer
  kBounded,     ///< as buffered, into `buffers` slots per ordered pair of ranks; a Send blocks the lane while all are
                ///< taken; a slot is free again when its message has arrived and the matching Recv is posted
  kRendezvous,  ///< Send and Recv block the lane until matched; then the message travels while both go on
                ///< (a Batch never blocks, but moves only when both sides have posted theirs, and arrives at once)
  kBlocking,    ///< Send and Recv block the lane until the message has arrived; a Batch as under rendezvous
};

enum class Turns : std::uint8_t {
  kIgnored,
  kLockStep,  ///< at the end of a turn all ranks wait for the slowest
};

enum class Detail : std::uint8_t {
  kFigures,   ///< sums only
  kTimeline,  ///< also start and end of every instruction, and every transfer
};

struct SimOptions {
  TransferMode transfers = TransferMode::kBuffered;
  int buffers = 1;                    ///< slots of kBounded
  std::optional<double> pair_factor;  ///< a pair is one unit of X (first + second), results at its end; unset: in order
  Turns turns = Turns::kIgnored;
  Detail detail = Detail::kFigures;
};

/// What one rank did. All times in ticks.
struct RankFigures {
  std::int64_t busy = 0;              ///< sum of its ops' durations (steps included)
  std::int64_t idle = 0;              ///< its own span, first op's start to last op's end, minus the busy time in it
  std::int64_t exposed_transfer = 0;  ///< time the lane stood still for a message that was on the wire, for a full
                                      ///< slot, or in a blocking Send, Recv or wait
  std::int64_t first_start = 0;       ///< of its ops
  std::int64_t last_end = 0;
  int peak_stashes = 0;         ///< most stashes alive: taken at F, released at BW or W; a sent one leaves
  std::int64_t peak_bytes = 0;  ///< most bytes held, with weights, gradients, optimizer and fixed bytes
  int peak_position = -1;       ///< index of the instruction at the peak; -1: before the first
  friend bool operator==(const RankFigures&, const RankFigures&) = default;
};

/// Point-to-point transfers of all ranks.
struct TransferFigures {
  std::int64_t count = 0;
  std::int64_t bytes = 0;
  std::int64_t exposed = 0;  ///< sum of the ranks' exposed_transfer
  friend bool operator==(const TransferFigures&, const TransferFigures&) = default;
};

struct InstrTime {
  std::int64_t start = 0;  ///< when it took the lane: an op's wait for its inputs lies before it
  std::int64_t end = 0;
  friend bool operator==(const InstrTime&, const InstrTime&) = default;
};

/// What a rank holds right behind an instruction.
struct Held {
  std::int64_t bytes = 0;
  int stashes = 0;
  friend bool operator==(const Held&, const Held&) = default;
};

/// One message on the wire.
struct TransferTime {
  RankId from;
  RankId to;
  Value value;
  std::int64_t sent = 0;
  std::int64_t arrived = 0;
  std::int64_t bytes = 0;
  friend bool operator==(const TransferTime&, const TransferTime&) = default;
};

/// Figures of one step (definitions: DESIGN section 7).
struct SimResult {
  std::int64_t ticks_per_unit = 1;
  std::int64_t makespan = 0;  ///< first start to last end over all ranks; steps count where they take time
  std::int64_t period = 0;    ///< from a step's start to the next one's, where each rank goes on as soon as it can: the
                              ///< makespan where steps wait for the norm, which is a barrier; where all ranks validate
                              ///< behind their steps, as late as in the next warm-up, the longest of their own spans
                              ///< from the first op to the end of the steps
  std::int64_t bubble_max = 0;  ///< largest RankFigures::idle
  double bubble_ratio = 0;      ///< (makespan - mean busy) / makespan
  double bubble_c = 0;  ///< (C - mean busy) / C, C = longest of the ranks' own spans: start-up skew between ranks does
                        ///< not count, which is fair where no barrier follows (zero-bubble paper)
  std::vector<RankFigures> ranks;
  TransferFigures transfers;
  std::vector<std::int64_t> turns;            ///< lock step: duration of each turn
  std::vector<std::vector<InstrTime>> times;  ///< [rank][position], with Detail::kTimeline
  std::vector<std::vector<Held>> held;        ///< [rank][position], with Detail::kTimeline
  std::vector<TransferTime> messages;         ///< with Detail::kTimeline, in the order in which they were matched
  friend bool operator==(const SimResult&, const SimResult&) = default;
};

/// Times one step: replays the program's rows on in-order compute lanes with asynchronous transfers. Deterministic; the
/// time is integer, so equal means equal. Trusts the order of the rows but checks what it needs: an op whose inputs never
/// come, come twice, or lie on another rank ends the run.
///
/// A collective starts when its last member has entered and ends for all at once; without a cluster a gathered or
/// broadcast weight takes `latency` and reductions and norm take none. A validation waits for the norm and lets the steps
/// stand.
///
/// \errors kInvalidArgument: "sim.cost_shape", "sim.negative", "sim.buffers", "sim.pair_factor", "sim.too_large",
///         "sim.overflow" (times whose sum may pass 2^63); kInvalidSchedule: "sim.unverified" (a value is missing, is
///         elsewhere, or is made twice), "sim.deadlock", "sim.turns" (lock step with unequal numbers of turns)
/// \cost   linear in the instructions; memory linear in the values
/// \threads pure
Result<SimResult> simulate(const Program& program, const CostModel& costs, const SimOptions& options = {});

/// peak_activations of DESIGN section 7: stashes in micro-batches of a 1/p stage; empty where a stage is not a whole
/// number of layers, so that there is no such stage.
std::optional<double> in_microbatches(const Layout& layout, int stashes);

/// Most activation elements that each rank keeps for its backwards, in units of B T D (kept_elements of ir/recompute.h):
/// taken at F, given back at BW or W; a stash that is sent moves. What an R makes again lives until its backward only and
/// does not count. Needs no times: rows run in order.
std::vector<double> peak_elements(const Program& program);

/// Ops (rank, position) from the step's first to its last, each starting when the one before it, or a message of it,
/// lets it. Needs a result with Detail::kTimeline.
struct CriticalStep {
  RankId rank;
  int position = 0;
  friend bool operator==(const CriticalStep&, const CriticalStep&) = default;
};
std::vector<CriticalStep> critical_path(const Program& program, const SimResult& result);

}  // namespace plait
