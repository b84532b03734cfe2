#pragma once

#include "plait/verify/collectives.h"
#include "plait/verify/messages.h"

#include <cstdint>
#include <vector>

namespace plait::verifying {

/// What a rank has of a parameter group at one point of its row.
struct GroupState {
  enum class Base : std::uint8_t { kNone, kHome, kShard };

  bool touched = false;
  // The weight.
  Base base = Base::kNone;
  bool copy = false;          ///< gathered, broadcast or received whole
  bool weight_fault = false;  ///< already reported on this rank
  bool stepped = false;
  MessageId arriving = kNoMessage;  ///< the copy's message, until the first reader
  RunId gathering = kNoRun;         ///< the copy's run, until the first reader
  std::uint32_t copied_at = 0;
  // The gradient.
  bool holds = false;      ///< a partial, its own or added
  bool reduced = false;    ///< a reduction was entered
  bool waited = false;     ///< and waited for
  bool keeps_sum = false;  ///< the sum, or a shard of it, ends here
  bool gradient_fault = false;
  CollectiveKind reduction = CollectiveKind::kAllReduce;
  RunId run = kNoRun;
  std::uint32_t reduced_at = 0;
  std::uint32_t stepped_at = 0;
  std::int32_t own = 0;  ///< contributions since the last GradAction
  std::uint32_t slot = UINT32_MAX;
  std::vector<MessageId> received;  ///< partials that no Add has taken yet

  [[nodiscard]] bool weight_ready() const { return base == Base::kHome || copy; }
};

}  // namespace plait::verifying
