#include "plait/run/train/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace plait {

double learning_rate(const LrSchedule& schedule, std::int64_t step_idx) {
  if (step_idx < schedule.warmup_steps)
    return schedule.lr * static_cast<double>(step_idx + 1) / static_cast<double>(schedule.warmup_steps);
  if (schedule.decay == LrDecay::kConstant) return schedule.lr;
  const std::int64_t length = std::max<std::int64_t>(1, schedule.total_steps - schedule.warmup_steps);
  const double progress =
      std::min(1.0, static_cast<double>(step_idx - schedule.warmup_steps) / static_cast<double>(length));
  return schedule.min_lr + (schedule.lr - schedule.min_lr) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace plait
