#pragma once

#include "plait/ir/program.h"
#include "plait/verify/report.h"
#include "plait/verify/space.h"
#include "plait/verify/structure.h"

#include <cstdint>
#include <vector>

namespace plait::verifying {

using MessageId = std::uint32_t;
inline constexpr MessageId kNoMessage = UINT32_MAX;

/// The sends (or receives) of one kind of value between an ordered pair of ranks, in row order. Messages of one lane meet
/// in that order; activations and gradients between the same two ranks do not overtake each other's lane, because the
/// receives of V placements legitimately interleave them in another way than the sends.
struct Lane {
  std::int32_t from = 0;
  std::int32_t to = 0;
  ValueKind kind = ValueKind::kActivation;
  std::uint32_t begin = 0;  ///< of its cells in Messages::sends or receives
  std::uint32_t count = 0;
};

/// All sends and receives of a program and which of them meet. A message is the index of its send.
struct Messages {
  std::vector<Lane> out;                 ///< lanes as senders see them, by sender
  std::vector<Lane> in;                  ///< lanes as receivers see them, by receiver
  std::vector<std::uint32_t> out_begin;  ///< per rank: first of its lanes in `out`
  std::vector<std::uint32_t> in_begin;
  std::vector<Cell> sends;
  std::vector<Cell> receives;
  std::vector<std::uint32_t> out_of_in;  ///< per lane of `in`: its lane of `out`, kNoMessage if there is none
  std::vector<std::vector<MessageId>>
      remapped;                 ///< per lane of `in`: message of each receive, where it is not simply the next
  std::vector<bool> unmatched;  ///< per message, empty if all sends are received

  [[nodiscard]] const Lane& lane_of(MessageId message) const;
  [[nodiscard]] bool is_unmatched(MessageId message) const { return !unmatched.empty() && unmatched[message]; }
};

/// Slot of a lane in tables by peer and kind.
inline std::size_t lane_slot(RankId peer, ValueKind kind) {
  return peer.index() * 8 + static_cast<std::size_t>(kind);
}

/// Pairs every receive with its send, lane by lane, and reports what does not meet. Values of messages without a partner
/// become suspects.
Messages match_messages(const Space& space, const std::vector<Row>& rows, const Structure& structure, Report& report);

}  // namespace plait::verifying
