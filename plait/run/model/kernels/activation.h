#pragma once

#include <ATen/core/TensorBody.h>

namespace plait::kernels {

// R rows, F wide.

/// silu(gate) * up. \source Shazeer 2020, arXiv:2002.05202 (SwiGLU)
///
/// \param gate_up  [R,2F]: gate, then up
/// \returns        [R,F]
at::Tensor swiglu(const at::Tensor& gate_up);

struct ActivationGrad {
  at::Tensor input_grad;  ///< of the pre-activation
  at::Tensor output;      ///< the activation again, for the weight gradient behind it
};
/// Both operands are consumed: the results may lie in their storage.
///
/// \param dy  [R,F]
ActivationGrad swiglu_grad(at::Tensor dy, at::Tensor gate_up);

/// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): transformers' gelu_new. \source Hendrycks & Gimpel 2016, arXiv:1606.08415
at::Tensor gelu_tanh(const at::Tensor& x);
ActivationGrad gelu_tanh_grad(at::Tensor dy, at::Tensor x);

}  // namespace plait::kernels
