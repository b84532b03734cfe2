#include "plait/run/train/lr_schedule.h"

#include <gmock/gmock.h>

#include <vector>

namespace plait {
namespace {

std::vector<double> rates(const LrSchedule& schedule, std::int64_t count) {
  std::vector<double> result;
  for (std::int64_t i = 0; i < count; ++i) result.push_back(learning_rate(schedule, i));
  return result;
}

TEST(LrSchedule, ConstantWithoutWarmup) {
  EXPECT_THAT(rates({.lr = 0.01, .total_steps = 4, .decay = LrDecay::kConstant}, 4), testing::Each(0.01));
}

TEST(LrSchedule, WarmupRisesLinearlyToTheFullRate) {
  EXPECT_THAT(rates({.lr = 8, .warmup_steps = 4, .total_steps = 6, .decay = LrDecay::kConstant}, 6),
              testing::ElementsAre(2, 4, 6, 8, 8, 8));
}

// (1 + cos(pi x)) / 2 at x = 0, 1/3, 1/2, 2/3, 1 is 1, 3/4, 1/2, 1/4, 0.
TEST(LrSchedule, CosineFallsToTheMinimum) {
  const LrSchedule schedule{.lr = 5, .min_lr = 1, .warmup_steps = 2, .total_steps = 8, .decay = LrDecay::kCosine};
  const std::vector<double> expected = {2.5, 5, 5, 1 + 4 * 0.9330127018922193, 4, 3, 2, 1 + 4 * 0.0669872981077807,
                                        1,   1};
  EXPECT_THAT(rates(schedule, 10), testing::Pointwise(testing::DoubleNear(1e-12), expected));
}

}  // namespace
}  // namespace plait
