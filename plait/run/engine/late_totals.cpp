#include "plait/run/engine/late_totals.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/square.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

namespace plait {
namespace {

at::TensorOptions fp64_on(at::Device device) {
  return at::TensorOptions().dtype(at::kDouble).device(device);
}

}  // namespace

LateTotals::LateTotals(std::size_t num_data, std::int64_t num_parameters, at::Device device)
    : losses(at::zeros({static_cast<std::int64_t>(num_data)}, fp64_on(device))),
      squares(at::zeros({num_parameters}, fp64_on(device))),
      norm(at::zeros({}, fp64_on(device))),
      clip(at::ones({}, fp64_on(device))),
      not_finite(at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(device))) {}

void LateTotals::begin_step() {
  losses.zero_();
  squares.zero_();
  norm.zero_();
  clip.fill_(1.0);
  not_finite.zero_();
}

void LateTotals::give_squares(const at::Tensor& summand) const {
  summand.copy_(squares);
  // Zero times a finite number is zero, times anything else NaN.
  summand.select(0, 0).add_(at::sum(losses) * 0.0);
}

void LateTotals::take_norm(const at::Tensor& summed, std::optional<double> clip_norm) {
  norm.copy_(at::sqrt(at::sum(summed)));
  not_finite.copy_(at::isfinite(norm).logical_not());
  if (clip_norm) clip.copy_(((norm + kTinyNorm).reciprocal() * *clip_norm).clamp_max(1.0));
}

at::Tensor LateTotals::undoes() const {
  return at::isfinite(norm).logical_not().logical_or(clip < 1.0);
}

at::Tensor LateTotals::steps_once() const {
  return at::isfinite(norm).logical_and(clip < 1.0).logical_not().to(at::kFloat).reshape({1});
}

at::Tensor square_sum_on_device(const at::Tensor& tensor) {
  return at::square(at::linalg_vector_norm(tensor, 2, {}, /*keepdim=*/false, at::kDouble));
}

}  // namespace plait
