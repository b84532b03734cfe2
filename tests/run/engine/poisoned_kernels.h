#pragma once

#include "plait/run/engine/stage_kernels.h"

#include <ATen/ops/eq.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

namespace plait::testing {

enum class Spoilt : std::uint8_t {
  kLoss,      ///< infinite, with gradients as they are
  kGradient,  ///< what stages behind the first hand back
};

/// The model's own kernels, with something infinite in every micro-batch that holds the token.
class PoisonedKernels final : public StageKernels {
 public:
  PoisonedKernels(std::unique_ptr<StageKernels> own, std::int64_t token, Spoilt spoilt)
      : own_(std::move(own)), token_(token), spoilt_(spoilt) {}

  ForwardResult forward(const SliceData& data, Payload input, Stash* stash, KvCache* cache, StashRule rule) override {
    return own_->forward(data, std::move(input), stash, cache, rule);
  }
  Stash recompute(const SliceData& data, Stash kept, KvCache* cache, int slice_idx, StashRule rule) override {
    return own_->recompute(data, std::move(kept), cache, slice_idx, rule);
  }
  BackwardResult backward_input(const SliceData& data, Payload output_grad, Stash stash, WeightStash* weight_stash,
                                KvCache* cache, int slice_idx) override {
    return spoil(data,
                 own_->backward_input(data, std::move(output_grad), std::move(stash), weight_stash, cache, slice_idx));
  }
  void backward_weight(WeightStash weight_stash) override { own_->backward_weight(std::move(weight_stash)); }
  BackwardResult backward(const SliceData& data, Payload output_grad, Stash stash, KvCache* cache,
                          int slice_idx) override {
    return spoil(data, own_->backward(data, std::move(output_grad), std::move(stash), cache, slice_idx));
  }
  [[nodiscard]] std::vector<std::int64_t> input_widths() const override { return own_->input_widths(); }
  [[nodiscard]] std::vector<std::int64_t> output_widths() const override { return own_->output_widths(); }

 private:
  BackwardResult spoil(const SliceData& data, BackwardResult result) const {
    if (!data.tokens.eq(token_).any().item<bool>()) return result;
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (spoilt_ == Spoilt::kLoss && result.loss.defined()) result.loss.add_(kInfinity);
    if (spoilt_ == Spoilt::kGradient)
      for (at::Tensor& gradient : result.input_grad) gradient.mul_(kInfinity);
    return result;
  }
  std::unique_ptr<StageKernels> own_;
  std::int64_t token_;
  Spoilt spoilt_;
};

inline KernelFactory poisoned_kernels(std::int64_t token, Spoilt spoilt) {
  return [=](const ModelConfig& config, PartRange parts, ParameterSet& parameters) -> std::unique_ptr<StageKernels> {
    return std::make_unique<PoisonedKernels>(make_module_kernels(config, parts, parameters), token, spoilt);
  };
}

}  // namespace plait::testing
