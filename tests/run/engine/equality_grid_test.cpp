// Every registered schedule against one rank, in fp64: loss, norm, gradients by name, and weights after a clipped step.

#include "tests/run/engine/engine_support.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <tuple>

namespace plait {
namespace {

using namespace plait::testing;

constexpr int kLayers = 9;  // no multiple of 2 or 4: stages of unequal size
constexpr double kTolerance = 1e-10;
constexpr double kLearningRate = 0.5;
constexpr std::int64_t kRows = 2;
constexpr std::int64_t kLength = 7;  // no multiple of the number of slices

EngineOptions grid_options() {
  return EngineOptions{.type = ComputeType::kFloat64,
                       .optimizer = {.kind = OptimizerKind::kSgd, .weight_decay = 0.1, .clip = 0.25},
                       .timeout_seconds = 60};
}

struct Outcome {
  double loss = 0;
  double grad_norm = 0;
  std::map<std::string, at::Tensor> gradients;
  std::map<std::string, at::Tensor> weights;
};

/// Two steps; gradients are those of the second, so that the first one's update counts too.
Outcome train(Engine& engine, int num_microbatches, Mask mask, StepResult& last) {
  Outcome outcome;
  for (std::uint64_t step = 0; step < 2; ++step) {
    auto result = engine.train_step(make_data(num_microbatches, kRows, kLength, 29, mask, 100 + step), kLearningRate);
    EXPECT_TRUE(result) << result.error().message;
    if (!result) return outcome;
    last = *std::move(result);
    outcome.loss += last.loss;
    outcome.grad_norm = last.grad_norm;
  }
  outcome.gradients = *engine.last_gradients();
  outcome.weights = weights_of(engine);
  return outcome;
}

const Outcome& one_rank(int num_microbatches, HeadTying tying, Mask mask) {
  static std::map<std::tuple<int, HeadTying, Mask>, Outcome> outcomes;
  const auto [at, is_new] = outcomes.try_emplace({num_microbatches, tying, mask});
  if (is_new) {
    const auto program = program_of(
        "gpipe", ScheduleShape{.ranks = 1, .microbatches = num_microbatches, .layers = kLayers, .tying = tying});
    EXPECT_TRUE(program) << program.error().message;
    const auto engine = make_engine(*program, tiny_config(kLayers, tying), grid_options());
    StepResult last;
    at->second = train(*engine, num_microbatches, mask, last);
  }
  return at->second;
}

class EqualityGrid : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(EqualityGrid, EqualsOneRank) {
  const auto& [name, ranks] = GetParam();
  const ScheduleInfo& info = **find_schedule(name);
  for (const int microbatches : {1, 2, 3, 4, 5, 6, 7, 8}) {
    for (const auto& [chunks, slices] :
         {std::pair<std::optional<int>, std::optional<int>>{}, {2, {}}, {{}, 2}, {2, 3}}) {
      for (const HeadTying tying : {HeadTying::kUntied, HeadTying::kTied}) {
        const ScheduleShape shape{.ranks = ranks,
                                  .microbatches = microbatches,
                                  .chunks = chunks,
                                  .slices = slices,
                                  .layers = kLayers,
                                  .tying = tying};
        if (!info.supports(shape)) continue;
        const auto mask = static_cast<Mask>((microbatches + ranks) % 3);
        const std::string what = fmt::format("{} ranks {} microbatches {} chunks {} slices {} {} mask {}", name, ranks,
                                             microbatches, chunks.value_or(0), slices.value_or(0),
                                             tying == HeadTying::kTied ? "tied" : "untied", static_cast<int>(mask));
        SCOPED_TRACE(what);
        const auto program = program_of(name, shape);
        ASSERT_TRUE(program) << program.error().message;
        if (program->program().layout.mode == Mode::kForward) continue;
        const auto engine = make_engine(*program, tiny_config(kLayers, tying), grid_options());
        ASSERT_NE(engine, nullptr);
        StepResult last;
        const Outcome outcome = train(*engine, microbatches, mask, last);
        const Outcome& expected = one_rank(microbatches, tying, mask);
        EXPECT_NEAR(outcome.loss, expected.loss, kTolerance * std::abs(expected.loss));
        EXPECT_NEAR(outcome.grad_norm, expected.grad_norm, kTolerance * expected.grad_norm);
        expect_equal(outcome.gradients, expected.gradients, kTolerance, "gradient");
        expect_equal(outcome.weights, expected.weights, kTolerance, "weight");
        const auto peaks = info.expect(shape).peak_activation_units;
        EXPECT_EQ(last.peak_stashes, peaks.value_or(last.peak_stashes));
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const ScheduleInfo* info : all_schedules()) names.emplace_back(info->name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(AllSchedules, EqualityGrid,
                         ::testing::Combine(::testing::ValuesIn(schedule_names()), ::testing::Values(1, 2, 3, 4)),
                         [](const auto& test) {
                           std::string name =
                               std::get<0>(test.param) + "_ranks_" + std::to_string(std::get<1>(test.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

/// Forward-only programs, and forwards on a training engine's weights, give the loss of one rank.
class ForwardGrid : public ::testing::TestWithParam<int> {};

TEST_P(ForwardGrid, EvaluationEqualsOneRank) {
  const int ranks = GetParam();
  const ModelConfig config = tiny_config(kLayers, HeadTying::kUntied);
  const auto data = make_data(5, kRows, kLength, 29, Mask::kUneven, 100);
  const auto forward_on = [&](int p) {
    return *program_of("forward", ScheduleShape{.ranks = p, .microbatches = 5, .layers = kLayers});
  };
  const auto alone = make_engine(forward_on(1), config, grid_options());
  const auto expected = alone->eval_step(forward_on(1), data);
  ASSERT_TRUE(expected) << expected.error().message;
  const auto training = make_engine(
      *program_of("1f1b", ScheduleShape{.ranks = ranks, .microbatches = 3, .layers = kLayers}), config, grid_options());
  const auto before = weights_of(*training);
  for (int repeat = 0; repeat < 2; ++repeat) {
    const auto result = training->eval_step(forward_on(ranks), data);
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_NEAR(result->loss_sum, expected->loss_sum, kTolerance * expected->loss_sum);
    EXPECT_EQ(result->valid_tokens, expected->valid_tokens);
  }
  expect_equal(weights_of(*training), before, 0, "weight");
  EXPECT_TRUE(training->train_step(make_data(3, kRows, kLength, 29, Mask::kNone, 1), 0.1));
}

INSTANTIATE_TEST_SUITE_P(Ranks, ForwardGrid, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace plait
