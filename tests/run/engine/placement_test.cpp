// Where an op stands is where it runs: every stage lives on every rank, and each op stands on a rank drawn at random.

#include "tests/run/engine/engine_support.h"
#include <gtest/gtest.h>

#include <random>

namespace plait {
namespace {

using namespace plait::testing;

constexpr int kRanks = 3;
constexpr int kStages = 3;
constexpr int kMicrobatches = 4;
constexpr int kLayers = 5;

enum class Split : std::uint8_t { kNo, kYes };

Schedule scattered(std::mt19937_64& random, HeadTying tying) {
  std::vector<RankId> everywhere;
  for (int rank = 0; rank < kRanks; ++rank) everywhere.push_back(RankId{rank});
  const auto layout = make_layout(LayoutSpec{.name = "scattered",
                                             .num_ranks = kRanks,
                                             .num_microbatches = kMicrobatches,
                                             .num_layers = kLayers,
                                             .tying = tying,
                                             .stages = *cut_by_layers(kLayers, kStages),
                                             .homes = std::vector<std::vector<RankId>>(kStages, everywhere)});
  EXPECT_TRUE(layout) << layout.error().message;
  Schedule schedule{.layout = *layout, .rows = std::vector<Row>(kRanks)};
  const auto put = [&](OpKind kind, int stage, int microbatch) {
    schedule.rows[random() % kRanks].push_back(
        Op{.kind = kind, .stage = StageId{stage}, .microbatch = MicrobatchId{microbatch}, .slice = SliceId{0}});
  };
  // One global order that respects the data flow; every row is a part of it.
  std::vector<int> forwards(kMicrobatches, 0);
  std::vector<int> backwards(kMicrobatches, kStages);
  std::vector<std::pair<int, int>> weights;
  for (int left = 2 * kStages * kMicrobatches; left > 0;) {
    const int m = static_cast<int>(random() % kMicrobatches);
    const auto at = static_cast<std::size_t>(m);
    if (forwards[at] < kStages) {
      put(OpKind::kForward, forwards[at]++, m);
    } else if (backwards[at] > 0) {
      const int stage = --backwards[at];
      const Split split = random() % 2 == 0 ? Split::kNo : Split::kYes;
      put(split == Split::kYes ? OpKind::kBackwardInput : OpKind::kBackward, stage, m);
      if (split == Split::kYes) weights.emplace_back(stage, m);
    } else {
      continue;
    }
    --left;
    if (!weights.empty() && random() % 3 == 0) {
      put(OpKind::kBackwardWeight, weights.front().first, weights.front().second);
      weights.erase(weights.begin());
    }
  }
  for (const auto& [stage, m] : weights) put(OpKind::kBackwardWeight, stage, m);
  return schedule;
}

class Placement : public ::testing::TestWithParam<HeadTying> {};

TEST_P(Placement, AnyPlaceOfAnyOpEqualsOneRank) {
  const ModelConfig config = tiny_config(kLayers, GetParam());
  const EngineOptions options{.type = ComputeType::kFloat64, .optimizer = {.kind = OptimizerKind::kSgd, .clip = 0.25}};
  const auto data = make_data(kMicrobatches, 2, 5, 29, Mask::kUneven, 3);
  const auto alone = make_engine(
      *program_of("gpipe",
                  ScheduleShape{.ranks = 1, .microbatches = kMicrobatches, .layers = kLayers, .tying = GetParam()}),
      config, options);
  const auto expected = alone->train_step(data, 0.5);
  ASSERT_TRUE(expected);
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    auto program = lower(scattered(random, GetParam()));
    ASSERT_TRUE(program) << program.error().message;
    const auto proved = prove(*std::move(program));
    ASSERT_TRUE(proved) << proved.error().message;
    const auto engine = make_engine(*proved, config, options);
    const auto result = engine->train_step(data, 0.5);
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_NEAR(result->loss, expected->loss, 1e-12);
    EXPECT_NEAR(result->grad_norm, expected->grad_norm, 1e-10 * expected->grad_norm);
    expect_equal(*engine->last_gradients(), *alone->last_gradients(), 1e-10, "gradient");
    expect_equal(weights_of(*engine), weights_of(*alone), 1e-10, "weight");
    EXPECT_EQ(*engine->diverged_copies(), std::vector<std::string>());
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, Placement, ::testing::Values(HeadTying::kUntied, HeadTying::kTied));

}  // namespace
}  // namespace plait
