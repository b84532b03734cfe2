// No part may assume host memory. Torch's device "meta" knows shapes and types and has no elements: a part that reads an
// element, or makes a tensor on the host and computes with it, fails there as it would on a GPU.

#include "plait/run/model/stage_module.h"

#include "support.h"
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <tuple>
#include <utility>
#include <vector>

namespace plait::test {
namespace {

class OnMeta : public ::testing::TestWithParam<std::tuple<ModelFamily, ComputeType>> {};

constexpr std::int64_t kBatch = 2;
constexpr std::int64_t kTokens = 6;
const at::Device kMetaDevice(at::kMeta);

at::Tensor empty(std::int64_t width, ComputeType type) {
  return at::empty({kBatch, kTokens, width}, at::TensorOptions().dtype(scalar_type(type)).device(kMetaDevice));
}

/// Forward and both kinds of backward of some parts; the gradients that come out in front.
std::vector<Payload> pass_through(StageModule& module, const Payload& input, const Payload& output_grad) {
  const at::TensorOptions ids = at::TensorOptions().dtype(at::kLong).device(kMetaDevice);
  const SliceData data{.tokens = at::empty({kBatch, kTokens}, ids), .targets = at::empty({kBatch, kTokens}, ids)};
  Stash stash;
  WeightStash weight_stash;
  module.forward(data, input, &stash, nullptr);
  std::vector<Payload> results;
  results.push_back(module.backward_input(data, output_grad, std::move(stash), &weight_stash, nullptr, 0).input_grad);
  module.backward_weight(std::move(weight_stash));
  Stash again;
  module.forward(data, input, &again, nullptr);
  results.push_back(module.backward(data, output_grad, std::move(again), nullptr, 0).input_grad);
  return results;
}

// Embed, attention and head need operators for which torch has no rule on this device in C++.
TEST_P(OnMeta, NormQkvAndPostComputeWhereTheirParametersLie) {
  const auto& [family, type] = GetParam();
  const ModelConfig config = tiny_config(family);
  ParameterSet parameters = ParameterSet::create(config, all_parts(config), type, kMetaDevice);
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t heads = config.num_heads * config.head_dim;
  const std::int64_t qkv = heads + 2 * config.num_kv_heads * config.head_dim;
  StageModule norm_and_qkv(config, PartRange{.begin = 1, .end = 3}, parameters);
  StageModule post(config, PartRange{.begin = 4, .end = 5}, parameters);
  for (const Payload& grads :
       pass_through(norm_and_qkv, {empty(hidden, type)}, {empty(qkv, type), empty(hidden, type)})) {
    ASSERT_EQ(grads.size(), 1U);
    EXPECT_EQ(grads[0].device(), kMetaDevice);
    EXPECT_EQ(grads[0].sizes(), at::IntArrayRef({kBatch, kTokens, hidden}));
  }
  for (const Payload& grads : pass_through(post, {empty(heads, type), empty(hidden, type)}, {empty(hidden, type)})) {
    ASSERT_EQ(grads.size(), 2U);
    EXPECT_EQ(grads[0].device(), kMetaDevice);
    EXPECT_EQ(grads[0].sizes(), at::IntArrayRef({kBatch, kTokens, heads}));
    EXPECT_EQ(grads[1].sizes(), at::IntArrayRef({kBatch, kTokens, hidden}));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, OnMeta,
                         ::testing::Combine(::testing::Values(ModelFamily::kLlama, ModelFamily::kQwen2,
                                                              ModelFamily::kGpt2),
                                            ::testing::Values(ComputeType::kFloat32, ComputeType::kBFloat16)));

}  // namespace
}  // namespace plait::test
