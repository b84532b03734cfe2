#pragma once

#include <cstdint>
#include <vector>

namespace plait {

/// Who owns a rank's bytes.
struct MemoryOwners {
  std::int64_t weights = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t stash = 0;         ///< activations kept for the backward
  std::int64_t logits = 0;        ///< kept for the backward of the head
  std::int64_t weight_stash = 0;  ///< kept from B to W
  std::int64_t buffers = 0;       ///< activations and gradients that wait for their reader or for the wire
  std::int64_t transient = 0;     ///< while the op at the position runs
  std::int64_t fixed = 0;
  [[nodiscard]] std::int64_t total() const {
    return weights + gradients + optimizer + stash + logits + weight_stash + buffers + transient + fixed;
  }
  friend bool operator==(const MemoryOwners&, const MemoryOwners&) = default;
};

/// What a rank holds at each instruction of its row, where that is known without times.
struct RankMemory {
  std::vector<MemoryOwners> during;  ///< at the highest moment while the instruction runs
  std::vector<std::int64_t> behind;  ///< bytes when it is done
  friend bool operator==(const RankMemory&, const RankMemory&) = default;
};

}  // namespace plait
