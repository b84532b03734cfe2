#pragma once

#include "plait/verify/collectives.h"
#include "plait/verify/messages.h"

#include <cstdint>
#include <vector>

namespace plait::verifying {

/// A copy of a group's weight on a rank that is none of its homes, or beside the home's own: gathered, broadcast or
/// received whole. Its first reader waits for what brings it.
struct WeightCopy {
  MessageId arriving = kNoMessage;
  RunId gathering = kNoRun;
  std::uint32_t position = 0;  ///< where it was asked for
};

/// What a rank has of a parameter group at one point of its row.
struct GroupState {
  enum class Base : std::uint8_t { kNone, kHome, kShard };

  bool touched = false;
  // The weight.
  Base base = Base::kNone;
  bool weight_fault = false;  ///< already reported on this rank
  bool stepped = false;
  std::vector<WeightCopy> copies;  ///< oldest first; they are alike, and the oldest is read and freed first
  // The gradient.
  bool holds = false;      ///< a partial, its own or added
  bool reduced = false;    ///< all-reduced: nothing may be added behind it
  bool waited = true;      ///< the last reduction that was entered is waited for
  bool keeps_sum = false;  ///< its sum, or a shard of it, ends here
  int reductions = 0;      ///< that were entered
  bool gradient_fault = false;
  CollectiveKind reduction = CollectiveKind::kAllReduce;
  RunId run = kNoRun;
  std::uint32_t reduced_at = 0;
  std::uint32_t stepped_at = 0;
  std::int32_t own = 0;                   ///< contributions since the last GradAction
  std::uint32_t slot = UINT32_MAX;        ///< of the whole partial
  std::uint32_t shard_slot = UINT32_MAX;  ///< of the shard of the sum, where the group is sharded
  std::vector<MessageId> received;        ///< partials that no Add has taken yet

  [[nodiscard]] bool weight_ready() const { return base == Base::kHome || !copies.empty(); }
};

}  // namespace plait::verifying
