// Programs in which weights travel, gradients are summed in other ways than at one home, and edges bypass stages: against
// one rank, in fp64; with slow transports that reorder; with freed memory full of NaN.

#include "plait/ir/text.h"
#include "plait/run/engine/delayed_transport.h"
#include "plait/run/engine/memory.h"

#include "tests/run/engine/engine_support.h"
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace plait {
namespace {

using namespace plait::testing;
namespace fs = std::filesystem;

constexpr double kTolerance = 1e-10;
constexpr double kLearningRate = 0.5;
constexpr int kSteps = 2;

Program read_program(const fs::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  auto parsed = parse_text(text.str(), path.filename().string());
  EXPECT_TRUE(parsed) << parsed.error().message;
  if (Program* program = std::get_if<Program>(&*parsed)) return std::move(*program);
  auto lowered = lower(std::get<Schedule>(*parsed));
  EXPECT_TRUE(lowered) << path << ": " << lowered.error().message;
  return *std::move(lowered);
}

VerifiedProgram proved(const fs::path& path) {
  auto program = prove(read_program(path));
  EXPECT_TRUE(program) << path << ": " << program.error().message;
  return *std::move(program);
}

/// All programs of a folder, by name. Those in tests/error/sound are what the broken ones of the verifier's tests are made of.
std::vector<fs::path> programs() {
  std::vector<fs::path> paths;
  for (const char* folder : {"tests/run/engine/programs", "tests/error/sound"})
    for (const auto& entry : fs::directory_iterator(fs::path(PLAIT_SOURCE_DIR) / folder)) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

EngineOptions options_of(ComputeType type, OptimizerKind optimizer, TransportWrapper wrap = {}) {
  EngineOptions options{
      .type = type, .optimizer = {.kind = optimizer, .weight_decay = 0.1, .clip = 0.25}, .timeout_seconds = 60};
  options.wrap_transport = std::move(wrap);
  return options;
}

struct Outcome {
  double loss = 0;
  double grad_norm = 0;
  std::map<std::string, at::Tensor> gradients;
  std::map<std::string, ParameterState> state;
};

/// Two steps; gradients are those of the second, so that the first one's update counts too.
Outcome train(const VerifiedProgram& program, const EngineOptions& options) {
  const Layout& layout = program.program().layout;
  const auto engine = make_engine(program, tiny_config(layout.num_layers, layout.tying), options);
  Outcome outcome;
  if (engine == nullptr) return outcome;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    const auto result =
        engine->train_step(make_data(layout.num_microbatches, 2, 7, 29, Mask::kUneven, 100 + step), kLearningRate);
    EXPECT_TRUE(result) << result.error().message;
    if (!result) return outcome;
    outcome.loss += result->loss;
    outcome.grad_norm = result->grad_norm;
  }
  outcome.gradients = *engine->last_gradients();
  outcome.state = *engine->save();
  return outcome;
}

VerifiedProgram one_rank(const Layout& layout) {
  return *program_of(
      "gpipe",
      ScheduleShape{
          .ranks = 1, .microbatches = layout.num_microbatches, .layers = layout.num_layers, .tying = layout.tying});
}

void expect_same(const Outcome& result, const Outcome& expected, double tolerance) {
  EXPECT_NEAR(result.loss, expected.loss, tolerance * std::abs(expected.loss));
  EXPECT_NEAR(result.grad_norm, expected.grad_norm, tolerance * expected.grad_norm);
  expect_equal(result.gradients, expected.gradients, tolerance, "gradient");
  ASSERT_EQ(result.state.size(), expected.state.size());
  for (const auto& [name, state] : expected.state) {
    ASSERT_TRUE(result.state.contains(name)) << name;
    const ParameterState& other = result.state.at(name);
    EXPECT_LE(difference(other.master, state.master), tolerance) << "weight " << name;
    expect_equal(other.moments, state.moments, tolerance, "moment of " + name);
  }
}

/// Freed memory is full of NaN while this lives.
struct PoisonedMemory {
  PoisonedMemory() { set_freed_memory(FreedMemory::kFillWithNaN); }
  ~PoisonedMemory() { set_freed_memory(FreedMemory::kLeaveAsIs); }
  PoisonedMemory(const PoisonedMemory&) = delete;
  PoisonedMemory& operator=(const PoisonedMemory&) = delete;
};

class Weights : public ::testing::TestWithParam<fs::path> {};

TEST_P(Weights, EqualOneRank) {
  const VerifiedProgram program = proved(GetParam());
  if (program.program().layout.mode == Mode::kForward) return;
  const EngineOptions options = options_of(ComputeType::kFloat64, OptimizerKind::kSgd);
  expect_same(train(program, options), train(one_rank(program.program().layout), options), kTolerance);
}

TEST_P(Weights, AreTheSameBitsWithPoisonedMemoryAndASlowReorderingTransport) {
  const VerifiedProgram program = proved(GetParam());
  if (program.program().layout.mode == Mode::kForward) return;
  const Outcome expected = train(program, options_of(ComputeType::kFloat64, OptimizerKind::kSgd));
  const PoisonedMemory poisoned;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    constexpr Nanos kMost{3'000'000};
    expect_same(train(program, options_of(ComputeType::kFloat64, OptimizerKind::kSgd, delay_at_random(seed, kMost))),
                expected, 0);
  }
}

TEST_P(Weights, MomentsAndMixedTypesFollow) {
  const VerifiedProgram program = proved(GetParam());
  if (program.program().layout.mode == Mode::kForward) return;
  const VerifiedProgram alone = one_rank(program.program().layout);
  const EngineOptions fp64 = options_of(ComputeType::kFloat64, OptimizerKind::kAdamW);
  expect_same(train(program, fp64), train(alone, fp64), kTolerance);
  // The same sums in fp32 of the same numbers of 8 bits, in another order.
  const EngineOptions bf16 = options_of(ComputeType::kBFloat16, OptimizerKind::kSgd);
  const Outcome result = train(program, bf16);
  const Outcome expected = train(alone, bf16);
  EXPECT_NEAR(result.loss, expected.loss, 1e-3 * expected.loss);
  EXPECT_NEAR(result.grad_norm, expected.grad_norm, 1e-2 * expected.grad_norm);
}

INSTANTIATE_TEST_SUITE_P(Programs, Weights, ::testing::ValuesIn(programs()), [](const auto& test) {
  return test.param.parent_path().filename().string() + "_" + test.param.stem().string();
});

/// What shards save is whole: another layout goes on from it as if it had made it.
TEST(Weights, StateOfShardsIsInterchangeable) {
  const VerifiedProgram shards = proved(fs::path(PLAIT_SOURCE_DIR) / "tests/run/engine/programs/shards.plait");
  const Layout& layout = shards.program().layout;
  const ModelConfig config = tiny_config(layout.num_layers, layout.tying);
  const EngineOptions options = options_of(ComputeType::kFloat64, OptimizerKind::kAdamW);
  const auto data = make_data(layout.num_microbatches, 2, 7, 29, Mask::kNone, 5);
  const auto sharded = make_engine(shards, config, options);
  ASSERT_TRUE(sharded->train_step(data, kLearningRate));
  const auto alone = make_engine(one_rank(layout), config, options, /*seed=*/9);
  ASSERT_TRUE(alone->load(*sharded->save(), 1));
  const auto back = make_engine(shards, config, options, /*seed=*/10);
  ASSERT_TRUE(back->load(*alone->save(), 1));
  const auto expected = sharded->train_step(data, kLearningRate);
  for (Engine* engine : {alone.get(), back.get()}) {
    const auto result = engine->train_step(data, kLearningRate);
    ASSERT_TRUE(result && expected);
    EXPECT_NEAR(result->loss, expected->loss, kTolerance * expected->loss);
    expect_equal(weights_of(*engine), weights_of(*sharded), kTolerance, "weight");
  }
  for (const auto& [name, weight] : weights_of(*sharded))
    EXPECT_TRUE(at::equal(weight, weights_of(*back).at(name))) << name;
}

/// Initial weights of shards are those of the whole.
TEST(Weights, ShardsStartAsTheWhole) {
  const VerifiedProgram shards = proved(fs::path(PLAIT_SOURCE_DIR) / "tests/run/engine/programs/shards.plait");
  const Layout& layout = shards.program().layout;
  const ModelConfig config = tiny_config(layout.num_layers, layout.tying);
  const EngineOptions options = options_of(ComputeType::kFloat64, OptimizerKind::kSgd);
  const auto sharded = weights_of(*make_engine(shards, config, options));
  for (const auto& [name, weight] : weights_of(*make_engine(one_rank(layout), config, options)))
    EXPECT_TRUE(at::equal(sharded.at(name), weight)) << name;
}

}  // namespace
}  // namespace plait
