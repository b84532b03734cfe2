// What F need not keep is made again before B: same numbers, the work and the memory that were promised, and no attention
// forward where none is due.

#include "tests/run/engine/chain_schedule.h"
#include "tests/run/engine/engine_support.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <optional>

namespace plait {
namespace {

using namespace plait::testing;

constexpr int kLayers = 4;
constexpr int kRanks = 2;
constexpr int kMicrobatches = 3;
constexpr std::int64_t kRows = 2;
constexpr std::int64_t kLength = 5;

enum class Cut : std::uint8_t { kWholeLayers, kQkvInFront, kQkvAtAttention, kEveryPart };

std::vector<PartRange> stages_of(Cut cut) {
  std::vector<PartRange> stages;
  int begin = 0;
  const auto cut_before = [&](int part) {
    stages.push_back(PartRange{.begin = begin, .end = part});
    begin = part;
  };
  for (int part = 1; part < num_parts(kLayers); ++part) {
    const Part here = part_at(kLayers, part);
    const bool cuts = (cut == Cut::kWholeLayers && here.kind == PartKind::kNorm && here.layer % 2 == 0 && part > 1) ||
                      (cut == Cut::kQkvInFront && (here.kind == PartKind::kAttn || here.kind == PartKind::kPost)) ||
                      (cut == Cut::kQkvAtAttention && (here.kind == PartKind::kQkv || here.kind == PartKind::kPost)) ||
                      cut == Cut::kEveryPart;
    if (cuts) cut_before(part);
  }
  cut_before(num_parts(kLayers));
  return stages;
}

/// Stages alternate between two ranks.
VerifiedProgram alternating(Cut cut, int num_microbatches, HeadTying tying, Split split, Recompute recompute) {
  const std::vector<PartRange> stages = stages_of(cut);
  std::vector<std::vector<RankId>> homes;
  for (std::size_t s = 0; s < stages.size(); ++s) homes.push_back({RankId{static_cast<std::int32_t>(s % kRanks)}});
  auto layout = make_layout(LayoutSpec{.name = "alternating",
                                       .num_ranks = kRanks,
                                       .num_microbatches = num_microbatches,
                                       .num_layers = kLayers,
                                       .tying = tying,
                                       .stages = stages,
                                       .homes = homes});
  EXPECT_TRUE(layout) << layout.error().message;
  layout->recompute = recompute;
  auto program = lower(chain_schedule(
      *layout, [](int stage, int) { return RankId{stage % kRanks}; }, split,
      recompute == Recompute::kNone ? Again::kNever : Again::kBeforeBackward));
  EXPECT_TRUE(program) << program.error().message;
  auto proved = prove(*std::move(program));
  EXPECT_TRUE(proved) << proved.error().message;
  return *std::move(proved);
}

KernelCounts total(const StepResult& step) {
  KernelCounts sum;
  for (const KernelCounts& rank : step.kernels) sum += rank;
  return sum;
}

class Recomputed : public ::testing::TestWithParam<std::tuple<ModelFamily, HeadTying>> {
 protected:
  void SetUp() override {
    const auto [family, tying] = GetParam();
    config_ = family_config(family, kLayers, tying);
    data_ = make_data(kMicrobatches, kRows, kLength, config_.vocab_size, Mask::kUneven, 3);
    alone_ = make_engine(
        *program_of("gpipe",
                    ScheduleShape{.ranks = 1, .microbatches = kMicrobatches, .layers = kLayers, .tying = tying}),
        config_, options_);
    auto expected = alone_->train_step(data_, 0.5);
    ASSERT_TRUE(expected);
    expected_ = *std::move(expected);
  }

  /// One step by the program equals one on one rank that keeps everything.
  StepResult expect_one_rank(const VerifiedProgram& program, const StageOptions& stage = {}) {
    EngineOptions options = options_;
    options.stage = stage;
    const auto engine = make_engine(program, config_, options);
    auto result = engine->train_step(data_, 0.5);
    EXPECT_TRUE(result) << result.error().message;
    if (!result) return {};
    EXPECT_NEAR(result->loss, expected_.loss, 1e-12);
    EXPECT_NEAR(result->grad_norm, expected_.grad_norm, 1e-10 * expected_.grad_norm);
    expect_equal(*engine->last_gradients(), *alone_->last_gradients(), 1e-10, "gradient");
    expect_equal(weights_of(*engine), weights_of(*alone_), 1e-10, "weight");
    return *std::move(result);
  }

  ModelConfig config_;
  EngineOptions options_{.type = ComputeType::kFloat64, .optimizer = {.kind = OptimizerKind::kSgd, .clip = 0.25}};
  std::vector<Microbatch> data_;
  std::unique_ptr<Engine> alone_;
  StepResult expected_;
};

TEST_P(Recomputed, EqualsOneRankAndRunsNoAttentionThatIsKept) {
  constexpr std::int64_t kAttentions = std::int64_t{kLayers} * kMicrobatches;
  for (const Cut cut : {Cut::kWholeLayers, Cut::kQkvInFront, Cut::kQkvAtAttention, Cut::kEveryPart}) {
    for (const Split split : {Split::kBackward, Split::kInputThenWeight}) {
      for (const Recompute recompute : {Recompute::kNone, Recompute::kFull, Recompute::kNoAttention}) {
        SCOPED_TRACE(fmt::format("cut {} split {} recompute {}", static_cast<int>(cut), static_cast<int>(split),
                                 static_cast<int>(recompute)));
        const auto program = alternating(cut, kMicrobatches, std::get<1>(GetParam()), split, recompute);
        const KernelCounts counts = total(expect_one_rank(program));
        EXPECT_EQ(counts.attention_forwards, recompute == Recompute::kFull ? 2 * kAttentions : kAttentions);
        EXPECT_EQ(counts.attention_backwards, kAttentions);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(Recomputed, ChunksChangeNoNumber) {
  for (const Split split : {Split::kBackward, Split::kInputThenWeight}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kNoAttention}) {
      const auto program = alternating(Cut::kQkvAtAttention, kMicrobatches, std::get<1>(GetParam()), split, recompute);
      for (const std::int64_t chunk : {1, 4, 10, 100}) {  // of 10 tokens in a micro-batch
        SCOPED_TRACE(
            fmt::format("split {} recompute {} chunk {}", static_cast<int>(split), static_cast<int>(recompute), chunk));
        expect_one_rank(program, {.mlp_chunk = chunk, .loss_chunk = chunk});
        if (HasFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Recomputed,
                         ::testing::Combine(::testing::Values(ModelFamily::kLlama, ModelFamily::kQwen2,
                                                              ModelFamily::kGpt2),
                                            ::testing::Values(HeadTying::kUntied, HeadTying::kTied)),
                         [](const auto& test) {
                           return fmt::format("{}_{}", family_name(std::get<0>(test.param)),
                                              std::get<1>(test.param) == HeadTying::kTied ? "tied" : "untied");
                         });

/// Every registered schedule, with the recomputes that its flag asks for.
class RecomputedSchedule : public ::testing::TestWithParam<std::string> {};

TEST_P(RecomputedSchedule, EqualsOneRankAndRunsNoAttentionThatIsKept) {
  constexpr int kDepth = 8;
  const std::string name = GetParam();
  const ModelConfig config = tiny_config(kDepth, HeadTying::kTied);
  const EngineOptions options{.type = ComputeType::kFloat64, .optimizer = {.kind = OptimizerKind::kSgd, .clip = 0.25}};
  int ran = 0;
  for (const auto& [ranks, microbatches] : {std::pair(2, 4), {4, 8}}) {
    for (const auto& [chunks, slices] : {std::pair<std::optional<int>, std::optional<int>>{}, {2, {}}, {{}, 2}}) {
      ScheduleShape shape{.ranks = ranks,
                          .microbatches = microbatches,
                          .chunks = chunks,
                          .slices = slices,
                          .layers = kDepth,
                          .tying = HeadTying::kTied};
      const auto data = make_data(microbatches, kRows, kLength, 29, Mask::kUneven, 3);
      const auto plain = program_of(name, shape);
      if (!plain || plain->program().layout.mode == Mode::kForward) continue;
      const auto engine = Engine::create(*plain, config, options);
      if (!engine) continue;
      (*engine)->initialize(1);
      const auto expected = (*engine)->train_step(data, 0.5);
      ASSERT_TRUE(expected) << expected.error().message;
      for (const Recompute recompute : {Recompute::kFull, Recompute::kNoAttention}) {
        SCOPED_TRACE(fmt::format("{} ranks {} chunks {} slices {} recompute {}", name, ranks, chunks.value_or(0),
                                 slices.value_or(0), static_cast<int>(recompute)));
        shape.recompute = recompute;
        const auto program = program_of(name, shape);
        ASSERT_TRUE(program) << program.error().message;
        const auto again = make_engine(*program, config, options);
        const auto result = again->train_step(data, 0.5);
        ASSERT_TRUE(result) << result.error().message;
        EXPECT_NEAR(result->loss, expected->loss, 1e-12);
        expect_equal(*again->last_gradients(), *(*engine)->last_gradients(), 1e-10, "gradient");
        expect_equal(weights_of(*again), weights_of(**engine), 1e-10, "weight");
        const KernelCounts more = total(*result) - total(*expected);
        EXPECT_EQ(more.attention_backwards, 0);
        EXPECT_EQ(more.attention_forwards > 0, recompute == Recompute::kFull);
        EXPECT_GT(more.gemm_flops, 0);
        EXPECT_EQ(result->peak_stashes, expected->peak_stashes);
        ++ran;
        if (HasFailure()) return;
      }
    }
  }
  const auto* info = *find_schedule(name);
  EXPECT_GT(ran, info->name == "forward" ? -1 : 0);
}

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const ScheduleInfo* info : all_schedules()) names.emplace_back(info->name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(AllSchedules, RecomputedSchedule, ::testing::ValuesIn(schedule_names()), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

/// A GPT with a 4 D MLP; all extents are multiples of 16, so that no byte is lost to rounding.
constexpr std::int64_t kWidth = 64;
constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kTokens = 128;
constexpr std::int64_t kBytesOfFloat = 4;
constexpr std::int64_t kUnit = kRows * kTokens * kWidth * kBytesOfFloat;     // b s h, in bytes
constexpr std::int64_t kPerHead = kRows * kTokens * kHeads * kBytesOfFloat;  // of the log-sum-exp
constexpr std::int64_t kPerToken = kRows * kTokens * kBytesOfFloat;          // of a norm's mean or deviation

ModelConfig gpt() {
  ModelConfig config = family_config(ModelFamily::kGpt2, kLayers, HeadTying::kUntied);
  config.hidden_size = kWidth;
  config.num_heads = kHeads;
  config.num_kv_heads = kHeads;
  config.head_dim = kWidth / kHeads;
  config.ffn_size = 4 * kWidth;
  config.vocab_size = 64;
  config.max_positions = kTokens;
  return config;
}

StepResult step_of(const VerifiedProgram& program, const ModelConfig& config, const StageOptions& stage = {}) {
  const EngineOptions options{.optimizer = {.kind = OptimizerKind::kSgd}, .stage = stage};
  const auto engine = make_engine(program, config, options);
  const auto data =
      make_data(program.program().layout.num_microbatches, kRows, kTokens, config.vocab_size, Mask::kNone, 1);
  auto result = engine->train_step(data, 0.1);
  EXPECT_TRUE(result) << result.error().message;
  return result ? *std::move(result) : StepResult{};
}

/// Bytes that each further micro-batch adds to the peak of each rank: all forwards come first, so it is what they keep.
std::vector<std::int64_t> bytes_per_microbatch(Cut cut, Recompute recompute) {
  const auto peaks = [&](int num_microbatches) {
    return step_of(alternating(cut, num_microbatches, HeadTying::kUntied, Split::kBackward, recompute), gpt())
        .peak_bytes;
  };
  const std::vector<Bytes> few = peaks(3);
  const std::vector<Bytes> many = peaks(7);
  std::vector<std::int64_t> per_microbatch;
  for (std::size_t rank = 0; rank < few.size(); ++rank)
    per_microbatch.push_back((many[rank].value() - few[rank].value()) / 4);
  return per_microbatch;
}

// Rank 0 has all parameters, rank 1 all attentions with their QKV projections.
// Elements per layer, of the card (source: Zhang et al. 2025, arXiv:2507.00394):
//   no recompute              13 + 3 = 16 b s h; 4 less here, because the norms' outputs are made again from their
//                             statistics and the MLP's activation from its input, and the attention's output is held by both
//   recompute, no attention    2 + 2 =  4 b s h, and the log-sum-exp
TEST(RecomputeMemory, OfALayerIsWhatTheCardSays) {
  using Ranks = std::vector<std::int64_t>;
  const Ranks all = bytes_per_microbatch(Cut::kQkvAtAttention, Recompute::kNone);
  const Ranks full = bytes_per_microbatch(Cut::kQkvAtAttention, Recompute::kFull);
  const Ranks kept = bytes_per_microbatch(Cut::kQkvAtAttention, Recompute::kNoAttention);
  for (const auto& [name, ranks] : {std::pair("none", all), {"full", full}, {"no-attention", kept}})
    std::cout << fmt::format("recompute {:12} {:7} + {:7} bytes per layer and micro-batch: {:5.2f} + {:5.2f} b s h\n",
                             name, ranks[0] / kLayers, ranks[1] / kLayers,
                             static_cast<double>(ranks[0]) / static_cast<double>(kLayers * kUnit),
                             static_cast<double>(ranks[1]) / static_cast<double>(kLayers * kUnit));
  // norm: x, mean, deviation; post: o, h, 4 of the pre-activation, mean, deviation. The last stage ends in the head: x.
  EXPECT_EQ(all, (Ranks{kLayers * (7 * kUnit + 4 * kPerToken) + kUnit, kLayers * (5 * kUnit + kPerHead)}));
  EXPECT_EQ(full, (Ranks{kLayers * 2 * kUnit, kLayers * kUnit}));
  EXPECT_EQ(kept, (Ranks{kLayers * 2 * kUnit, kLayers * (2 * kUnit + kPerHead)}));
}

TEST(RecomputeMemory, QkvInFrontLeavesQueriesKeysAndValuesWithTheAttention) {
  using Ranks = std::vector<std::int64_t>;
  EXPECT_EQ(bytes_per_microbatch(Cut::kQkvInFront, Recompute::kNoAttention),
            (Ranks{kLayers * 2 * kUnit, kLayers * (4 * kUnit + kPerHead)}));
}

TEST(RecomputeMemory, OfWholeLayersIsOneInputAndOneOutputPerAttention) {
  using Ranks = std::vector<std::int64_t>;
  constexpr std::int64_t kHalf = kLayers / 2;
  // Rank 0 begins with the tokens, which cost nothing.
  EXPECT_EQ(bytes_per_microbatch(Cut::kWholeLayers, Recompute::kFull), (Ranks{0, kUnit}));
  EXPECT_EQ(bytes_per_microbatch(Cut::kWholeLayers, Recompute::kNoAttention),
            (Ranks{kHalf * (kUnit + kPerHead), kUnit + kHalf * (kUnit + kPerHead)}));
}

/// 24 b s h^2 per layer more: QKV 6, projection 2, MLP 16; nothing of the attention.
TEST(RecomputeWork, IsTheProductsOfOneMoreForward) {
  const auto counts = [](Recompute recompute) {
    return total(step_of(alternating(Cut::kQkvAtAttention, 2, HeadTying::kUntied, Split::kBackward, recompute), gpt()));
  };
  const KernelCounts once = counts(Recompute::kNone);
  const KernelCounts again = counts(Recompute::kNoAttention);
  constexpr std::int64_t kMicrobatchesHere = 2;
  EXPECT_EQ(again - once,
            (KernelCounts{.gemm_flops = 24 * kMicrobatchesHere * kLayers * kRows * kTokens * kWidth * kWidth}));
}

Bytes highest(const StepResult& step) {
  return *std::max_element(step.peak_bytes.begin(), step.peak_bytes.end());
}

TEST(Chunks, OfTheLossBoundTheLogitsAndCostNothing) {
  ModelConfig config = gpt();
  config.vocab_size = 4096;
  const auto program = alternating(Cut::kWholeLayers, 2, HeadTying::kUntied, Split::kBackward, Recompute::kNone);
  const StepResult whole = step_of(program, config, {.loss_chunk = kRows * kTokens});
  const StepResult chunked = step_of(program, config, {.loss_chunk = 16});
  const std::int64_t saved = (kRows * kTokens - 16) * config.vocab_size * kBytesOfFloat;
  std::cout << fmt::format("peak {} bytes with all logits, {} with those of 16 tokens\n", whole.peak_bytes[1].value(),
                           chunked.peak_bytes[1].value());
  // What is left may peak elsewhere, but not by more than the gradients that do not depend on the vocabulary.
  EXPECT_LE(chunked.peak_bytes[1].value(), whole.peak_bytes[1].value() - saved + 16 * kUnit);
  EXPECT_EQ(total(chunked), total(whole));
  EXPECT_NEAR(chunked.loss, whole.loss, 1e-6 * whole.loss);
}

TEST(Chunks, OfTheLossOnceMoreInWWhereItIsApart) {
  const ModelConfig config = gpt();
  const auto program = alternating(Cut::kWholeLayers, 2, HeadTying::kUntied, Split::kInputThenWeight, Recompute::kNone);
  const KernelCounts extra = total(step_of(program, config, {.loss_chunk = 16})) - total(step_of(program, config));
  EXPECT_EQ(extra, (KernelCounts{.gemm_flops = 2 * 2 * kRows * kTokens * kWidth * config.vocab_size}));
}

TEST(Chunks, OfTheMlpBoundItsWidth) {
  ModelConfig config = gpt();
  config.ffn_size = 64 * kWidth;
  const auto program = alternating(Cut::kWholeLayers, 2, HeadTying::kUntied, Split::kBackward, Recompute::kNone);
  const StepResult whole = step_of(program, config);
  const StepResult chunked = step_of(program, config, {.mlp_chunk = 16});
  std::cout << fmt::format("peak {} bytes with a whole MLP, {} with one of 16 tokens\n", highest(whole).value(),
                           highest(chunked).value());
  // Kept: the pre-activations of two layers of two micro-batches. In work: two tensors of the width, of 16 tokens instead
  // of all.
  const std::int64_t wide = kRows * kTokens * config.ffn_size * kBytesOfFloat;
  EXPECT_LE(chunked.peak_bytes[1].value(), whole.peak_bytes[1].value() - 4 * wide);
  EXPECT_NEAR(chunked.loss, whole.loss, 1e-6 * whole.loss);
}

TEST(Chunks, OfNoTokensAreRefused) {
  const auto program = alternating(Cut::kWholeLayers, 2, HeadTying::kUntied, Split::kBackward, Recompute::kNone);
  const auto refused = Engine::create(program, gpt(), EngineOptions{.stage = {.mlp_chunk = 0}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().rule, "engine.chunk");
  EXPECT_EQ(refused.error().message, "the MLP has chunks of 0 tokens; at least 1 is needed");
}

}  // namespace
}  // namespace plait
