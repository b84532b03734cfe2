#include "plait/run/model/kernels/norm.h"

#include "plait/run/model/kernels/dispatch.h"
#include "plait/run/model/kernels/reference.h"
#include "plait/run/model/kernels/types.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
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
  if (!is_dense_on_host({&x, &weight})) return reference::rms_norm(x, weight, eps);
  RmsNormResult result{.y = at::empty_like(x), .rstd = at::empty({x.size(0)}, x.options().dtype(statistics_type(x)))};
  with_loops(x.scalar_type(), [&](const auto& loops, auto element) {
    using T = decltype(element);
    using Wide = typename cpu::WideOf<T>::Type;
    loops.rms_norm(data_of<T>(x), data_of<T>(weight), mutable_data_of<T>(result.y), mutable_data_of<Wide>(result.rstd),
                   x.size(0), x.size(1), eps);
  });
  return result;
}

at::Tensor rms_norm_apply(const at::Tensor& x, const at::Tensor& rstd, const at::Tensor& weight) {
  if (!is_dense_on_host({&x, &weight})) return reference::rms_norm_apply(x, rstd, weight);
  at::Tensor y = at::empty_like(x);
  with_loops(x.scalar_type(), [&](const auto& loops, auto element) {
    using T = decltype(element);
    using Wide = typename cpu::WideOf<T>::Type;
    loops.rms_norm_apply(data_of<T>(x), data_of<Wide>(rstd), data_of<T>(weight), mutable_data_of<T>(y), x.size(0),
                         x.size(1));
  });
  return y;
}

at::Tensor rms_norm_input_grad(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd,
                               const at::Tensor& weight, const at::Tensor& residual) {
  if (!is_dense_on_host({&x, &dy, &weight, &residual}))
    return reference::rms_norm_input_grad(dy, x, rstd, weight, residual);
  at::Tensor dx = at::empty_like(x);
  with_loops(x.scalar_type(), [&](const auto& loops, auto element) {
    using T = decltype(element);
    using Wide = typename cpu::WideOf<T>::Type;
    loops.rms_norm_input_grad(data_of<T>(dy), data_of<T>(x), data_of<Wide>(rstd), data_of<T>(weight),
                              data_of<T>(residual), mutable_data_of<T>(dx), x.size(0), x.size(1));
  });
  return dx;
}

void rms_norm_weight_grad(const at::Tensor& weight_grad, const at::Tensor& dy, const at::Tensor& x,
                          const at::Tensor& rstd) {
  if (!is_dense_on_host({&x, &dy}) || !is_dense_on_host({&weight_grad, &rstd}))
    return reference::rms_norm_weight_grad(weight_grad, dy, x, rstd);
  with_loops(x.scalar_type(), [&](const auto& loops, auto element) {
    using T = decltype(element);
    using Wide = typename cpu::WideOf<T>::Type;
    loops.rms_norm_weight_grad(mutable_data_of<Wide>(weight_grad), data_of<T>(dy), data_of<T>(x), data_of<Wide>(rstd),
                               x.size(0), x.size(1));
  });
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
