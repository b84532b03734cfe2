#include "support.h"

#include "plait/base/check.h"
#include "plait/run/data/random.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

namespace plait::test {
namespace {

// As ranks run: one intra-op thread.
const bool kOneThread = [] {
  at::set_num_threads(1);
  return true;
}();

}  // namespace

std::vector<int> all_parts(const ModelConfig& config) {
  PLAIT_CHECK(kOneThread, "set before main");
  std::vector<int> parts(static_cast<std::size_t>(num_parts(config.num_layers)));
  std::iota(parts.begin(), parts.end(), 0);
  return parts;
}

ModelConfig tiny_config(ModelFamily family) {
  ModelConfig config;
  config.family = family;
  config.num_layers = 2;
  config.hidden_size = 12;
  config.ffn_size = 10;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 4;  // heads together are wider than the model
  config.vocab_size = 13;
  config.max_positions = 32;
  if (family == ModelFamily::kLlama) {
    config.tied_head = true;
    config.rope_scaling = Llama3RopeScaling{
        .factor = 4.0, .low_freq_factor = 1.0, .high_freq_factor = 4.0, .original_max_position_embeddings = 64};
  }
  if (family == ModelFamily::kQwen2) config.attention_bias = true;
  if (family == ModelFamily::kGpt2) {
    config.num_kv_heads = 4;
    config.head_dim = 3;
    config.activation = Activation::kGeluTanh;
    config.attention_bias = true;
    config.tied_head = true;
  }
  return config;
}

void set_weights(ParameterSet& parameters, const TensorMap& weights) {
  for (auto& [name, parameter] : parameters.by_name()) parameter.master.copy_(weights.at(name));
  parameters.refresh_compute();
}

void randomize(ParameterSet& parameters, std::uint64_t seed) {
  for (auto& [name, parameter] : parameters.by_name()) {
    const std::uint64_t key = random_bits(seed, std::hash<std::string>{}(name));
    const at::Tensor values = at::empty(parameter.master.sizes(), at::TensorOptions().dtype(at::kDouble));
    auto* data = values.mutable_data_ptr<double>();
    for (std::int64_t i = 0; i < values.numel(); ++i) data[i] = uniform_at(key, static_cast<std::uint64_t>(i)) - 0.5;
    const bool is_norm_weight = values.dim() == 1 && name.ends_with(".weight");
    parameter.master.copy_(is_norm_weight ? values + 1.0 : values);
  }
  parameters.refresh_compute();
}

TensorMap gradients(const ParameterSet& parameters) {
  TensorMap grads;
  for (const auto& [name, parameter] : parameters.by_name()) {
    at::Tensor sum = parameter.grads.front().clone();
    for (std::size_t use = 1; use < parameter.grads.size(); ++use) sum.add_(parameter.grads[use]);
    grads.emplace(name, sum);
  }
  return grads;
}

SliceData random_data(const ModelConfig& config, std::int64_t batch, std::int64_t tokens, std::uint64_t seed) {
  const at::Tensor ids = at::empty({batch, tokens + 1}, at::TensorOptions().dtype(at::kLong));
  auto* data = ids.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < ids.numel(); ++i)
    data[i] = static_cast<std::int64_t>(random_bits(seed, static_cast<std::uint64_t>(i)) %
                                        static_cast<std::uint64_t>(config.vocab_size));
  SliceData slice{.tokens = ids.narrow(1, 0, tokens).clone(), .targets = ids.narrow(1, 1, tokens).clone()};
  slice.targets.narrow(1, 0, 1).fill_(kIgnoredTarget);
  slice.loss_scale = 1.0 / static_cast<double>(valid_targets(slice));
  return slice;
}

std::int64_t valid_targets(const SliceData& data) {
  return (data.targets != kIgnoredTarget).sum().item<std::int64_t>();
}

namespace {

std::vector<StageModule> make_stages(const ModelConfig& config, ParameterSet& parameters,
                                     const std::vector<int>& cuts) {
  std::vector<int> bounds{0};
  bounds.insert(bounds.end(), cuts.begin(), cuts.end());
  bounds.push_back(num_parts(config.num_layers));
  std::vector<StageModule> stages;
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i)
    stages.emplace_back(config, PartRange{.begin = bounds[i], .end = bounds[i + 1]}, parameters);
  return stages;
}

}  // namespace

PipelineResult run_stages(const ModelConfig& config, ParameterSet& parameters, const std::vector<int>& cuts,
                          const SliceData& data, WeightGrads when) {
  std::vector<StageModule> stages = make_stages(config, parameters, cuts);
  std::vector<Stash> stashes(stages.size());
  std::vector<WeightStash> weight_stashes(stages.size());
  PipelineResult result;
  Payload payload;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    ForwardResult forward = stages[i].forward(data, std::move(payload), &stashes[i], nullptr, KeepLogits::kYes);
    payload = std::move(forward.output);
    if (forward.logits.defined()) result.logits = forward.logits;
  }
  Payload grad;
  for (std::size_t i = stages.size(); i-- > 0;) {
    BackwardResult backward =
        stages[i].backward_input(data, std::move(grad), std::move(stashes[i]), &weight_stashes[i], nullptr, 0);
    grad = std::move(backward.input_grad);
    if (backward.loss.defined()) result.loss = backward.loss.item<double>();
    if (when == WeightGrads::kAtOnce) stages[i].backward_weight(std::move(weight_stashes[i]));
  }
  if (when == WeightGrads::kAfterAll)
    for (std::size_t i = 0; i < stages.size(); ++i) stages[i].backward_weight(std::move(weight_stashes[i]));
  return result;
}

PipelineResult run_slices(const ModelConfig& config, ParameterSet& parameters, const std::vector<int>& cuts,
                          const SliceData& data, const std::vector<std::int64_t>& lengths) {
  std::vector<StageModule> stages = make_stages(config, parameters, cuts);
  std::vector<KvCache> caches(stages.size());
  std::vector<SliceData> slices;
  std::int64_t first = 0;
  for (const std::int64_t length : lengths) {
    slices.push_back({.tokens = data.tokens.narrow(1, first, length),
                      .targets = data.targets.narrow(1, first, length),
                      .first_position = first,
                      .loss_scale = data.loss_scale});
    first += length;
  }
  PLAIT_CHECK(first == data.tokens.size(1), "slices of {} tokens in all", first);
  std::vector<std::vector<Stash>> stashes(slices.size(), std::vector<Stash>(stages.size()));
  PipelineResult result;
  std::vector<at::Tensor> logits;
  for (std::size_t q = 0; q < slices.size(); ++q) {
    Payload payload;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      ForwardResult forward =
          stages[i].forward(slices[q], std::move(payload), &stashes[q][i], &caches[i], KeepLogits::kYes);
      payload = std::move(forward.output);
      if (forward.logits.defined()) logits.push_back(forward.logits);
    }
  }
  result.logits = at::cat(logits, 1);
  for (std::size_t q = slices.size(); q-- > 0;) {
    Payload grad;
    for (std::size_t i = stages.size(); i-- > 0;) {
      WeightStash weight_stash;
      BackwardResult backward = stages[i].backward_input(slices[q], std::move(grad), std::move(stashes[q][i]),
                                                         &weight_stash, &caches[i], static_cast<int>(q));
      grad = std::move(backward.input_grad);
      if (backward.loss.defined()) result.loss += backward.loss.item<double>();
      stages[i].backward_weight(std::move(weight_stash));
    }
  }
  return result;
}

double relative_error(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor expected = b.to(at::kDouble);
  return (a.to(at::kDouble) - expected).abs().max().item<double>() / expected.abs().max().item<double>();
}

std::vector<std::string> differing(const TensorMap& result, const TensorMap& expected, double tolerance) {
  double largest = 0;
  for (const auto& [name, tensor] : expected) largest = std::max(largest, tensor.abs().max().item().toDouble());
  std::vector<std::string> names;
  for (const auto& [name, tensor] : expected) {
    const auto found = result.find(name);
    if (found == result.end() || found->second.sizes() != tensor.sizes()) {
      names.push_back(name + " (missing)");
      continue;
    }
    const double difference = (found->second.to(at::kDouble) - tensor.to(at::kDouble)).abs().max().item<double>();
    if (!(difference <= tolerance * largest)) names.push_back(name + " by " + std::to_string(difference / largest));
  }
  for (const auto& [name, tensor] : result)
    if (!expected.contains(name)) names.push_back(name + " (unexpected)");
  return names;
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "plait-test-XXXXXX").string();
  PLAIT_CHECK(::mkdtemp(name.data()) != nullptr, "no temporary folder");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path fixture(const std::string& name) {
  const std::filesystem::path path = std::filesystem::path(PLAIT_SHARED_DIR) / "fixtures" / "models" / name;
  return std::filesystem::exists(path) ? path : std::filesystem::path();
}

}  // namespace plait::test
