#include "plait/run/model/kernels/timing.h"

#include "plait/run/model/kernels/gemm.h"

#include "support.h"
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>

#include <set>
#include <string>
#include <vector>

namespace plait::test {
namespace {

using std::chrono::steady_clock;

/// "part/kernel" of each event, "part" of a pass, in the order of the log.
std::vector<std::string> names_of(const KernelLog& log) {
  std::vector<std::string> names;
  for (const KernelEvent& event : log.events()) {
    std::string name = event.part ? to_string(*event.part) : "-";
    if (event.kernel) name += "/" + std::string(to_string(*event.kernel));
    names.push_back(name);
  }
  return names;
}

TEST(KernelTiming, NothingIsWrittenWithoutALog) {
  EXPECT_EQ(RecordingScope::current(), nullptr);
  const KernelScope kernel(KernelKind::kNorm);
  const RecordingScope none(nullptr);
  EXPECT_EQ(RecordingScope::current(), nullptr);
}

TEST(KernelTiming, KernelsStandInTheirPartWithPositionAndTimes) {
  KernelLog log;
  log.begin(steady_clock::now());
  {
    const RecordingScope recording(&log);
    { const KernelScope timed(KernelKind::kZeroGrads); }
    log.set_position(7);
    {
      const PartScope part(Part{.kind = PartKind::kPost, .layer = 2});
      const KernelScope outer(KernelKind::kAttention);
      const KernelScope inner(KernelKind::kGemm);
    }
    log.set_position(8);
    { const KernelScope timed(KernelKind::kOptimizer); }
  }
  EXPECT_EQ(RecordingScope::current(), nullptr);
  EXPECT_EQ(names_of(log), (std::vector<std::string>{"-/zero_grads", "post.2", "post.2/attention", "-/optimizer"}));
  std::vector<int> positions;
  for (const KernelEvent& event : log.events()) {
    positions.push_back(event.position);
    EXPECT_LE(event.start, event.end);
  }
  EXPECT_EQ(positions, (std::vector<int>{KernelEvent::kBeforeRow, 7, 7, 8}));
  EXPECT_LE(log.events()[1].start, log.events()[2].start);
  EXPECT_GE(log.events()[1].end, log.events()[2].end);
  log.begin(steady_clock::now());
  EXPECT_TRUE(log.events().empty());
}

TEST(KernelTiming, WeightProductsHaveTheirSizesInEitherLayout) {
  KernelLog log;
  log.begin(steady_clock::now());
  const RecordingScope recording(&log);
  const at::Tensor x = at::ones({5, 3});
  const at::Tensor dy = at::ones({5, 2});
  using kernels::WeightLayout;
  for (const WeightLayout layout : {WeightLayout::kOutIn, WeightLayout::kInOut}) {
    const at::Tensor weight = layout == WeightLayout::kOutIn ? at::ones({2, 3}) : at::ones({3, 2});
    kernels::linear(x, weight, {}, layout);
    kernels::linear_plus(dy, x, weight, {}, layout);
    kernels::linear_input_grad(dy, weight, layout);
    kernels::accumulate_weight_grad(weight.clone(), x, dy, layout);
  }
  ASSERT_EQ(log.events().size(), 8U);
  const GemmShape expected{.rows = 5, .inputs = 3, .outputs = 2};
  for (const KernelEvent& event : log.events()) EXPECT_EQ(event.gemm, expected);
  EXPECT_EQ(expected.flops(), 2 * 5 * 3 * 2);
}

/// Passes of each kind go through all parts, and the products that are written down are those that are counted.
TEST(KernelTiming, EveryPassOfAStageIsWrittenDown) {
  for (const ModelFamily family : {ModelFamily::kLlama, ModelFamily::kGpt2}) {
    ModelConfig config = tiny_config(family);
    config.num_layers = 1;
    ParameterSet parameters = ParameterSet::create(config, all_parts(config), ComputeType::kFloat32);
    randomize(parameters, 1);
    StageModule module(config, {.begin = 0, .end = 6}, parameters);
    const SliceData data = random_data(config, 1, 8, 2);
    KernelLog log;
    log.begin(steady_clock::now());
    {
      const RecordingScope recording(&log);
      Stash stash;
      module.forward(data, {}, &stash, nullptr);
      module.backward(data, {}, std::move(stash), nullptr, 0);
    }
    std::vector<std::string> passes;
    std::int64_t flops = 0;
    std::set<std::string> kernels;
    for (const KernelEvent& event : log.events()) {
      if (!event.kernel) passes.push_back(to_string(*event.part));
      if (event.kernel) kernels.insert(std::string(to_string(*event.kernel)));
      flops += event.gemm.flops();
    }
    EXPECT_EQ(passes, (std::vector<std::string>{"embed", "norm.0", "qkv.0", "attn.0", "post.0", "head", "head",
                                                "post.0", "attn.0", "qkv.0", "norm.0", "embed"}));
    EXPECT_EQ(flops, module.counts().gemm_flops);
    for (const char* kernel : {"gemm", "gemm_input_grad", "gemm_weight_grad", "attention", "attention_grad", "norm",
                               "norm_input_grad", "norm_weight_grad", "activation", "activation_grad", "cross_entropy",
                               "cross_entropy_grad", "embedding", "embedding_grad"})
      EXPECT_TRUE(kernels.contains(kernel)) << kernel;
  }
}

TEST(KernelTiming, EveryKindHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (int kind = 0; kind < kNumKernelKinds; ++kind) names.insert(to_string(static_cast<KernelKind>(kind)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kNumKernelKinds));
}

}  // namespace
}  // namespace plait::test
