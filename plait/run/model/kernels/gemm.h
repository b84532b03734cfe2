#pragma once

#include <ATen/core/TensorBody.h>

#include <cstdint>

namespace plait::kernels {

/// How a weight lies in memory: [out, in] (torch's Linear) or [in, out] (GPT-2's Conv1D).
enum class WeightLayout : std::uint8_t { kOutIn, kInOut };

// R rows (batch times tokens), K inputs, O outputs. Weights [O,K] or [K,O] as their layout says. Tensors are dense.

/// x W^T (+ bias).
///
/// \param x     [R,K]
/// \param bias  [O], or undefined
/// \returns     [R,O]
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, WeightLayout layout);

/// residual + x W^T (+ bias): [R,O]. The product is added inside the GEMM.
at::Tensor linear_plus(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight,
                       const at::Tensor& bias, WeightLayout layout);

/// The same into `y` [R,O], which may be rows of a larger tensor.
void linear_plus_into(at::Tensor& y, const at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight,
                      const at::Tensor& bias, WeightLayout layout);

/// Gradient of the input of `linear`: dy W, [R,K].
///
/// \param dy  [R,O]
at::Tensor linear_input_grad(const at::Tensor& dy, const at::Tensor& weight, WeightLayout layout);

/// The same into `dx` [R,K], which may be rows of a larger tensor.
void linear_input_grad_into(at::Tensor& dx, const at::Tensor& dy, const at::Tensor& weight, WeightLayout layout);

/// What becomes of what an accumulator holds.
enum class Accumulate : std::uint8_t { kAdd, kOverwrite };

/// grad += (or =) gradient of the weight of `linear`, inside the GEMM where the types allow.
///
/// \param grad  laid out as the weight; fp32 where x and dy are bf16, else their type
void accumulate_weight_grad(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& dy, WeightLayout layout,
                            Accumulate how = Accumulate::kAdd);

/// grad += sum of dy over its rows, in grad's type.
void accumulate_bias_grad(const at::Tensor& grad, const at::Tensor& dy);

}  // namespace plait::kernels
