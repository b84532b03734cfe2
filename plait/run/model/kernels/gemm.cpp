#include "plait/run/model/kernels/gemm.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>

namespace plait::kernels {
namespace {

/// The weight as the right factor of x: [K,O], a view.
at::Tensor as_right_factor(const at::Tensor& weight, WeightLayout layout) {
  return layout == WeightLayout::kOutIn ? weight.t() : weight;
}

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, WeightLayout layout) {
  const at::Tensor right = as_right_factor(weight, layout);
  return bias.defined() ? at::addmm(bias, x, right) : at::mm(x, right);
}

at::Tensor linear_plus(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight,
                       const at::Tensor& bias, WeightLayout layout) {
  at::Tensor y = at::addmm(residual, x, as_right_factor(weight, layout));
  if (bias.defined()) y.add_(bias);
  return y;
}

at::Tensor linear_input_grad(const at::Tensor& dy, const at::Tensor& weight, WeightLayout layout) {
  return at::mm(dy, layout == WeightLayout::kOutIn ? weight : weight.t());
}

void accumulate_weight_grad(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& dy, WeightLayout layout) {
  const at::Tensor& rows = layout == WeightLayout::kOutIn ? dy : x;
  const at::Tensor& columns = layout == WeightLayout::kOutIn ? x : dy;
  if (grad.scalar_type() == rows.scalar_type())
    grad.addmm_(rows.t(), columns);
  else
    grad.add_(at::mm(rows.t(), columns));
}

void accumulate_bias_grad(const at::Tensor& grad, const at::Tensor& dy) {
  grad.add_(at::sum(dy, {0}, /*keepdim=*/false, grad.scalar_type()));
}

}  // namespace plait::kernels
