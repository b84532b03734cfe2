// Schedules in which weights travel or are sharded, over ranks, groups of ranks and rounds: one rank's loss, norm, gradients
// and updated weights in fp64, also with poisoned memory and a slow transport that reorders.

#include "plait/run/engine/delayed_transport.h"
#include "plait/run/engine/memory.h"

#include "tests/run/engine/engine_support.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

namespace plait {
namespace {

using namespace plait::testing;

constexpr int kLayers = 12;  // a multiple of all numbers of ranks
constexpr double kTolerance = 1e-10;
constexpr double kLearningRate = 0.5;

EngineOptions options_with(TransportWrapper wrap) {
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
Outcome train(const VerifiedProgram& program, TransportWrapper wrap) {
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
  outcome.gradients = engine->last_gradients();
  outcome.weights = weights_of(*engine);
  return outcome;
}

const Outcome& one_rank(int num_microbatches, HeadTying tying) {
  static std::map<std::pair<int, HeadTying>, Outcome> outcomes;
  const auto [at, is_new] = outcomes.try_emplace({num_microbatches, tying});
  if (is_new)
    at->second = train(
        *program_of("gpipe",
                    ScheduleShape{.ranks = 1, .microbatches = num_microbatches, .layers = kLayers, .tying = tying}),
        {});
  return at->second;
}

void expect_same(const Outcome& result, const Outcome& expected) {
  EXPECT_NEAR(result.loss, expected.loss, kTolerance * std::abs(expected.loss));
  EXPECT_NEAR(result.grad_norm, expected.grad_norm, kTolerance * expected.grad_norm);
  expect_equal(result.gradients, expected.gradients, kTolerance, "gradient");
  expect_equal(result.weights, expected.weights, kTolerance, "weight");
}

class WeightSchedules : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(WeightSchedules, EqualOneRankOverGroupsAndRounds) {
  const auto& [name, ranks] = GetParam();
  const ScheduleInfo& info = **find_schedule(name);
  int num_run = 0;
  for (int rounds = 1; rounds <= 3; ++rounds) {
    for (int groups = 0; groups <= ranks; ++groups) {
      for (const HeadTying tying : {HeadTying::kUntied, HeadTying::kTied}) {
        ScheduleShape shape{.ranks = ranks, .microbatches = rounds * ranks, .layers = kLayers, .tying = tying};
        if (groups > 0) shape.groups = groups;
        if (!info.supports(shape)) continue;
        SCOPED_TRACE(
            fmt::format("{} rounds, {} groups, {}", rounds, groups, tying == HeadTying::kTied ? "tied" : "untied"));
        const auto program = program_of(name, shape);
        ASSERT_TRUE(program) << program.error().message;
        expect_same(train(*program, {}), one_rank(rounds * ranks, tying));
        ++num_run;
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
  EXPECT_GE(num_run, 3);
}

TEST_P(WeightSchedules, EqualOneRankWithPoisonedMemoryAndASlowReorderingTransport) {
  const auto& [name, ranks] = GetParam();
  if (ranks > 4) return;  // threads on few cores: the delays add up
  ScheduleShape shape{.ranks = ranks, .microbatches = 2 * ranks, .layers = kLayers, .tying = HeadTying::kUntied};
  const ScheduleInfo& info = **find_schedule(name);
  const int groups = ranks % 2 == 0 ? 2 : ranks;
  shape.groups = groups;
  if (!info.supports(shape)) shape.groups.reset();
  const auto program = program_of(name, shape);
  ASSERT_TRUE(program) << program.error().message;
  set_freed_memory(FreedMemory::kFillWithNaN);
  constexpr Nanos kMost{1'000'000};
  const Outcome outcome = train(*program, delay_at_random(/*seed=*/7, kMost));
  set_freed_memory(FreedMemory::kLeaveAsIs);
  expect_same(outcome, one_rank(2 * ranks, HeadTying::kUntied));
}

INSTANTIATE_TEST_SUITE_P(All, WeightSchedules,
                         ::testing::Combine(::testing::Values("weipipe", "weipipe-naive", "wzb1-reconstructed",
                                                              "wzb2-reconstructed", "tawpipe", "fsdp", "zero1", "ddp"),
                                            ::testing::Values(2, 3, 4, 6)),
                         [](const auto& test) {
                           std::string name =
                               std::get<0>(test.param) + "_ranks_" + std::to_string(std::get<1>(test.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace plait
