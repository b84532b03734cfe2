// Losses and norms that stay on the rank's device until the end of the step, here on the CPU: the same training.

#include "engine_support.h"
#include "poisoned_kernels.h"
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>

namespace plait::testing {
namespace {

constexpr std::int64_t kBadToken = 28;  // the last of the vocabulary
constexpr double kLearningRate = 0.05;

EngineOptions options_with(HostReads reads, OptimizerKind kind) {
  return {.optimizer = {.kind = kind, .clip = 0.25}, .placement = {.reads = reads}};
}

class LateReads : public ::testing::TestWithParam<std::tuple<std::string, OptimizerKind>> {};

TEST_P(LateReads, TrainAsReadsAtOnce) {
  const auto& [schedule, kind] = GetParam();
  const auto program = program_of(schedule, {.ranks = 4, .microbatches = 8, .layers = 8});
  ASSERT_TRUE(program) << program.error().message;
  const ModelConfig config = tiny_config(8, HeadTying::kUntied);
  const auto late = make_engine(*program, config, options_with(HostReads::kAtEndOfStep, kind));
  const auto at_once = make_engine(*program, config, options_with(HostReads::kAtOnce, kind));
  ASSERT_TRUE(late && at_once);
  for (std::uint64_t step = 0; step < 3; ++step) {
    const auto data = make_data(8, 2, 9, kBadToken, Mask::kUneven, 10 + step);
    const auto result = late->train_step(data, kLearningRate);
    const auto expected = at_once->train_step(data, kLearningRate);
    ASSERT_TRUE(result) << result.error().message;
    ASSERT_TRUE(expected) << expected.error().message;
    EXPECT_NEAR(result->loss, expected->loss, 1e-5 * expected->loss) << step;
    EXPECT_NEAR(result->grad_norm, expected->grad_norm, 1e-5 * expected->grad_norm) << step;
    EXPECT_GT(result->grad_norm, 0.25) << "nothing is clipped";
    EXPECT_EQ(result->not_finite, "");
    EXPECT_TRUE(result->updated);
  }
  expect_equal(weights_of(*late), weights_of(*at_once), 1e-4, schedule);
  expect_equal(*late->last_gradients(), *at_once->last_gradients(), 1e-4, schedule);
}

TEST_P(LateReads, WhatIsNotFiniteUpdatesNothing) {
  const auto& [schedule, kind] = GetParam();
  const auto program = program_of(schedule, {.ranks = 4, .microbatches = 8, .layers = 8});
  ASSERT_TRUE(program) << program.error().message;
  const ModelConfig config = tiny_config(8, HeadTying::kUntied);
  for (const Spoilt spoilt : {Spoilt::kLoss, Spoilt::kGradient}) {
    EngineOptions options = options_with(HostReads::kAtEndOfStep, kind);
    options.kernels = poisoned_kernels(kBadToken, spoilt);
    const auto engine = make_engine(*program, config, options);
    options.placement.reads = HostReads::kAtOnce;
    const auto at_once = make_engine(*program, config, options);
    ASSERT_TRUE(engine && at_once);
    const auto good = make_data(8, 2, 9, kBadToken, Mask::kNone, 1);
    auto bad = make_data(8, 2, 9, kBadToken, Mask::kNone, 2);
    bad[1].tokens.data_ptr<std::int64_t>()[3] = kBadToken;
    ASSERT_TRUE(engine->train_step(good, kLearningRate));
    ASSERT_TRUE(at_once->train_step(good, kLearningRate));
    const auto before = engine->save();
    ASSERT_TRUE(before);
    std::map<std::string, ParameterState> copies;
    for (const auto& [name, state] : *before) {
      copies[name].master = state.master.clone();
      for (const auto& [moment, tensor] : state.moments) copies[name].moments[moment] = tensor.clone();
    }
    const auto result = engine->train_step(bad, kLearningRate);
    const auto expected = at_once->train_step(bad, kLearningRate);
    ASSERT_TRUE(result && expected);
    EXPECT_FALSE(result->updated);
    EXPECT_FALSE(std::isfinite(result->grad_norm));
    EXPECT_EQ(result->not_finite, expected->not_finite);
    const auto after = engine->save();
    ASSERT_TRUE(after);
    for (const auto& [name, state] : copies) {
      EXPECT_TRUE(at::equal(after->at(name).master, state.master)) << name;
      for (const auto& [moment, tensor] : state.moments)
        EXPECT_TRUE(at::equal(after->at(name).moments.at(moment), tensor)) << name << moment;
    }
    // The step that was refused does not count either.
    const auto next = engine->train_step(good, kLearningRate);
    const auto next_expected = at_once->train_step(good, kLearningRate);
    ASSERT_TRUE(next && next_expected);
    EXPECT_NEAR(next->loss, next_expected->loss, 1e-5 * next_expected->loss);
    expect_equal(weights_of(*engine), weights_of(*at_once), 1e-4, schedule);
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, LateReads,
                         ::testing::Combine(::testing::Values("1f1b", "zb-h1", "dualpipe", "fsdp"),
                                            ::testing::Values(OptimizerKind::kAdamW, OptimizerKind::kSgd)));

}  // namespace
}  // namespace plait::testing
