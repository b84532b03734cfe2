#pragma once

#include "plait/run/engine/binding.h"
#include "plait/run/engine/transport.h"

#include <atomic>
#include <cstdint>

namespace plait {

/// Where a rank is and what it waits for right now, readable from other ranks: who is silent is found by following these.
struct alignas(64) WaitState {
  std::atomic<std::int32_t> position = 0;      ///< of the instruction that runs
  std::atomic<std::int32_t> peer = kAbsent;    ///< that it waits for
  std::atomic<TransferId> transfer = kAbsent;  ///< that should arrive; none where it waits for something else
  std::atomic<std::int64_t> since = 0;         ///< Clock ticks
};

}  // namespace plait
