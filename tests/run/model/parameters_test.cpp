#include "plait/run/model/parameters.h"

#include "support.h"
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace plait::test {
namespace {

TensorMap masters(const ParameterSet& parameters) {
  TensorMap tensors;
  for (const auto& [name, parameter] : parameters.by_name()) tensors.emplace(name, parameter.master);
  return tensors;
}

ParameterSet initialized(const ModelConfig& config, const std::vector<int>& parts, ComputeType type,
                         std::uint64_t seed) {
  ParameterSet parameters = ParameterSet::create(config, parts, type);
  parameters.initialize(seed);
  return parameters;
}

TEST(ParameterSpecs, OwnersFollowTheChain) {
  for (const ModelFamily family :
       {ModelFamily::kLlama, ModelFamily::kMistral, ModelFamily::kQwen2, ModelFamily::kGpt2}) {
    const ModelConfig config = tiny_config(family);
    int last = 0;
    for (const ParameterSpec& spec : parameter_specs(config)) {
      EXPECT_GE(spec.part, last) << spec.name;
      last = spec.part;
      EXPECT_NE(part_at(config.num_layers, spec.part).kind, PartKind::kAttn) << spec.name;
    }
    EXPECT_EQ(last, num_parts(config.num_layers) - 1);
  }
}

TEST(ParameterSet, HoldsWhatItsPartsUse) {
  const ModelConfig config = tiny_config(ModelFamily::kLlama);  // tied
  const int head = num_parts(config.num_layers) - 1;
  const auto uses = [&](const std::vector<int>& parts) {
    const ParameterSet set = ParameterSet::create(config, parts, ComputeType::kFloat32);
    const auto found = set.by_name().find(token_table_name(config));
    return found == set.by_name().end() ? std::size_t{0} : found->second.grads.size();
  };
  EXPECT_EQ(uses({0, 1}), 1U);
  EXPECT_EQ(uses({1, 2}), 0U);
  EXPECT_EQ(uses({head}), 1U);
  EXPECT_EQ(uses({0, head}), 2U);
}

TEST(ParameterSet, FusedTensorsAreRowsOfOneAllocation) {
  const ModelConfig config = tiny_config(ModelFamily::kQwen2);
  for (const ComputeType type : {ComputeType::kFloat32, ComputeType::kBFloat16, ComputeType::kFloat64}) {
    ParameterSet set = initialized(config, all_parts(config), type, 1);
    const ParameterStorage& qkv = set.storage("model.layers.1.self_attn.q_proj.weight");
    const auto& k = set.by_name().at("model.layers.1.self_attn.k_proj.weight");
    const auto rows = [&](const at::Tensor& whole) { return whole.narrow(0, 16, 8).const_data_ptr(); };
    EXPECT_EQ(k.master.const_data_ptr(), rows(qkv.master));
    EXPECT_EQ(k.compute.const_data_ptr(), rows(qkv.compute));
    EXPECT_EQ(k.grads.front().const_data_ptr(), rows(qkv.grads.front()));
    EXPECT_EQ(k.compute.scalar_type(), scalar_type(type));
    EXPECT_EQ(k.grads.front().scalar_type(), master_type(type));
    EXPECT_TRUE(k.compute.equal(k.master.to(scalar_type(type))));
  }
}

TEST(ParameterSet, InitialValuesDependOnSeedAndNameAlone) {
  const ModelConfig config = tiny_config(ModelFamily::kGpt2);
  const TensorMap whole = masters(initialized(config, all_parts(config), ComputeType::kFloat64, 42));
  const TensorMap other_seed = masters(initialized(config, all_parts(config), ComputeType::kFloat64, 43));
  EXPECT_FALSE(whole.at("transformer.wte.weight").equal(other_seed.at("transformer.wte.weight")));
  EXPECT_FALSE(whole.at("transformer.h.0.mlp.c_fc.weight").equal(whole.at("transformer.h.1.mlp.c_fc.weight")));
  for (int part = 0; part < num_parts(config.num_layers); ++part)
    for (const auto& [name, tensor] : masters(initialized(config, {part}, ComputeType::kFloat64, 42)))
      EXPECT_TRUE(tensor.equal(whole.at(name))) << name;
  for (const auto& [name, tensor] : masters(initialized(config, all_parts(config), ComputeType::kFloat32, 42)))
    EXPECT_TRUE(tensor.equal(whole.at(name).to(at::kFloat))) << name;
}

TEST(ParameterSet, InitialValuesAreNormal) {
  ModelConfig config = tiny_config(ModelFamily::kGpt2);
  config.vocab_size = 20011;  // odd number of values
  config.hidden_size = 13;
  config.num_heads = config.num_kv_heads = 1;
  config.head_dim = 13;
  config.ffn_size = 4001;
  const TensorMap tensors = masters(initialized(config, all_parts(config), ComputeType::kFloat64, 1));
  const auto moments = [&](const std::string& name) {
    const at::Tensor& x = tensors.at(name);
    const double deviation = x.square().mean().sqrt().item<double>();
    return std::array{x.mean().item<double>() / deviation, deviation, (x / deviation).pow(4).mean().item<double>()};
  };
  // 260143 values: standard errors 0.002 of the mean, 0.0014 of the deviation, 0.01 of the fourth moment (3 for normal).
  const auto [mean, deviation, fourth] = moments("transformer.wte.weight");
  EXPECT_NEAR(mean, 0, 0.01);
  EXPECT_NEAR(deviation, 0.02, 0.02 * 0.007);
  EXPECT_NEAR(fourth, 3, 0.05);
  EXPECT_NEAR(moments("transformer.h.0.mlp.c_proj.weight")[1], 0.02 / std::sqrt(4.0), 0.01 * 0.05);
  EXPECT_TRUE((tensors.at("transformer.h.0.ln_1.weight") == 1).all().item<bool>());
  EXPECT_TRUE((tensors.at("transformer.h.0.attn.c_attn.bias") == 0).all().item<bool>());
}

}  // namespace
}  // namespace plait::test
