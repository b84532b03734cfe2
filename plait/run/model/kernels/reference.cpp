#include "plait/run/model/kernels/reference.h"

#include "plait/run/model/kernels/types.h"
#include "plait/run/model/stage_module.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sum.h>

namespace plait::kernels::reference {
namespace {

at::Tensor column(const at::Tensor& per_row) {
  return per_row.unsqueeze(-1);
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
  const at::Tensor rounded = dx.to(x.scalar_type());
  return residual.defined() ? residual + rounded : rounded;
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
  const at::Tensor rounded = dx.to(x.scalar_type());
  return residual.defined() ? residual + rounded : rounded;
}

void layer_norm_weight_grad(const at::Tensor& weight_grad, const at::Tensor& bias_grad, const at::Tensor& dy,
                            const at::Tensor& x, const at::Tensor& mean, const at::Tensor& rstd) {
  const at::ScalarType wide = rstd.scalar_type();
  const at::Tensor dy_wide = dy.to(wide);
  weight_grad.add_(at::sum(dy_wide * (x.to(wide) - column(mean)) * column(rstd), {0}));
  bias_grad.add_(at::sum(dy_wide, {0}));
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  const std::int64_t width = gate_up.size(1) / 2;
  const at::ScalarType wide = statistics_type(gate_up);
  const at::Tensor gate = gate_up.narrow(1, 0, width).to(wide);
  const at::Tensor up = gate_up.narrow(1, width, width).to(wide);
  return (at::silu(gate) * up).to(gate_up.scalar_type());
}

ActivationGrad swiglu_grad(at::Tensor dy, at::Tensor gate_up) {
  const std::int64_t width = gate_up.size(1) / 2;
  const at::ScalarType wide = statistics_type(gate_up);
  const at::Tensor gate = gate_up.narrow(1, 0, width).to(wide);
  const at::Tensor up = gate_up.narrow(1, width, width).to(wide);
  const at::Tensor slope = dy.to(wide);
  const at::Tensor sigmoid = at::sigmoid(gate);
  const at::Tensor silu = gate * sigmoid;
  const at::Tensor gate_grad = slope * up * (sigmoid + silu * (1 - sigmoid));
  const at::Tensor up_grad = slope * silu;
  return {.input_grad = at::cat({gate_grad, up_grad}, 1).to(gate_up.scalar_type()),
          .output = (silu * up).to(gate_up.scalar_type())};
}

at::Tensor gelu_tanh(const at::Tensor& x) {
  return at::gelu(x, "tanh");
}

ActivationGrad gelu_tanh_grad(at::Tensor dy, at::Tensor x) {
  return {.input_grad = at::gelu_backward(dy, x, "tanh"), .output = at::gelu(x, "tanh")};
}

void rotate(const at::Tensor& out, const at::Tensor& heads, const RotaryTable::Rows& rows, double direction) {
  const std::int64_t half = heads.size(3) / 2;
  const at::ScalarType wide = rows.cos.scalar_type();
  const at::Tensor cos = rows.cos.unsqueeze(1);
  const at::Tensor sin = rows.sin.unsqueeze(1) * direction;
  const at::Tensor low = heads.narrow(3, 0, half).to(wide);
  const at::Tensor high = heads.narrow(3, half, half).to(wide);
  const at::Tensor new_low = low * cos - high * sin;
  const at::Tensor new_high = high * cos + low * sin;
  out.narrow(3, 0, half).copy_(new_low);
  out.narrow(3, half, half).copy_(new_high);
}

CrossEntropyResult cross_entropy(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor wide = logits.to(statistics_type(logits));
  const at::Tensor lse = at::logsumexp(wide, {1});
  const at::Tensor picked = at::gather(wide, 1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
  const at::Tensor losses = (lse - picked).to(at::kDouble);
  return {.loss = at::sum(losses.masked_fill(targets == kIgnoredTarget, 0.0)), .lse = lse};
}

at::Tensor cross_entropy_grad(at::Tensor logits, const at::Tensor& lse, const at::Tensor& targets, double scale) {
  const at::Tensor wide = logits.to(lse.scalar_type());
  at::Tensor grad = at::exp(wide - lse.unsqueeze(1));
  const at::Tensor column = targets.clamp_min(0).unsqueeze(1);
  grad.scatter_add_(1, column, at::full_like(lse, -1.0).unsqueeze(1));
  grad.mul_(scale);
  grad.masked_fill_((targets == kIgnoredTarget).unsqueeze(1), 0.0);
  return logits.copy_(grad);
}

void accumulate_rows(const at::Tensor& grad, const at::Tensor& ids, const at::Tensor& dx) {
  // Not index_add_, which on a GPU adds in the order of the moment.
  grad.index_put_({ids.reshape({-1})}, dx.reshape({-1, dx.size(-1)}).to(grad.scalar_type()), /*accumulate=*/true);
}

}  // namespace plait::kernels::reference
