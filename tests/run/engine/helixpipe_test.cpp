// Card of HelixPipe, items 8 and 9: numbers of a trained step, and the bytes that its messages carry.

#include "tests/run/engine/engine_support.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <tuple>

namespace plait {
namespace {

using namespace plait::testing;

constexpr int kLayers = 4;
constexpr double kTolerance = 1e-10;
constexpr double kLearningRate = 0.5;

const EngineOptions kOptions{.type = ComputeType::kFloat64,
                             .optimizer = {.kind = OptimizerKind::kSgd, .weight_decay = 0.1, .clip = 0.25}};

struct Outcome {
  StepResult last;
  std::map<std::string, at::Tensor> gradients;
  std::map<std::string, at::Tensor> weights;
};

/// Two steps; gradients are those of the second, so that the first one's update counts too.
Outcome train(const VerifiedProgram& program, const ModelConfig& config) {
  Outcome outcome;
  const auto engine = make_engine(program, config, kOptions);
  if (engine == nullptr) return outcome;
  for (std::uint64_t step = 0; step < 2; ++step) {
    auto result = engine->train_step(
        make_data(program.program().layout.num_microbatches, 2, 6, 29, Mask::kUneven, 100 + step), kLearningRate);
    EXPECT_TRUE(result) << result.error().message;
    if (!result) return outcome;
    outcome.last = *std::move(result);
  }
  outcome.gradients = *engine->last_gradients();
  outcome.weights = weights_of(*engine);
  return outcome;
}

class HelixPipe : public ::testing::TestWithParam<std::tuple<ModelFamily, HeadTying, int>> {
 protected:
  void SetUp() override {
    const auto [family, tying, ranks] = GetParam();
    config_ = family_config(family, kLayers, tying);
    ranks_ = ranks;
  }

  void expect_one_rank(ScheduleShape shape) {
    shape.ranks = ranks_;
    shape.layers = kLayers;
    shape.tying = std::get<HeadTying>(GetParam());
    const auto program = program_of("helixpipe", shape);
    ASSERT_TRUE(program) << program.error().message;
    const Outcome result = train(*program, config_);
    const Outcome& expected = one_rank(*shape.microbatches);
    EXPECT_NEAR(result.last.loss, expected.last.loss, kTolerance * expected.last.loss);
    EXPECT_NEAR(result.last.grad_norm, expected.last.grad_norm, kTolerance * expected.last.grad_norm);
    expect_equal(result.gradients, expected.gradients, kTolerance, "gradient");
    expect_equal(result.weights, expected.weights, kTolerance, "weight");
  }

 private:
  const Outcome& one_rank(int num_microbatches) {
    const auto [at, is_new] = alone_.try_emplace(num_microbatches);
    if (is_new)
      at->second = train(*program_of("gpipe", ScheduleShape{.ranks = 1,
                                                            .microbatches = num_microbatches,
                                                            .layers = kLayers,
                                                            .tying = std::get<HeadTying>(GetParam())}),
                         config_);
    return at->second;
  }

  ModelConfig config_;
  int ranks_ = 1;
  std::map<int, Outcome> alone_;
};

TEST_P(HelixPipe, EqualsOneRank) {
  const int p = std::get<int>(GetParam());
  for (const int folds : {1, 2})
    for (const int repeats : {1, 2})
      for (const QkvPlace qkv : {QkvPlace::kPre, QkvPlace::kAttn})
        for (const Recompute recompute : {Recompute::kNone, Recompute::kNoAttention}) {
          SCOPED_TRACE(fmt::format("{} folds, {} repeats, projection {}, {}", folds, repeats,
                                   qkv == QkvPlace::kPre ? "before" : "beside",
                                   recompute == Recompute::kNone ? "all kept" : "recomputed"));
          expect_one_rank({.microbatches = repeats * folds * p, .folds = folds, .recompute = recompute, .qkv = qkv});
          if (HasFailure()) return;
        }
}

TEST_P(HelixPipe, EqualsOneRankWithTheSavings) {
  const int p = std::get<int>(GetParam());
  for (const QkvPlace qkv : {QkvPlace::kPre, QkvPlace::kAttn})
    for (const WeightTrips weights : {WeightTrips::kPerMicrobatch, WeightTrips::kOnce}) {
      if (qkv == QkvPlace::kPre && weights == WeightTrips::kOnce) continue;
      SCOPED_TRACE(fmt::format("projection {}, weights {}", qkv == QkvPlace::kPre ? "before" : "beside",
                               weights == WeightTrips::kOnce ? "once" : "with every micro-batch"));
      expect_one_rank({.microbatches = 4 * p,
                       .folds = 2,
                       .recompute = Recompute::kNoAttention,
                       .qkv = qkv,
                       .residual = ResidualPath::kDirect,
                       .weights = weights});
      if (HasFailure()) return;
    }
}

INSTANTIATE_TEST_SUITE_P(
    All, HelixPipe,
    ::testing::Combine(::testing::Values(ModelFamily::kLlama, ModelFamily::kQwen2, ModelFamily::kGpt2),
                       ::testing::Values(HeadTying::kUntied, HeadTying::kTied), ::testing::Values(2, 4)),
    [](const auto& test) {
      return fmt::format("{}_{}_ranks_{}", family_name(std::get<0>(test.param)),
                         std::get<1>(test.param) == HeadTying::kTied ? "tied" : "untied", std::get<2>(test.param));
    });

/// What every message of one kind carries, in elements, and how many there are.
struct Traffic {
  std::int64_t elements = 0;
  int count = 0;
  friend bool operator==(const Traffic&, const Traffic&) = default;
};
std::ostream& operator<<(std::ostream& out, const Traffic& traffic) {
  return out << traffic.count << " of " << traffic.elements;
}
using Traffics = std::map<std::string, Traffic>;

/// By what moved: "activation 0>1" stands for all edges from a module to attention, "activation 1>2" for those from attention to a module,
/// "activation 0>2" for direct residuals; "grad" the same backwards.
Traffics traffic(const Program& program, const StepResult& step) {
  Traffics found;
  for (std::size_t rank = 0; rank < program.rows.size(); ++rank) {
    for (const TraceEvent& event : step.trace[rank]) {
      const auto* send = std::get_if<Send>(&program.rows[rank][static_cast<std::size_t>(event.position)]);
      if (send == nullptr) continue;
      std::string what = std::string(to_string(send->value.kind()));
      if (send->value.is_edge()) {
        const Edge& edge = program.layout.edges[send->value.edge().index()];
        const int first = edge.producer.value() % 2;
        what += fmt::format(" {}>{}", first, first + edge.consumer.value() - edge.producer.value());
      }
      const std::int64_t elements = event.moved.value() / static_cast<std::int64_t>(sizeof(double));
      Traffic& entry = found.try_emplace(what, Traffic{.elements = elements}).first->second;
      EXPECT_EQ(entry.elements, elements) << what;
      ++entry.count;
    }
  }
  return found;
}

/// A Llama without grouped heads, as in the card's figures: hidden size 16, no bias.
ModelConfig card_config() {
  ModelConfig config = tiny_config(kLayers, HeadTying::kUntied);
  config.num_kv_heads = config.num_heads;
  return config;
}

struct Step {
  Traffics traffic;
  std::int64_t elements = 0;
};

Step step_of(const ScheduleShape& shape, std::int64_t rows, std::int64_t length) {
  Step step;
  const auto program = program_of("helixpipe", shape);
  EXPECT_TRUE(program) << program.error().message;
  const auto engine = make_engine(*program, card_config(), kOptions);
  const auto result =
      engine->train_step(make_data(*shape.microbatches, rows, length, 29, Mask::kNone, 1), kLearningRate);
  EXPECT_TRUE(result) << result.error().message;
  step.traffic = traffic(program->program(), *result);
  for (const auto& [what, moved] : step.traffic) step.elements += moved.elements * moved.count;
  return step;
}

constexpr std::int64_t kHidden = 16;
constexpr std::int64_t kRows = 2;
constexpr std::int64_t kLength = 12;  // rows x length is 1.5 hidden: where both variants ship the same
constexpr std::int64_t kBsh = kRows * kLength * kHidden;
constexpr std::int64_t kQkvWeights = 3 * kHidden * kHidden;

TEST(HelixPipeTraffic, IsTheCardsPerBoundary) {
  constexpr int kRanks = 4;
  constexpr int kMicrobatches = 8;
  constexpr int kRemote = kMicrobatches * kLayers * (kRanks - 1) / kRanks;  // all offsets but one
  ScheduleShape shape{
      .ranks = kRanks, .microbatches = kMicrobatches, .layers = kLayers, .folds = 2, .qkv = QkvPlace::kPre};
  EXPECT_EQ(step_of(shape, kRows, kLength).traffic, (Traffics{{"activation 0>1", {4 * kBsh, kRemote}},
                                                              {"activation 1>2", {2 * kBsh, kRemote}},
                                                              {"gradient 0>1", {4 * kBsh, kRemote}},
                                                              {"gradient 1>2", {2 * kBsh, kRemote}}}));
  shape.qkv = QkvPlace::kAttn;
  EXPECT_EQ(step_of(shape, kRows, kLength).traffic, (Traffics{{"activation 0>1", {2 * kBsh, kRemote}},
                                                              {"activation 1>2", {2 * kBsh, kRemote}},
                                                              {"gradient 0>1", {2 * kBsh, kRemote}},
                                                              {"gradient 1>2", {2 * kBsh, kRemote}},
                                                              {"weight", {kQkvWeights, kRemote}},
                                                              {"wgrad", {kQkvWeights, kRemote}}}));
  // The savings: one trip of the weights a layer and attention rank; a residual that goes to the next module's rank.
  shape.weights = WeightTrips::kOnce;
  shape.residual = ResidualPath::kDirect;
  constexpr int kTrips = kLayers * (kRanks - 1);
  constexpr int kResiduals = kMicrobatches * kLayers;
  EXPECT_EQ(step_of(shape, kRows, kLength).traffic, (Traffics{{"activation 0>1", {kBsh, kRemote}},
                                                              {"activation 0>2", {kBsh, kResiduals}},
                                                              {"activation 1>2", {kBsh, kRemote}},
                                                              {"gradient 0>1", {kBsh, kRemote}},
                                                              {"gradient 0>2", {kBsh, kResiduals}},
                                                              {"gradient 1>2", {kBsh, kRemote}},
                                                              {"weight", {kQkvWeights, kTrips}},
                                                              {"wgrad", {kQkvWeights, kTrips}}}));
}

// All forwards come before all backwards, so what a micro-batch keeps is there m times.
TEST(HelixPipeMemory, PeakIsLinearInMicrobatches) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kNoAttention}) {
    std::vector<std::vector<Bytes>> peaks;
    for (const int microbatches : {8, 16, 24}) {
      const auto program =
          program_of("helixpipe",
                     {.ranks = 2, .microbatches = microbatches, .layers = kLayers, .folds = 2, .recompute = recompute});
      ASSERT_TRUE(program) << program.error().message;
      const auto engine = make_engine(*program, card_config(), kOptions);
      const auto result =
          engine->train_step(make_data(microbatches, kRows, kLength, 29, Mask::kNone, 1), kLearningRate);
      ASSERT_TRUE(result) << result.error().message;
      peaks.push_back(result->peak_bytes);
    }
    for (std::size_t rank = 0; rank < 2; ++rank) {
      EXPECT_GT(peaks[1][rank], peaks[0][rank]);
      EXPECT_EQ(peaks[2][rank] - peaks[1][rank], peaks[1][rank] - peaks[0][rank]) << "rank " << rank;
    }
  }
}

TEST(HelixPipeTraffic, BreaksEvenAtOneAndAHalfHiddenSizesOfTokens) {
  const auto elements = [](QkvPlace qkv, std::int64_t length) {
    return step_of({.ranks = 2, .microbatches = 4, .layers = kLayers, .folds = 2, .qkv = qkv}, kRows, length).elements;
  };
  EXPECT_LT(elements(QkvPlace::kPre, kLength - 1), elements(QkvPlace::kAttn, kLength - 1));
  EXPECT_EQ(elements(QkvPlace::kPre, kLength), elements(QkvPlace::kAttn, kLength));
  EXPECT_GT(elements(QkvPlace::kPre, kLength + 1), elements(QkvPlace::kAttn, kLength + 1));
}

}  // namespace
}  // namespace plait
