#pragma once

#include "tests/run/engine/engine_support.h"
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>

/// Two fp64 steps of a schedule, held to one rank: loss, norm, gradients and updated weights.
namespace plait::testing {

inline constexpr int kLayers = 12;  // a multiple of all numbers of ranks
inline constexpr double kTolerance = 1e-10;
inline constexpr double kLearningRate = 0.5;

inline EngineOptions options_with(TransportWrapper wrap) {
  EngineOptions options{.type = ComputeType::kFloat64,
                        .optimizer = {.kind = OptimizerKind::kSgd, .weight_decay = 0.1, .clip = 0.25},
                        .timeout_seconds = 60};
  options.wrap_transport = std::move(wrap);
  return options;
}

struct Outcome {
  double loss = 0;
  double grad_norm = 0;
  std::map<std::string, at::Tensor> gradients;
  std::map<std::string, at::Tensor> weights;
};

/// Two steps; gradients are those of the second, so that the first one's update counts too.
inline Outcome train(const VerifiedProgram& program, TransportWrapper wrap) {
  const Layout& layout = program.program().layout;
  const auto engine = make_engine(program, tiny_config(layout.num_layers, layout.tying), options_with(std::move(wrap)));
  Outcome outcome;
  if (engine == nullptr) return outcome;
  for (std::uint64_t step = 0; step < 2; ++step) {
    const auto result =
        engine->train_step(make_data(layout.num_microbatches, 2, 5, 29, Mask::kUneven, 100 + step), kLearningRate);
    EXPECT_TRUE(result) << result.error().message;
    if (!result) return outcome;
    outcome.loss += result->loss;
    outcome.grad_norm = result->grad_norm;
  }
  outcome.gradients = *engine->last_gradients();
  outcome.weights = weights_of(*engine);
  return outcome;
}

inline const Outcome& one_rank(int num_microbatches, HeadTying tying) {
  static std::map<std::pair<int, HeadTying>, Outcome> outcomes;
  const auto [at, is_new] = outcomes.try_emplace({num_microbatches, tying});
  if (is_new)
    at->second = train(
        *program_of("gpipe",
                    ScheduleShape{.ranks = 1, .microbatches = num_microbatches, .layers = kLayers, .tying = tying}),
        {});
  return at->second;
}

inline void expect_same(const Outcome& result, const Outcome& expected) {
  EXPECT_NEAR(result.loss, expected.loss, kTolerance * std::abs(expected.loss));
  EXPECT_NEAR(result.grad_norm, expected.grad_norm, kTolerance * expected.grad_norm);
  expect_equal(result.gradients, expected.gradients, kTolerance, "gradient");
  expect_equal(result.weights, expected.weights, kTolerance, "weight");
}

}  // namespace plait::testing
