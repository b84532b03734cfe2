#pragma once

#include <cstdint>

namespace plait {

enum class LrDecay : std::uint8_t { kConstant, kCosine };

/// Linear warm-up, then constant or half a cosine down to `min_lr`.
struct LrSchedule {
  double lr = 3e-3;
  double min_lr = 0;
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 1;  ///< where the cosine ends
  LrDecay decay = LrDecay::kCosine;
  friend bool operator==(const LrSchedule&, const LrSchedule&) = default;
};

/// Learning rate of the update with index `step_idx` (0, 1, ...): lr (i + 1) / warmup while i < warmup, then lr or
/// min_lr + (lr - min_lr) (1 + cos(pi (i - warmup) / (total - warmup))) / 2.
double learning_rate(const LrSchedule& schedule, std::int64_t step_idx);

}  // namespace plait
