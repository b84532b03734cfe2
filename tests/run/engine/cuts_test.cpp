// Stages may cut the chain at any part, and attention, which owns no weights, may run anywhere: as one rank, in every family.

#include "tests/run/engine/chain_schedule.h"
#include "tests/run/engine/engine_support.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

namespace plait {
namespace {

using namespace plait::testing;

constexpr int kLayers = 3;
constexpr int kMicrobatches = 3;
constexpr std::int64_t kRows = 2;
constexpr std::int64_t kLength = 5;

const EngineOptions kOptions{.type = ComputeType::kFloat64, .optimizer = {.kind = OptimizerKind::kSgd, .clip = 0.25}};

std::vector<PartRange> cut_at(const std::vector<int>& cuts) {
  std::vector<PartRange> stages;
  int begin = 0;
  for (const int cut : cuts) {
    stages.push_back(PartRange{.begin = begin, .end = cut});
    begin = cut;
  }
  stages.push_back(PartRange{.begin = begin, .end = num_parts(kLayers)});
  return stages;
}

bool is_attention(PartRange parts) {
  return parts.size() == 1 && part_at(kLayers, parts.begin).kind == PartKind::kAttn;
}

/// Weights live on random ranks; an attention stage runs on a random rank for each micro-batch.
Schedule scattered(const std::vector<PartRange>& stages, int num_ranks, HeadTying tying, Split split,
                   std::mt19937_64& random) {
  std::vector<std::vector<RankId>> ranks(stages.size());
  std::vector<std::vector<RankId>> homes(stages.size());
  const auto draw = [&] { return RankId{static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(num_ranks))}; };
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const bool anywhere = is_attention(stages[s]);
    ranks[s].assign(kMicrobatches, draw());
    if (anywhere) std::generate(ranks[s].begin(), ranks[s].end(), draw);
    homes[s] = {ranks[s].front()};
  }
  const auto layout = make_layout(LayoutSpec{.name = "scattered",
                                             .num_ranks = num_ranks,
                                             .num_microbatches = kMicrobatches,
                                             .num_layers = kLayers,
                                             .tying = tying,
                                             .stages = stages,
                                             .homes = homes});
  EXPECT_TRUE(layout) << layout.error().message;
  return chain_schedule(
      *layout,
      [&](int stage, int microbatch) {
        return ranks[static_cast<std::size_t>(stage)][static_cast<std::size_t>(microbatch)];
      },
      split, Again::kNever);
}

/// Bytes of fp64 elements that the cut in front of part `part_idx` lets through for one micro-batch.
std::int64_t cut_bytes(const ModelConfig& c, int part_idx) {
  const std::int64_t d = c.hidden_size;
  const std::int64_t heads = c.num_heads * c.head_dim;
  std::int64_t width = 0;
  switch (part_at(c.num_layers, part_idx).kind) {
    case PartKind::kEmbed: break;
    case PartKind::kNorm:
    case PartKind::kHead: width = d; break;
    case PartKind::kQkv: width = 2 * d; break;
    case PartKind::kAttn: width = heads + 2 * c.num_kv_heads * c.head_dim + d; break;
    case PartKind::kPost: width = heads + d; break;
  }
  return width * kRows * kLength * static_cast<std::int64_t>(sizeof(double));
}

/// Every message along an edge, forward or back, has the bytes of its cut.
void expect_bytes(const Program& program, const StepResult& step, const ModelConfig& config) {
  for (std::size_t rank = 0; rank < program.rows.size(); ++rank) {
    for (const TraceEvent& event : step.trace[rank]) {
      const auto* send = std::get_if<Send>(&program.rows[rank][static_cast<std::size_t>(event.position)]);
      if (send == nullptr || !send->value.is_edge()) continue;
      const StageId consumer = program.layout.edges[send->value.edge().index()].consumer;
      const int cut = program.layout.stages[consumer.index()].parts.begin;
      EXPECT_EQ(event.moved, Bytes{cut_bytes(config, cut)}) << to_string(part_at(config.num_layers, cut));
    }
  }
}

class Cuts : public ::testing::TestWithParam<std::tuple<ModelFamily, HeadTying>> {
 protected:
  void SetUp() override {
    const auto [family, tying] = GetParam();
    config_ = family_config(family, kLayers, tying);
    data_ = make_data(kMicrobatches, kRows, kLength, config_.vocab_size, Mask::kUneven, 3);
    alone_ = make_engine(
        *program_of("gpipe",
                    ScheduleShape{.ranks = 1, .microbatches = kMicrobatches, .layers = kLayers, .tying = tying}),
        config_, kOptions);
    auto expected = alone_->train_step(data_, 0.5);
    ASSERT_TRUE(expected);
    expected_ = *std::move(expected);
  }

  void expect_one_rank(const std::vector<PartRange>& stages, int num_ranks, Split split, std::uint64_t seed) {
    SCOPED_TRACE(fmt::format("{} stages on {} ranks, seed {}", stages.size(), num_ranks, seed));
    std::mt19937_64 random(seed);
    auto program = lower(scattered(stages, num_ranks, std::get<1>(GetParam()), split, random));
    ASSERT_TRUE(program) << program.error().message;
    const auto proved = prove(*std::move(program));
    ASSERT_TRUE(proved) << proved.error().message;
    const auto engine = make_engine(*proved, config_, kOptions);
    ASSERT_NE(engine, nullptr);
    const auto result = engine->train_step(data_, 0.5);
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_NEAR(result->loss, expected_.loss, 1e-12);
    EXPECT_NEAR(result->grad_norm, expected_.grad_norm, 1e-10 * expected_.grad_norm);
    expect_equal(*engine->last_gradients(), *alone_->last_gradients(), 1e-10, "gradient");
    expect_equal(weights_of(*engine), weights_of(*alone_), 1e-10, "weight");
    expect_bytes(proved->program(), *result, config_);
  }

  ModelConfig config_;
  std::vector<Microbatch> data_;
  std::unique_ptr<Engine> alone_;
  StepResult expected_;
};

TEST_P(Cuts, AStageForEveryPartEqualsOneRank) {
  std::vector<int> cuts;
  for (int part = 1; part < num_parts(kLayers); ++part) cuts.push_back(part);
  expect_one_rank(cut_at(cuts), 4, Split::kBackward, 1);
  expect_one_rank(cut_at(cuts), 3, Split::kInputThenWeight, 2);
}

TEST_P(Cuts, AttentionApartEqualsOneRank) {
  std::vector<int> cuts;
  for (int part = 1; part + 1 < num_parts(kLayers); ++part) {
    if (part_at(kLayers, part).kind != PartKind::kAttn) continue;
    cuts.push_back(part);
    cuts.push_back(part + 1);
  }
  for (std::uint64_t seed = 1; seed <= 4; ++seed)
    expect_one_rank(cut_at(cuts), 3, seed % 2 == 0 ? Split::kBackward : Split::kInputThenWeight, seed);
}

TEST_P(Cuts, AnywhereEqualsOneRank) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    std::mt19937_64 random(100 + seed);
    std::vector<int> cuts;
    for (int part = 1; part < num_parts(kLayers); ++part)
      if (random() % 2 == 0) cuts.push_back(part);
    expect_one_rank(cut_at(cuts), 3, seed % 2 == 0 ? Split::kBackward : Split::kInputThenWeight, seed);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Cuts,
                         ::testing::Combine(::testing::Values(ModelFamily::kLlama, ModelFamily::kQwen2,
                                                              ModelFamily::kGpt2),
                                            ::testing::Values(HeadTying::kUntied, HeadTying::kTied)),
                         [](const auto& test) {
                           return fmt::format("{}_{}", family_name(std::get<0>(test.param)),
                                              std::get<1>(test.param) == HeadTying::kTied ? "tied" : "untied");
                         });

}  // namespace
}  // namespace plait
