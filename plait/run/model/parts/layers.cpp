#include "plait/run/model/parts/layers.h"

#include "plait/run/model/kernels/norm.h"

#include <iterator>
#include <utility>

namespace plait {
namespace {

bool is_gpt2(const ModelConfig& config) {
  return config.family == ModelFamily::kGpt2;
}

/// Conv1D is GPT-2's alone; its LM head is an ordinary linear map.
kernels::WeightLayout layout_of(const ModelConfig& config, const std::string& weight) {
  return is_gpt2(config) && weight.starts_with("transformer.h.") ? kernels::WeightLayout::kInOut
                                                                 : kernels::WeightLayout::kOutIn;
}

}  // namespace

std::string layer_prefix(const ModelConfig& config, int layer) {
  return (is_gpt2(config) ? "transformer.h." : "model.layers.") + std::to_string(layer) + ".";
}

LinearLayer::LinearLayer(const StageShared& stage, const std::string& weight, const std::string& bias)
    : counts_(stage.counts),
      weight_(&stage.parameters.storage(weight)),
      bias_(bias.empty() ? nullptr : &stage.parameters.storage(bias)),
      layout_(layout_of(stage.config, weight)) {
  weight_->is_of_products = true;
}

at::Tensor LinearLayer::forward(const at::Tensor& x) const {
  count(x);
  return kernels::linear(x, weight_->compute, bias_ == nullptr ? at::Tensor() : bias_->compute, layout_);
}

at::Tensor LinearLayer::forward_plus(const at::Tensor& residual, const at::Tensor& x) const {
  count(x);
  return kernels::linear_plus(residual, x, weight_->compute, bias_ == nullptr ? at::Tensor() : bias_->compute, layout_);
}

void LinearLayer::forward_plus_into(at::Tensor y, const at::Tensor& residual, const at::Tensor& x) const {
  count(x);
  kernels::linear_plus_into(y, residual, x, weight_->compute, bias_ == nullptr ? at::Tensor() : bias_->compute,
                            layout_);
}

at::Tensor LinearLayer::input_grad(const at::Tensor& dy) const {
  count(dy);
  return kernels::linear_input_grad(dy, weight_->compute, layout_);
}

void LinearLayer::input_grad_into(at::Tensor dx, const at::Tensor& dy) const {
  count(dy);
  kernels::linear_input_grad_into(dx, dy, weight_->compute, layout_);
}

void LinearLayer::accumulate(const at::Tensor& x, const at::Tensor& dy) const {
  counts_->gemm_flops += 2 * dy.size(0) * dy.size(1) * x.size(1);
  // Embed comes first among the uses of a tied table, so the last accumulator is this one's.
  const bool overwrites = std::exchange(weight_->is_blank, false);
  kernels::accumulate_weight_grad(weight_->grads.back(), x, dy, layout_,
                                  overwrites ? kernels::Accumulate::kOverwrite : kernels::Accumulate::kAdd);
  if (bias_ != nullptr) kernels::accumulate_bias_grad(bias_->grads.front(), dy);
}

NormLayer::NormLayer(const StageShared& stage, const std::string& name)
    : weight_(&stage.parameters.storage(name + ".weight")),
      bias_(is_gpt2(stage.config) ? &stage.parameters.storage(name + ".bias") : nullptr),
      eps_(stage.config.norm_eps) {}

NormLayer::Output NormLayer::forward(const at::Tensor& x) const {
  if (bias_ == nullptr) {
    auto result = kernels::rms_norm(x, weight_->compute, eps_);
    return {.y = std::move(result.y), .statistics = {std::move(result.rstd)}};
  }
  auto result = kernels::layer_norm(x, weight_->compute, bias_->compute, eps_);
  return {.y = std::move(result.y), .statistics = {std::move(result.mean), std::move(result.rstd)}};
}

void NormLayer::keep_weights(std::vector<at::Tensor>& stash) const {
  stash.push_back(weight_->compute);
  if (bias_ != nullptr) stash.push_back(bias_->compute);
}

std::vector<at::Tensor> NormLayer::take_weights(std::vector<at::Tensor>& stash) const {
  const auto first = stash.end() - (bias_ == nullptr ? 1 : 2);
  std::vector<at::Tensor> weights(std::make_move_iterator(first), std::make_move_iterator(stash.end()));
  stash.erase(first, stash.end());
  return weights;
}

at::Tensor NormLayer::apply(const at::Tensor& x, const std::vector<at::Tensor>& statistics,
                            const std::vector<at::Tensor>& weights) const {
  if (bias_ == nullptr) return kernels::rms_norm_apply(x, statistics[0], weights[0]);
  return kernels::layer_norm_apply(x, statistics[0], statistics[1], weights[0], weights[1]);
}

at::Tensor NormLayer::apply(const at::Tensor& x, const std::vector<at::Tensor>& statistics) const {
  std::vector<at::Tensor> weights;
  keep_weights(weights);
  return apply(x, statistics, weights);
}

at::Tensor NormLayer::input_grad(const at::Tensor& dy, const at::Tensor& x, const std::vector<at::Tensor>& statistics,
                                 const at::Tensor& residual) const {
  if (bias_ == nullptr) return kernels::rms_norm_input_grad(dy, x, statistics[0], weight_->compute, residual);
  return kernels::layer_norm_input_grad(dy, x, statistics[0], statistics[1], weight_->compute, residual);
}

void NormLayer::accumulate(const at::Tensor& dy, const at::Tensor& x, const std::vector<at::Tensor>& statistics) const {
  if (bias_ == nullptr) {
    kernels::rms_norm_weight_grad(weight_->grads.front(), dy, x, statistics[0]);
  } else {
    kernels::layer_norm_weight_grad(weight_->grads.front(), bias_->grads.front(), dy, x, statistics[0], statistics[1]);
  }
}

}  // namespace plait
