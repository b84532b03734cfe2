#pragma once

#include <ATen/core/TensorBody.h>

namespace plait::kernels {

// Norms over the last dimension. R rows, D wide; statistics in fp32 (fp64 for fp64), one per row.

struct RmsNormResult {
  at::Tensor y;     ///< [R,D]
  at::Tensor rstd;  ///< [R]  1 / sqrt(mean(x^2) + eps)
};
/// x rstd w. \source Zhang & Sennrich 2019, arXiv:1910.07467
RmsNormResult rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
/// y again, from the kept statistics.
at::Tensor rms_norm_apply(const at::Tensor& x, const at::Tensor& rstd, const at::Tensor& weight);
/// residual + gradient of x: [R,D]. \param residual what the bypass around the norm adds, or undefined
at::Tensor rms_norm_input_grad(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                               const at::Tensor& weight, const at::Tensor& residual);
/// weight_grad += gradient of the weight.
void rms_norm_weight_grad(const at::Tensor& weight_grad, const at::Tensor& dy, const at::Tensor& x,
                          const at::Tensor& rstd);

struct LayerNormResult {
  at::Tensor y;     ///< [R,D]
  at::Tensor mean;  ///< [R]
  at::Tensor rstd;  ///< [R]  1 / sqrt(var(x) + eps)
};
/// (x - mean) rstd w + b. \source Ba et al. 2016, arXiv:1607.06450
LayerNormResult layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps);
at::Tensor layer_norm_apply(const at::Tensor& x, const at::Tensor& mean, const at::Tensor& rstd,
                            const at::Tensor& weight, const at::Tensor& bias);
at::Tensor layer_norm_input_grad(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean,
                                 const at::Tensor& rstd, const at::Tensor& weight, const at::Tensor& residual);
void layer_norm_weight_grad(const at::Tensor& weight_grad, const at::Tensor& bias_grad, const at::Tensor& dy,
                            const at::Tensor& x, const at::Tensor& mean, const at::Tensor& rstd);

}  // namespace plait::kernels
