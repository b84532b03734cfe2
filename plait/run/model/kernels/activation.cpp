#include "plait/run/model/kernels/activation.h"

#include "plait/run/model/kernels/dispatch.h"
#include "plait/run/model/kernels/reference.h"
#include "plait/run/model/kernels/timing.h"
#include "plait/run/model/kernels/types.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <utility>

namespace plait::kernels {

at::Tensor swiglu(const at::Tensor& gate_up) {
  const KernelScope timed(KernelKind::kActivation);
  if (!is_dense_on_host({&gate_up})) return reference::swiglu(gate_up);
  const std::int64_t width = gate_up.size(1) / 2;
  at::Tensor y = at::empty({gate_up.size(0), width}, gate_up.options());
  with_loops(gate_up.scalar_type(), [&](const auto& loops, auto element) {
    using T = decltype(element);
    loops.swiglu(data_of<T>(gate_up), mutable_data_of<T>(y), gate_up.size(0), width);
  });
  return y;
}

ActivationGrad swiglu_grad(at::Tensor dy, at::Tensor gate_up) {
  const KernelScope timed(KernelKind::kActivationGrad);
  if (!is_dense_on_host({&gate_up, &dy})) return reference::swiglu_grad(std::move(dy), std::move(gate_up));
  with_loops(gate_up.scalar_type(), [&](const auto& loops, auto element) {
    using T = decltype(element);
    loops.swiglu_grad(mutable_data_of<T>(gate_up), mutable_data_of<T>(dy), dy.size(0), dy.size(1));
  });
  return {.input_grad = std::move(gate_up), .output = std::move(dy)};
}

at::Tensor gelu_tanh(const at::Tensor& x) {
  const KernelScope timed(KernelKind::kActivation);
  if (!is_dense_on_host({&x})) return reference::gelu_tanh(x);
  at::Tensor y = at::empty_like(x);
  with_loops(x.scalar_type(), [&](const auto& loops, auto element) {
    using T = decltype(element);
    loops.gelu_tanh(data_of<T>(x), mutable_data_of<T>(y), x.numel());
  });
  return y;
}

ActivationGrad gelu_tanh_grad(at::Tensor dy, at::Tensor x) {
  const KernelScope timed(KernelKind::kActivationGrad);
  if (!is_dense_on_host({&x, &dy})) return reference::gelu_tanh_grad(std::move(dy), std::move(x));
  with_loops(x.scalar_type(), [&](const auto& loops, auto element) {
    using T = decltype(element);
    loops.gelu_tanh_grad(mutable_data_of<T>(x), mutable_data_of<T>(dy), x.numel());
  });
  return {.input_grad = std::move(x), .output = std::move(dy)};
}

}  // namespace plait::kernels
