#include "plait/run/model/kernels/activation.h"

#include "plait/run/model/kernels/dispatch.h"
#include "plait/run/model/kernels/reference.h"
#include "plait/run/model/kernels/timing.h"
#include "plait/run/model/kernels/types.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>

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
  return at::gelu(x, "tanh");
}

ActivationGrad gelu_tanh_grad(at::Tensor dy, at::Tensor x) {
  const KernelScope timed(KernelKind::kActivationGrad);
  return {.input_grad = at::gelu_backward(dy, x, "tanh"), .output = at::gelu(x, "tanh")};
}

}  // namespace plait::kernels
