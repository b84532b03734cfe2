#include "plait/run/model/kernels/norm.h"

#include "plait/run/model/kernels/dispatch.h"
#include "plait/run/model/kernels/reference.h"
#include "plait/run/model/kernels/timing.h"
#include "plait/run/model/kernels/types.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

namespace plait::kernels {

RmsNormResult rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const KernelScope timed(KernelKind::kNorm);
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
  const KernelScope timed(KernelKind::kNorm);
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
  const KernelScope timed(KernelKind::kNormInputGrad);
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
  const KernelScope timed(KernelKind::kNormWeightGrad);
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
  const KernelScope timed(KernelKind::kNorm);
  if (!is_dense_on_host({&x, &weight, &bias})) return reference::layer_norm(x, weight, bias, eps);
  const at::TensorOptions wide = x.options().dtype(statistics_type(x));
  LayerNormResult result{
      .y = at::empty_like(x), .mean = at::empty({x.size(0)}, wide), .rstd = at::empty({x.size(0)}, wide)};
  with_loops(x.scalar_type(), [&](const auto& loops, auto element) {
    using T = decltype(element);
    using Wide = typename cpu::WideOf<T>::Type;
    loops.layer_norm(data_of<T>(x), data_of<T>(weight), data_of<T>(bias), mutable_data_of<T>(result.y),
                     mutable_data_of<Wide>(result.mean), mutable_data_of<Wide>(result.rstd), x.size(0), x.size(1), eps);
  });
  return result;
}

at::Tensor layer_norm_apply(const at::Tensor& x, const at::Tensor& mean, const at::Tensor& rstd,
                            const at::Tensor& weight, const at::Tensor& bias) {
  const KernelScope timed(KernelKind::kNorm);
  if (!is_dense_on_host({&x, &weight, &bias})) return reference::layer_norm_apply(x, mean, rstd, weight, bias);
  at::Tensor y = at::empty_like(x);
  with_loops(x.scalar_type(), [&](const auto& loops, auto element) {
    using T = decltype(element);
    using Wide = typename cpu::WideOf<T>::Type;
    loops.layer_norm_apply(data_of<T>(x), data_of<Wide>(mean), data_of<Wide>(rstd), data_of<T>(weight),
                           data_of<T>(bias), mutable_data_of<T>(y), x.size(0), x.size(1));
  });
  return y;
}

at::Tensor layer_norm_input_grad(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& mean,
                                 const at::Tensor& rstd, const at::Tensor& weight, const at::Tensor& residual) {
  const KernelScope timed(KernelKind::kNormInputGrad);
  if (!is_dense_on_host({&x, &dy, &weight, &residual}))
    return reference::layer_norm_input_grad(dy, x, mean, rstd, weight, residual);
  at::Tensor dx = at::empty_like(x);
  with_loops(x.scalar_type(), [&](const auto& loops, auto element) {
    using T = decltype(element);
    using Wide = typename cpu::WideOf<T>::Type;
    loops.layer_norm_input_grad(data_of<T>(dy), data_of<T>(x), data_of<Wide>(mean), data_of<Wide>(rstd),
                                data_of<T>(weight), data_of<T>(residual), mutable_data_of<T>(dx), x.size(0), x.size(1));
  });
  return dx;
}

void layer_norm_weight_grad(const at::Tensor& weight_grad, const at::Tensor& bias_grad, const at::Tensor& dy,
                            const at::Tensor& x, const at::Tensor& mean, const at::Tensor& rstd) {
  const KernelScope timed(KernelKind::kNormWeightGrad);
  if (!is_dense_on_host({&x, &dy}) || !is_dense_on_host({&weight_grad, &bias_grad, &mean, &rstd}))
    return reference::layer_norm_weight_grad(weight_grad, bias_grad, dy, x, mean, rstd);
  with_loops(x.scalar_type(), [&](const auto& loops, auto element) {
    using T = decltype(element);
    using Wide = typename cpu::WideOf<T>::Type;
    loops.layer_norm_weight_grad(mutable_data_of<Wide>(weight_grad), mutable_data_of<Wide>(bias_grad), data_of<T>(dy),
                                 data_of<T>(x), data_of<Wide>(mean), data_of<Wide>(rstd), x.size(0), x.size(1));
  });
}

}  // namespace plait::kernels
