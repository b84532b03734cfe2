#pragma once

#include "plait/ir/program.h"
#include "plait/verify/collectives.h"
#include "plait/verify/messages.h"
#include "plait/verify/report.h"
#include "plait/verify/space.h"
#include "plait/verify/structure.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace plait::verifying {

enum class EventKind : std::uint8_t {
  kSend,          ///< the send of a message is issued
  kPost,          ///< its receive is posted
  kAwaitArrival,  ///< its first reader waits for it
  kAwaitPosted,   ///< the wait of its send
  kEnter,         ///< a run of a collective is entered
  kAwaitRun,      ///< its result is waited for
  kGrad,          ///< a GradAction
};

/// What of an instruction concerns other ranks: 8 bytes, kind in the top bits.
struct Event {
  static constexpr std::uint32_t kIdBits = 29;
  static constexpr std::uint32_t kMostIds = 1u << kIdBits;
  std::uint32_t code = 0;
  std::uint32_t position = 0;  ///< in the rank's row
  static Event of(EventKind kind, std::uint32_t id, std::size_t position) {
    return Event{.code = static_cast<std::uint32_t>(kind) << kIdBits | id,
                 .position = static_cast<std::uint32_t>(position)};
  }
  [[nodiscard]] EventKind kind() const { return static_cast<EventKind>(code >> kIdBits); }
  [[nodiscard]] std::uint32_t id() const { return code & (kMostIds - 1); }
};

/// How a rank's partial gradient of a group moves. The replay counts contributions; since values are linear and every op
/// runs once, a sum is complete exactly if the count is.
struct GradAction {
  enum class Kind : std::uint8_t {
    kGive,    ///< into message `id`
    kTake,    ///< out of message `id`
    kReduce,  ///< into run `id`
    kResult,  ///< out of run `id`
    kStep,    ///< consumed by the step
  };
  Kind kind = Kind::kGive;
  bool reduced = false;  ///< kStep: the rank entered a reduction of it
  GroupId group;
  std::uint32_t slot = 0;  ///< the rank's partial of the group
  std::int32_t own = 0;    ///< the rank's own contributions since its last action
  std::uint32_t id = 0;
};

/// Transfers that a rank posts together.
struct TracedBatch {
  std::uint32_t rank = 0;
  std::uint32_t position = 0;
};

struct Trace {
  std::vector<Event> events;
  std::vector<std::size_t> begin;  ///< per rank, one more at the end
  std::vector<GradAction> grads;
  std::uint32_t num_slots = 0;
  std::vector<TracedBatch> batches;
  std::vector<std::uint32_t> batch_of_send;  ///< per message, batch + 1 or 0; empty where no batch stands
  std::vector<std::uint32_t> batch_of_receive;
  [[nodiscard]] bool in_batch(MessageId message) const {
    return !batches.empty() && (batch_of_send[message] != 0 || batch_of_receive[message] != 0);
  }
};

/// Follows the values each rank holds along its row: reads before writes, locality, waits, gradients, steps. Needs no
/// other rank: what a row holds is decided by its own order. What concerns others is left as events for the replay.
Trace trace_rows(const Space& space, const std::vector<Row>& rows, const Structure& structure, const Messages& messages,
                 const Collectives& collectives, const std::optional<std::vector<int>>& activation_limit,
                 Report& report);

}  // namespace plait::verifying
