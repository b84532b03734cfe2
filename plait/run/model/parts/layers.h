#pragma once

#include "plait/run/model/kernels/gemm.h"
#include "plait/run/model/parameters.h"
#include "plait/run/model/parts/part.h"

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <string>
#include <vector>

namespace plait {

/// A weight and, where the family has one, a bias: y = x W^T + b. R rows, K inputs, O outputs.
class LinearLayer {
 public:
  /// \param weight  name of the (first) weight tensor, "model.layers.0.self_attn.q_proj.weight"
  /// \param bias    name of the (first) bias tensor; empty without one
  LinearLayer(const StageShared& stage, const std::string& weight, const std::string& bias);

  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;
  /// residual + forward(x)
  [[nodiscard]] at::Tensor forward_plus(const at::Tensor& residual, const at::Tensor& x) const;
  /// The same into rows of a larger tensor.
  void forward_plus_into(at::Tensor y, const at::Tensor& residual, const at::Tensor& x) const;
  [[nodiscard]] at::Tensor input_grad(const at::Tensor& dy) const;
  void input_grad_into(at::Tensor dx, const at::Tensor& dy) const;
  void accumulate(const at::Tensor& x, const at::Tensor& dy) const;

 private:
  void count(const at::Tensor& rows) const { counts_->gemm_flops += 2 * rows.size(0) * weight_->compute.numel(); }

  KernelCounts* counts_;
  ParameterStorage* weight_;
  const ParameterStorage* bias_ = nullptr;
  kernels::WeightLayout layout_;
};

/// RMS norm or layer norm, as the family has it. Statistics: {rstd} or {mean, rstd}, each [R].
class NormLayer {
 public:
  /// \param name  "model.layers.0.input_layernorm"
  NormLayer(const StageShared& stage, const std::string& name);

  struct Output {
    at::Tensor y;
    std::vector<at::Tensor> statistics;
  };
  [[nodiscard]] std::size_t num_statistics() const { return bias_ == nullptr ? 1 : 2; }
  [[nodiscard]] Output forward(const at::Tensor& x) const;
  /// What `apply` needs of the weights, kept for when they are here no more.
  void keep_weights(std::vector<at::Tensor>& stash) const;
  [[nodiscard]] std::vector<at::Tensor> take_weights(std::vector<at::Tensor>& stash) const;
  /// y again from the statistics, and from kept weights or those that are here.
  [[nodiscard]] at::Tensor apply(const at::Tensor& x, const std::vector<at::Tensor>& statistics,
                                 const std::vector<at::Tensor>& weights) const;
  [[nodiscard]] at::Tensor apply(const at::Tensor& x, const std::vector<at::Tensor>& statistics) const;
  /// residual + gradient of x; residual may be undefined
  [[nodiscard]] at::Tensor input_grad(const at::Tensor& dy, const at::Tensor& x,
                                      const std::vector<at::Tensor>& statistics, const at::Tensor& residual) const;
  void accumulate(const at::Tensor& dy, const at::Tensor& x, const std::vector<at::Tensor>& statistics) const;

 private:
  const ParameterStorage* weight_;
  const ParameterStorage* bias_ = nullptr;
  double eps_;
};

}  // namespace plait
