#include "plait/run/model/kernels/norm.h"

#include "plait/run/model/kernels/types.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sum.h>

namespace plait::kernels {
namespace {

at::Tensor column(const at::Tensor& per_row) {
  return per_row.unsqueeze(-1);
}

/// residual + dx, rounded to the type of the activations.
at::Tensor finish_input_grad(const at::Tensor& dx, const at::Tensor& residual, at::ScalarType type) {
  const at::Tensor rounded = dx.to(type);
  return residual.defined() ? residual + rounded : rounded;
}

}  // namespace

RmsNormResult rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.to(statistics_type(x));
  const at::Tensor rstd = at::rsqrt(at::mean(wide * wide, {-1}) + eps);
  return {.y = rms_norm_apply(x, rstd, weight), .rstd = rstd};
}

at::Tensor rms_norm_apply(const at::Tensor& x, const at::Tensor& rstd, const at::Tensor& weight) {
  return (x.to(rstd.scalar_type()) * column(rstd) * weight.to(rstd.scalar_type())).to(x.scalar_type());
}

at::Tensor rms_norm_input_grad(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                               const at::Tensor& weight, const at::Tensor& residual) {
  const at::ScalarType wide = rstd.scalar_type();
  const at::Tensor xhat = x.to(wide) * column(rstd);
  const at::Tensor g = dy.to(wide) * weight.to(wide);
  const at::Tensor dx = column(rstd) * (g - xhat * at::mean(g * xhat, {-1}, /*keepdim=*/true));
  return finish_input_grad(dx, residual, x.scalar_type());
}

void rms_norm_weight_grad(const at::Tensor& weight_grad, const at::Tensor& dy, const at::Tensor& x,
                          const at::Tensor& rstd) {
  const at::ScalarType wide = rstd.scalar_type();
  weight_grad.add_(at::sum(dy.to(wide) * x.to(wide) * column(rstd), {0}));
}

LayerNormResult layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps) {
  const at::Tensor wide = x.to(statistics_type(x));
  const at::Tensor mean = at::mean(wide, {-1});
  const at::Tensor centred = wide - column(mean);
  const at::Tensor rstd = at::rsqrt(at::mean(centred * centred, {-1}) + eps);
  return {.y = layer_norm_apply(x, mean, rstd, weight, bias), .mean = mean, .rstd = rstd};
}

at::Tensor layer_norm_apply(const at::Tensor& x, const at::Tensor& mean, const at::Tensor& rstd,
                            const at::Tensor& weight, const at::Tensor& bias) {
  const at::ScalarType wide = rstd.scalar_type();
  const at::Tensor xhat = (x.to(wide) - column(mean)) * column(rstd);
  return (xhat * weight.to(wide) + bias.to(wide)).to(x.scalar_type());
}

at::Tensor layer_norm_input_grad(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean,
                                 const at::Tensor& rstd, const at::Tensor& weight, const at::Tensor& residual) {
  const at::ScalarType wide = rstd.scalar_type();
  const at::Tensor xhat = (x.to(wide) - column(mean)) * column(rstd);
  const at::Tensor g = dy.to(wide) * weight.to(wide);
  const at::Tensor along = xhat * at::mean(g * xhat, {-1}, /*keepdim=*/true);
  const at::Tensor dx = column(rstd) * (g - at::mean(g, {-1}, /*keepdim=*/true) - along);
  return finish_input_grad(dx, residual, x.scalar_type());
}

void layer_norm_weight_grad(const at::Tensor& weight_grad, const at::Tensor& bias_grad, const at::Tensor& dy,
                            const at::Tensor& x, const at::Tensor& mean, const at::Tensor& rstd) {
  const at::ScalarType wide = rstd.scalar_type();
  const at::Tensor dy_wide = dy.to(wide);
  weight_grad.add_(at::sum(dy_wide * (x.to(wide) - column(mean)) * column(rstd), {0}));
  bias_grad.add_(at::sum(dy_wide, {0}));
}

}  // namespace plait::kernels
