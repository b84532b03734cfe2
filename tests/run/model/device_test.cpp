// No part may assume host memory. Torch's device "meta" knows shapes and types and has no elements: a part that reads an
// element, or makes a tensor on the host and computes with it, fails there as it would on a GPU.

#include "plait/run/model/stage_module.h"

#include "support.h"
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <tuple>

namespace plait::test {
namespace {

class OnMeta : public ::testing::TestWithParam<std::tuple<ModelFamily, ComputeType>> {};

TEST_P(OnMeta, PartsComputeWhereTheirParametersLie) {
  const auto& [family, type] = GetParam();
  const ModelConfig config = tiny_config(family);
  const at::Device meta(at::kMeta);
  ParameterSet parameters = ParameterSet::create(config, all_parts(config), type, meta);
  // Embed's gather has no rule for this device in C++.
  StageModule module(config, PartRange{.begin = 1, .end = num_parts(config.num_layers)}, parameters);
  constexpr std::int64_t kBatch = 2;
  constexpr std::int64_t kTokens = 6;
  SliceData data{.tokens = at::empty({kBatch, kTokens}, at::TensorOptions().dtype(at::kLong).device(meta)),
                 .targets = at::empty({kBatch, kTokens}, at::TensorOptions().dtype(at::kLong).device(meta))};
  const auto input = [&] {
    return Payload{
        at::empty({kBatch, kTokens, config.hidden_size}, at::TensorOptions().dtype(scalar_type(type)).device(meta))};
  };
  Stash stash;
  WeightStash weight_stash;
  module.forward(data, input(), &stash, nullptr);
  const BackwardResult split = module.backward_input(data, {}, std::move(stash), &weight_stash, nullptr, 0);
  module.backward_weight(std::move(weight_stash));
  Stash again;
  module.forward(data, input(), &again, nullptr);
  const BackwardResult whole = module.backward(data, {}, std::move(again), nullptr, 0);
  const ForwardResult evaluated = module.forward(data, input(), nullptr, nullptr);
  for (const at::Tensor& tensor :
       {split.input_grad.at(0), split.loss, whole.input_grad.at(0), whole.loss, evaluated.loss})
    EXPECT_EQ(tensor.device(), meta);
  EXPECT_EQ(split.input_grad[0].sizes(), at::IntArrayRef({kBatch, kTokens, config.hidden_size}));
}

INSTANTIATE_TEST_SUITE_P(Families, OnMeta,
                         ::testing::Combine(::testing::Values(ModelFamily::kLlama, ModelFamily::kQwen2,
                                                              ModelFamily::kGpt2),
                                            ::testing::Values(ComputeType::kFloat32, ComputeType::kBFloat16)));

}  // namespace
}  // namespace plait::test
