// The reference models: losses, logits and gradients computed in plain fp64 by PyTorch.
#include "plait/base/files.h"
#include "plait/run/hf/model_dir.h"
#include "plait/run/hf/safetensors.h"

#include "support.h"
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>

namespace plait::test {
namespace {

struct Reference {
  ModelConfig config;
  TensorMap weights;
  TensorMap grads;
  at::Tensor logits;  ///< [rows,T,V]
  SliceData data;     ///< all rows; the last token of each has no successor
  double loss = 0;
  double grad_norm = 0;
};

Reference read_reference(const std::filesystem::path& dir) {
  Reference reference;
  reference.config = read_model_config(dir).value();
  reference.weights = read_model_weights(dir, reference.config).value();
  reference.grads = read_safetensors(dir / "grads.safetensors").value();
  reference.logits = read_safetensors(dir / "logits.safetensors").value().at("logits");
  const auto json = nlohmann::json::parse(read_file((dir / "reference.json").string()).value());
  const auto rows = json["tokens"].get<std::vector<std::vector<std::int64_t>>>();
  std::vector<std::int64_t> flat;
  for (const auto& row : rows) flat.insert(flat.end(), row.begin(), row.end());
  const at::Tensor tokens =
      at::tensor(flat, at::TensorOptions().dtype(at::kLong)).view({static_cast<std::int64_t>(rows.size()), -1});
  reference.data.tokens = tokens;
  reference.data.targets = tokens.roll(-1, 1);
  reference.data.targets.narrow(1, tokens.size(1) - 1, 1).fill_(kIgnoredTarget);
  reference.data.loss_scale = 1.0 / static_cast<double>(valid_targets(reference.data));
  reference.loss = json["loss_fp64"].get<double>();
  reference.grad_norm = json["grad_norm_fp64"].get<double>();
  return reference;
}

class Fixtures : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    dir_ = fixture(GetParam());
    if (dir_.empty()) GTEST_SKIP() << "the shared fixtures are not here: " << PLAIT_SHARED_DIR;
    reference_ = read_reference(dir_);
  }
  [[nodiscard]] ParameterSet weights(ComputeType type) const {
    ParameterSet parameters = ParameterSet::create(reference_.config, all_parts(reference_.config), type);
    set_weights(parameters, reference_.weights);
    return parameters;
  }
  std::filesystem::path dir_;
  Reference reference_;
};

TEST_P(Fixtures, Fp64EqualsTheReference) {
  ParameterSet parameters = weights(ComputeType::kFloat64);
  const PipelineResult result = run_stages(reference_.config, parameters, {}, reference_.data);
  EXPECT_NEAR(result.loss * reference_.data.loss_scale, reference_.loss, 1e-12 * reference_.loss);
  EXPECT_LT(relative_error(result.logits, reference_.logits), 1e-10);
  const TensorMap grads = gradients(parameters);
  EXPECT_THAT(differing(grads, reference_.grads, 1e-10), testing::IsEmpty());
  double squares = 0;
  for (const auto& [name, grad] : grads) squares += (grad * grad).sum().item<double>();
  EXPECT_NEAR(std::sqrt(squares), reference_.grad_norm, 1e-10 * reference_.grad_norm);
}

TEST_P(Fixtures, EveryCutGivesTheSameBits) {
  ParameterSet whole = weights(ComputeType::kFloat64);
  const PipelineResult expected = run_stages(reference_.config, whole, {}, reference_.data);
  // Five is prime to the parts of a layer: deep chains are cut at every kind of part, too.
  const int num = num_parts(reference_.config.num_layers);
  for (int cut = 1; cut<num; cut += num> 20 ? 5 : 1) {
    ParameterSet parameters = weights(ComputeType::kFloat64);
    const PipelineResult result =
        run_stages(reference_.config, parameters, {cut}, reference_.data, WeightGrads::kAfterAll);
    EXPECT_EQ(result.loss, expected.loss) << "cut before " << to_string(part_at(reference_.config.num_layers, cut));
    EXPECT_THAT(differing(gradients(parameters), gradients(whole), 0), testing::IsEmpty());
  }
}

TEST_P(Fixtures, SlicesEqualTheWhole) {
  ParameterSet whole = weights(ComputeType::kFloat64);
  const PipelineResult expected = run_stages(reference_.config, whole, {}, reference_.data);
  const std::int64_t tokens = reference_.data.tokens.size(1);
  for (const std::vector<std::int64_t>& lengths :
       {std::vector<std::int64_t>{tokens}, {tokens - 5, 5}, {1, 5, tokens - 10, 4}, {4, 4, 4, tokens - 12}}) {
    ParameterSet parameters = weights(ComputeType::kFloat64);
    const PipelineResult result = run_slices(reference_.config, parameters, {5, 7}, reference_.data, lengths);
    EXPECT_NEAR(result.loss, expected.loss, 1e-12 * expected.loss);
    EXPECT_LT(relative_error(result.logits, expected.logits), 1e-11);
    EXPECT_THAT(differing(gradients(parameters), gradients(whole), 1e-11), testing::IsEmpty());
  }
}

TEST_P(Fixtures, Fp32IsClose) {
  ParameterSet parameters = weights(ComputeType::kFloat32);
  const PipelineResult result = run_stages(reference_.config, parameters, {}, reference_.data);
  EXPECT_NEAR(result.loss * reference_.data.loss_scale, reference_.loss, 1e-6 * reference_.loss);
  EXPECT_THAT(differing(gradients(parameters), reference_.grads, 1e-5), testing::IsEmpty());
}

TEST_P(Fixtures, Bf16IsNear) {
  ParameterSet parameters = weights(ComputeType::kBFloat16);
  const PipelineResult result = run_stages(reference_.config, parameters, {}, reference_.data);
  EXPECT_NEAR(result.loss * reference_.data.loss_scale, reference_.loss, 1e-2 * reference_.loss);
  double squares = 0;
  const TensorMap grads = gradients(parameters);
  for (const auto& [name, expected] : reference_.grads)
    squares += (grads.at(name).to(at::kDouble) - expected).square().sum().item<double>();
  EXPECT_LT(std::sqrt(squares), 0.1 * reference_.grad_norm);
}

INSTANTIATE_TEST_SUITE_P(Models, Fixtures,
                         testing::Values("gpt2-tiny", "llama-deep-tiny", "llama-gqa-tied-tiny", "llama-tiny",
                                         "qwen2-tiny"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace plait::test
