// Rows that hold several documents: the same numbers as a row for each document.

#include "tests/run/engine/engine_support.h"
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

namespace plait {
namespace {

using namespace plait::testing;

constexpr int kLayers = 4;
constexpr int kMicrobatches = 4;
constexpr std::int64_t kRows = 2;
constexpr std::int64_t kLength = 12;
constexpr std::int64_t kEnd = 28;  // ends a document; tokens at random are smaller
constexpr double kTolerance = 1e-10;

const EngineOptions kOptions{.type = ComputeType::kFloat64,
                             .optimizer = {.kind = OptimizerKind::kSgd, .weight_decay = 0.1, .clip = 0.25}};

/// Documents of every kind of length: one row is a single document, one ends in the middle, some are one token long.
std::vector<Microbatch> packed() {
  const std::vector<std::vector<std::int64_t>> ends = {{4, 7}, {}, {0, 1, 11}, {5}, {10}, {2, 8}, {11}, {3, 4, 9}};
  std::vector<Microbatch> data = make_data(kMicrobatches, kRows, kLength, kEnd, Mask::kNone, 5);
  for (std::size_t i = 0; i < ends.size(); ++i)
    for (const std::int64_t end : ends[i]) data[i / kRows].tokens[static_cast<std::int64_t>(i) % kRows][end] = kEnd;
  return data;
}

/// A row for each document, filled up behind it with what no valid token sees.
std::vector<Microbatch> unpacked(const std::vector<Microbatch>& data) {
  std::vector<Microbatch> result;
  for (const Microbatch& microbatch : data) {
    std::vector<at::Tensor> tokens;
    std::vector<at::Tensor> targets;
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t begin = 0, t = 0; t < kLength; ++t) {
        const bool ends = microbatch.tokens[row][t].item<std::int64_t>() == kEnd;
        if (!ends && t + 1 < kLength) continue;
        const std::int64_t length = t + 1 - begin;
        tokens.push_back(at::full({kLength}, 1, at::kLong));
        targets.push_back(at::full({kLength}, kIgnoredTarget, at::kLong));
        tokens.back().narrow(0, 0, length).copy_(microbatch.tokens[row].narrow(0, begin, length));
        const std::int64_t predicted = ends ? length - 1 : length;
        targets.back().narrow(0, 0, predicted).copy_(microbatch.targets[row].narrow(0, begin, predicted));
        begin = t + 1;
      }
    }
    result.push_back({.tokens = at::stack(tokens), .targets = at::stack(targets)});
  }
  return result;
}

class Documents : public ::testing::TestWithParam<ModelFamily> {};

TEST_P(Documents, PackedInRowsEqualARowEach) {
  const ModelConfig config = family_config(GetParam(), kLayers, HeadTying::kUntied);
  const std::vector<Microbatch> data = packed();
  const ScheduleShape shape{.ranks = 1, .microbatches = kMicrobatches, .layers = kLayers};
  const auto alone = make_engine(*program_of("gpipe", shape), config, kOptions);
  const auto expected = alone->train_step(unpacked(data), 0.5);
  ASSERT_TRUE(expected) << expected.error().message;
  EngineOptions options = kOptions;
  options.document_end = kEnd;
  for (const auto& [name, ranks, recompute] : {std::tuple{"gpipe", 1, Recompute::kNone},
                                               {"1f1b", 2, Recompute::kFull},
                                               {"zb-h1", 2, Recompute::kNone},
                                               {"helixpipe", 2, Recompute::kNone},
                                               {"helixpipe", 2, Recompute::kNoAttention},
                                               {"weipipe", 2, Recompute::kNone}}) {
    SCOPED_TRACE(fmt::format("{} over {} ranks", name, ranks));
    const auto program =
        program_of(name, {.ranks = ranks, .microbatches = kMicrobatches, .layers = kLayers, .recompute = recompute});
    ASSERT_TRUE(program) << program.error().message;
    const auto engine = make_engine(*program, config, options);
    const auto result = engine->train_step(data, 0.5);
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_EQ(result->valid_tokens, expected->valid_tokens);
    EXPECT_NEAR(result->loss, expected->loss, kTolerance * expected->loss);
    EXPECT_NEAR(result->grad_norm, expected->grad_norm, kTolerance * expected->grad_norm);
    expect_equal(*engine->last_gradients(), *alone->last_gradients(), kTolerance, "gradient");
    expect_equal(weights_of(*engine), weights_of(*alone), kTolerance, "weight");
  }
}

INSTANTIATE_TEST_SUITE_P(All, Documents,
                         ::testing::Values(ModelFamily::kLlama, ModelFamily::kQwen2, ModelFamily::kGpt2),
                         [](const auto& test) { return family_name(test.param); });

TEST(Documents, DoNotGoWithSlices) {
  EngineOptions options = kOptions;
  options.document_end = kEnd;
  const auto program =
      program_of("seq1f1b", {.ranks = 2, .microbatches = kMicrobatches, .slices = 2, .layers = kLayers});
  ASSERT_TRUE(program) << program.error().message;
  const auto engine = make_engine(*program, tiny_config(kLayers, HeadTying::kUntied), options);
  const auto result = engine->train_step(packed(), 0.5);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().rule, "engine.data");
  EXPECT_NE(result.error().message.find("packed documents in 2 slices"), std::string::npos) << result.error().message;
}

}  // namespace
}  // namespace plait
