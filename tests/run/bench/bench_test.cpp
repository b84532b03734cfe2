#include "plait/cli/run/bench/configurations.h"
#include "plait/cli/run/bench/gemm_rate.h"
#include "plait/cli/run/bench/micro.h"
#include "plait/cli/run/bench/samples.h"
#include "plait/cli/run/bench/step_bench.h"
#include "plait/run/data/random.h"
#include "plait/run/engine/memory.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include <set>
#include <string>
#include <vector>

namespace plait::bench {
namespace {

ModelConfig small_model() {
  return {.num_layers = 2,
          .hidden_size = 32,
          .ffn_size = 48,
          .num_heads = 4,
          .num_kv_heads = 4,
          .head_dim = 8,
          .vocab_size = 50,
          .max_positions = 24};
}

TEST(Samples, MedianBestAndSpread) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({3, 100, 1}), 3);
  EXPECT_EQ(median({1, 4, 2, 100}), 3);
  EXPECT_EQ(spread({2, 4, 5}), 0.75);
  EXPECT_EQ(figures_of({2, 4, 5}, Better::kHigher),
            (nlohmann::ordered_json{{"median", 4.0}, {"best", 5.0}, {"worst", 2.0}, {"spread", 0.75}}));
  EXPECT_EQ(figures_of({2, 4, 5}, Better::kLower)["best"], 2.0);
  EXPECT_TRUE(figures_of({}, Better::kLower).is_null());
}

TEST(Configurations, HaveNamesOfTheirOwnAndHeadsOfOneSize) {
  std::set<std::string_view> names;
  for (const Configuration& c : configurations()) {
    names.insert(c.name);
    EXPECT_EQ(c.hidden / c.heads, c.name == "tiny" ? 32 : 64) << c.name;
  }
  EXPECT_EQ(names, (std::set<std::string_view>{"A", "B", "C", "D", "tiny"}));
  EXPECT_EQ(find_configuration("a"), nullptr);
}

// Two layers: qkv 32 x 96, o 32 x 32, gate and up 32 x 48 each, down 48 x 32; head 32 x 50.
TEST(ModelFlops, AreThoseOfTheWeightProductsAndOfWhatTheMaskLeaves) {
  const double elements = 2 * (32 * 96 + 32 * 32 + 3 * 32 * 48) + 32 * 50;
  const double pairs = 5 * (24 * 25 / 2);
  EXPECT_EQ(model_flops(small_model(), 5, 24), 3 * (2 * elements * 5 * 24 + 4 * 2 * 32 * pairs));
  ModelConfig tied = small_model();
  tied.tied_head = true;
  EXPECT_EQ(model_flops(tied, 5, 24), model_flops(small_model(), 5, 24));
}

TEST(RandomMicrobatches, AreAReproducibleStreamOfIds) {
  const ModelConfig model = small_model();
  const StepBenchOptions options{.tokens = 6, .microbatch_size = 2, .seed = 9};
  constexpr int kMicrobatches = 3;
  const auto batches = random_microbatches(model, options, kMicrobatches, 4);
  ASSERT_EQ(batches.size(), 3U);
  // Row 1 of micro-batch 2 of step 4: rows of 7 ids, 6 rows a step.
  const std::uint64_t first = (4 * 6 + 2 * 2 + 1) * 7;
  for (std::int64_t t = 0; t < 6; ++t) {
    const auto id = [&](std::int64_t at) {
      return static_cast<std::int64_t>(random_bits(9, first + static_cast<std::uint64_t>(at)) % 50);
    };
    EXPECT_EQ((batches[2].tokens[1][t].item<std::int64_t>()), id(t));
    EXPECT_EQ((batches[2].targets[1][t].item<std::int64_t>()), id(t + 1));
  }
}

TEST(GemmReplay, RepeatsWhatEachRankDid) {
  const GemmShape wide{.rows = 16, .inputs = 32, .outputs = 64};
  const GemmShape head{.rows = 8, .inputs = 32, .outputs = 50};
  std::vector<Breakdown> ranks(2);
  ranks[0].gemms = {{.kernel = KernelKind::kGemm, .shape = wide, .count = 4},
                    {.kernel = KernelKind::kGemmInputGrad, .shape = wide, .count = 4},
                    {.kernel = KernelKind::kGemmWeightGrad, .shape = wide, .count = 4}};
  ranks[1].gemms = {{.kernel = KernelKind::kGemm, .shape = head, .count = 3}};
  for (const ComputeType type : {ComputeType::kFloat32, ComputeType::kBFloat16}) {
    GemmReplay replay(ranks, small_model(), type);
    replay.pass();
    replay.pass();
    EXPECT_EQ(replay.flops(), 12.0 * 2 * 16 * 32 * 64 + 3.0 * 2 * 8 * 32 * 50);
    for (const auto where : {GemmReplay::Operands::kInCaches, GemmReplay::Operands::kInMemory}) {
      ASSERT_EQ(replay.rates(where).size(), 2U);
      for (const double rate : replay.rates(where)) EXPECT_GT(rate, 0);
    }
    ASSERT_EQ(replay.products().size(), 4U);
    for (const auto& product : replay.products()) {
      EXPECT_EQ(product.seconds.size(), 2U);
      EXPECT_EQ(product.seconds_in_memory.size(), 2U);
    }
    EXPECT_EQ(replay.products()[3].rank, 1U);
  }
}

/// Every case gives what its ATen composition gives, for each data type and for grouped heads.
TEST(Micro, KernelsAgreeWithTheirCompositions) {
  install_accounting_allocator();
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  for (const ComputeType type : {ComputeType::kFloat32, ComputeType::kBFloat16, ComputeType::kFloat64}) {
    for (const std::int64_t kv_heads : {4, 2}) {
      MicroShape shape{.model = small_model(), .tokens = 24, .microbatch_size = 2, .type = type};
      shape.model.num_kv_heads = kv_heads;
      const auto timings = time_micro(micro_cases(shape), type, {.seconds_per_kernel = 1e-6});
      std::vector<std::string> names;
      for (const MicroTiming& timing : timings) {
        EXPECT_TRUE(timing.agrees) << timing.kernel << " differs by " << timing.difference.value_or(0);
        EXPECT_GT(timing.roofline_seconds(), 0) << timing.kernel;
        EXPECT_FALSE(timing.seconds.empty()) << timing.kernel;
        names.push_back(timing.kernel);
      }
      EXPECT_THAT(names, testing::IsSupersetOf({"rms_norm", "layer_norm_weight_grad", "rotate", "rotate_back", "swiglu",
                                                "swiglu_grad", "gelu_tanh", "cross_entropy", "cross_entropy_grad",
                                                "gather_rows", "accumulate_rows", "attention", "attention_grad",
                                                "linear.qkv", "linear_plus.down", "linear_input_grad.gate_up",
                                                "accumulate_weight_grad.head", "square_sum", "adamw"}));
    }
  }
}

TEST(Micro, AWrongResultIsSeen) {
  const at::Tensor right = at::full({4}, 1.0);
  const at::Tensor wrong = at::full({4}, 1.01);
  const MicroCase bad{.kernel = "bad",
                      .shape = "[4]",
                      .bytes = 32,
                      .ours = {[=] { return std::vector<at::Tensor>{wrong}; }},
                      .aten = MicroSide{[=] { return std::vector<at::Tensor>{right}; }}};
  const auto timings = time_micro({bad}, ComputeType::kFloat32, {.seconds_per_kernel = 1e-6});
  EXPECT_FALSE(timings.at(0).agrees);
  EXPECT_NEAR(timings.at(0).difference.value(), 0.01, 1e-6);
}

}  // namespace
}  // namespace plait::bench
