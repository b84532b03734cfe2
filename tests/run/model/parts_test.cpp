// Every part of every family against finite differences, and the promises of StageModule.
#include "plait/run/data/random.h"

#include "support.h"
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace plait::test {
namespace {

constexpr std::int64_t kBatch = 2;
constexpr std::int64_t kTokens = 3;

at::Tensor random_tensor(at::IntArrayRef shape, std::uint64_t key) {
  at::Tensor values = at::empty(shape, at::TensorOptions().dtype(at::kDouble));
  auto* data = values.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < values.numel(); ++i) data[i] = 2 * uniform_at(key, static_cast<std::uint64_t>(i)) - 1;
  return values;
}

Payload random_payload(const ModelConfig& c, PartKind before, std::uint64_t key) {
  const auto make = [&](std::int64_t width, std::uint64_t salt) {
    return random_tensor({kBatch, kTokens, width}, random_bits(key, salt));
  };
  const std::int64_t d = c.hidden_size;
  switch (before) {
    case PartKind::kEmbed: return {};
    case PartKind::kNorm:
    case PartKind::kHead: return {make(d, 0)};
    case PartKind::kQkv: return {make(d, 0), make(d, 1)};
    case PartKind::kAttn: return {make((c.num_heads + 2 * c.num_kv_heads) * c.head_dim, 0), make(d, 1)};
    case PartKind::kPost: return {make(c.num_heads * c.head_dim, 0), make(d, 1)};
  }
  return {};
}

Payload copies(const Payload& payload) {
  Payload copy;
  for (const at::Tensor& tensor : payload) copy.push_back(tensor.clone());
  return copy;
}

/// A part with a scalar made of its outputs: fixed random weights, or the scaled loss.
class PartProblem {
 public:
  PartProblem(const ModelConfig& config, int part_idx)
      : config_(config),
        kind_(part_at(config.num_layers, part_idx).kind),
        parameters_(ParameterSet::create(config, {part_idx}, ComputeType::kFloat64)),
        module_(config, PartRange{.begin = part_idx, .end = part_idx + 1}, parameters_),
        data_(random_data(config, kBatch, kTokens, 7)),
        input_(random_payload(config, kind_, 11)) {
    randomize(parameters_, 5);
    data_.first_position = kind_ == PartKind::kAttn ? 2 : 1;  // positions that are not the row's own
  }

  double value() {
    ForwardResult result = module_.forward(data_, copies(input_), nullptr, nullptr);
    if (kind_ == PartKind::kHead) return result.loss.item<double>() * data_.loss_scale;
    double sum = 0;
    for (std::size_t i = 0; i < result.output.size(); ++i)
      sum += (result.output[i] * slope(result.output[i], i)).sum().item<double>();
    return sum;
  }

  Payload analytic_input_grads() {
    Stash stash;
    const ForwardResult result = module_.forward(data_, copies(input_), &stash, nullptr);
    Payload grad;
    for (std::size_t i = 0; i < result.output.size(); ++i) grad.push_back(slope(result.output[i], i));
    WeightStash weight_stash;
    Payload input_grad =
        module_.backward_input(data_, std::move(grad), std::move(stash), &weight_stash, nullptr, 0).input_grad;
    for (const auto& [name, parameter] : parameters_.by_name())
      EXPECT_EQ(parameter.grads.front().abs().max().item<double>(), 0) << name << " before backward_weight";
    module_.backward_weight(std::move(weight_stash));
    return input_grad;
  }

  at::Tensor numeric_grad(const at::Tensor& variable) {
    constexpr double kStep = 1e-5;
    at::Tensor grad = at::zeros_like(variable);
    for (std::int64_t i = 0; i < variable.numel(); ++i) {
      double& x = variable.mutable_data_ptr<double>()[i];
      const double kept = x;
      x = kept + kStep;
      const double above = value();
      x = kept - kStep;
      const double below = value();
      x = kept;
      grad.mutable_data_ptr<double>()[i] = (above - below) / (2 * kStep);
    }
    return grad;
  }

  [[nodiscard]] const Payload& input() const { return input_; }
  ParameterSet& parameters() { return parameters_; }

 private:
  static at::Tensor slope(const at::Tensor& output, std::size_t idx) { return random_tensor(output.sizes(), 90 + idx); }

  ModelConfig config_;
  PartKind kind_;
  ParameterSet parameters_;
  StageModule module_;
  SliceData data_;
  Payload input_;
};

class Parts : public testing::TestWithParam<ModelFamily> {};

TEST_P(Parts, GradientsEqualFiniteDifferences) {
  const ModelConfig config = tiny_config(GetParam());
  for (int idx = 0; idx < num_parts(config.num_layers); ++idx) {
    SCOPED_TRACE(to_string(part_at(config.num_layers, idx)));
    PartProblem problem(config, idx);
    const Payload grads = problem.analytic_input_grads();
    ASSERT_EQ(grads.size(), problem.input().size());
    for (std::size_t i = 0; i < grads.size(); ++i)
      EXPECT_LT(relative_error(grads[i], problem.numeric_grad(problem.input()[i])), 1e-7) << "input " << i;
    for (const auto& [name, parameter] : problem.parameters().by_name())
      EXPECT_LT(relative_error(parameter.grads.front(), problem.numeric_grad(parameter.master)), 1e-7) << name;
  }
}

TEST_P(Parts, SlicesEqualTheWhole) {
  const ModelConfig config = tiny_config(GetParam());
  const SliceData data = random_data(config, 2, 9, 3);
  const auto run = [&](ComputeType type, const std::vector<std::int64_t>& lengths) {
    ParameterSet parameters = ParameterSet::create(config, all_parts(config), type);
    randomize(parameters, 17);
    const PipelineResult result =
        lengths.empty() ? run_stages(config, parameters, {}, data) : run_slices(config, parameters, {4}, data, lengths);
    return std::pair(result, gradients(parameters));
  };
  for (const auto& [type, tolerance] : {std::pair(ComputeType::kFloat64, 1e-12), std::pair(ComputeType::kFloat32, 1e-5),
                                        std::pair(ComputeType::kBFloat16, 5e-2)}) {
    const auto [whole, whole_grads] = run(type, {});
    for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{3, 3, 3}, {1, 6, 2}}) {
      const auto [sliced, sliced_grads] = run(type, lengths);
      EXPECT_NEAR(sliced.loss, whole.loss, tolerance * whole.loss);
      EXPECT_THAT(differing(sliced_grads, whole_grads, tolerance), testing::IsEmpty());
    }
  }
}

TEST_P(Parts, CachedTokensEqualTheWhole) {
  const ModelConfig config = tiny_config(GetParam());
  const SliceData data = random_data(config, 1, 8, 3);
  ParameterSet parameters = ParameterSet::create(config, all_parts(config), ComputeType::kFloat64);
  randomize(parameters, 17);
  StageModule module(config, PartRange{.begin = 0, .end = num_parts(config.num_layers)}, parameters);
  const ForwardResult whole = module.forward(data, {}, nullptr, nullptr, KeepLogits::kYes);
  KvCache cache;
  std::int64_t first = 0;
  double loss = 0;
  for (const std::int64_t count : {3, 1, 1, 2, 1}) {
    const SliceData part{.tokens = data.tokens.narrow(1, first, count),
                         .targets = data.targets.narrow(1, first, count),
                         .first_position = first};
    const ForwardResult result = module.forward(part, {}, nullptr, &cache, KeepLogits::kYes);
    EXPECT_LT(relative_error(result.logits, whole.logits.narrow(1, first, count)), 1e-12) << "tokens from " << first;
    loss += result.loss.item<double>();
    first += count;
  }
  EXPECT_NEAR(loss, whole.loss.item<double>(), 1e-12 * loss);
}

TEST_P(Parts, ForwardLeavesAPayloadThatOthersHoldAsItWas) {
  const ModelConfig config = tiny_config(GetParam());
  const int attn = part_index(config.num_layers, Part{.kind = PartKind::kAttn, .layer = 0});
  ParameterSet parameters = ParameterSet::create(config, {attn}, ComputeType::kFloat64);
  StageModule module(config, PartRange{.begin = attn, .end = attn + 1}, parameters);
  const SliceData data = random_data(config, kBatch, kTokens, 3);
  const Payload held = random_payload(config, PartKind::kAttn, 4);
  const Payload before = copies(held);
  module.forward(data, held, nullptr, nullptr);
  EXPECT_TRUE(held[0].equal(before[0]));
  EXPECT_TRUE(held[1].equal(before[1]));
}

TEST_P(Parts, MaskedTokensHaveNoGradient) {
  const ModelConfig config = tiny_config(GetParam());
  SliceData data = random_data(config, kBatch, kTokens, 3);
  data.targets.fill_(kIgnoredTarget);
  data.loss_scale = 1;
  ParameterSet parameters = ParameterSet::create(config, all_parts(config), ComputeType::kFloat64);
  randomize(parameters, 17);
  EXPECT_EQ(run_stages(config, parameters, {}, data).loss, 0);
  for (const auto& [name, grad] : gradients(parameters)) EXPECT_EQ(grad.abs().max().item<double>(), 0) << name;
}

TEST_P(Parts, GradientsAddUpOverMicrobatches) {
  const ModelConfig config = tiny_config(GetParam());
  const SliceData both = random_data(config, 2, 6, 3);
  ParameterSet expected = ParameterSet::create(config, all_parts(config), ComputeType::kFloat64);
  randomize(expected, 17);
  run_stages(config, expected, {}, both);
  ParameterSet parameters = ParameterSet::create(config, all_parts(config), ComputeType::kFloat64);
  randomize(parameters, 17);
  for (const std::int64_t row : {0, 1})
    run_stages(config, parameters, {3},
               SliceData{.tokens = both.tokens.narrow(0, row, 1),
                         .targets = both.targets.narrow(0, row, 1),
                         .loss_scale = both.loss_scale});
  EXPECT_THAT(differing(gradients(parameters), gradients(expected), 1e-13), testing::IsEmpty());
}

// What they held before counts no more, though nothing zeroed it.
TEST_P(Parts, EmptiedGradientsBeginAnew) {
  const ModelConfig config = tiny_config(GetParam());
  ParameterSet parameters = ParameterSet::create(config, all_parts(config), ComputeType::kFloat64);
  randomize(parameters, 17);
  const auto fold_all = [&] {
    for (const ParameterSpec& spec : parameter_specs(config))
      if (ParameterStorage* storage = parameters.find_storage(spec.name)) storage->fold_grads();
  };
  const SliceData data = random_data(config, 2, 6, 3);
  run_stages(config, parameters, {}, data);
  fold_all();
  const TensorMap first = gradients(parameters);
  for (const auto& [name, grad] : first) EXPECT_GT(grad.abs().max().item<double>(), 0) << name;
  for (auto& [name, parameter] : parameters.by_name())
    for (const at::Tensor& grad : parameter.grads) grad.fill_(std::numeric_limits<double>::quiet_NaN());
  parameters.empty_grads();
  run_stages(config, parameters, {}, data);
  fold_all();
  EXPECT_THAT(differing(gradients(parameters), first, 0), testing::IsEmpty());
  // Where nothing comes, the sum is zero.
  parameters.empty_grads();
  fold_all();
  for (auto& [name, parameter] : parameters.by_name())
    EXPECT_EQ(parameter.grads.front().abs().max().item<double>(), 0) << name;
}

std::string family_name(const testing::TestParamInfo<ModelFamily>& family) {
  return std::vector<std::string>{"llama", "mistral", "qwen2", "gpt2"}[static_cast<std::size_t>(family.param)];
}
INSTANTIATE_TEST_SUITE_P(Families, Parts,
                         testing::Values(ModelFamily::kLlama, ModelFamily::kMistral, ModelFamily::kQwen2,
                                         ModelFamily::kGpt2),
                         family_name);

}  // namespace
}  // namespace plait::test
