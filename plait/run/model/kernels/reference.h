#pragma once

#include "plait/run/model/kernels/activation.h"
#include "plait/run/model/kernels/cross_entropy.h"
#include "plait/run/model/kernels/norm.h"
#include "plait/run/model/kernels/rotary.h"

#include <ATen/core/TensorBody.h>

/// The kernels as compositions of ATen operators: what runs on other devices, and what the tests hold the single-pass
/// loops against. Signatures and meaning are those of plait::kernels.
namespace plait::kernels::reference {

RmsNormResult rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
at::Tensor rms_norm_apply(const at::Tensor& x, const at::Tensor& rstd, const at::Tensor& weight);
at::Tensor rms_norm_input_grad(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                               const at::Tensor& weight, const at::Tensor& residual);
void rms_norm_weight_grad(const at::Tensor& weight_grad, const at::Tensor& dy, const at::Tensor& x,
                          const at::Tensor& rstd);
LayerNormResult layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps);
at::Tensor layer_norm_apply(const at::Tensor& x, const at::Tensor& mean, const at::Tensor& rstd,
                            const at::Tensor& weight, const at::Tensor& bias);
at::Tensor layer_norm_input_grad(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean,
                                 const at::Tensor& rstd, const at::Tensor& weight, const at::Tensor& residual);
void layer_norm_weight_grad(const at::Tensor& weight_grad, const at::Tensor& bias_grad, const at::Tensor& dy,
                            const at::Tensor& x, const at::Tensor& mean, const at::Tensor& rstd);
at::Tensor swiglu(const at::Tensor& gate_up);
ActivationGrad swiglu_grad(at::Tensor dy, at::Tensor gate_up);
at::Tensor gelu_tanh(const at::Tensor& x);
ActivationGrad gelu_tanh_grad(at::Tensor dy, at::Tensor x);
/// Turns by the angles of cos and direction * sin.
void rotate(const at::Tensor& out, const at::Tensor& heads, const RotaryTable::Rows& rows, double direction);
CrossEntropyResult cross_entropy(const at::Tensor& logits, const at::Tensor& targets);
at::Tensor cross_entropy_grad(at::Tensor logits, const at::Tensor& lse, const at::Tensor& targets, double scale);
void accumulate_rows(const at::Tensor& grad, const at::Tensor& ids, const at::Tensor& dx);

}  // namespace plait::kernels::reference
