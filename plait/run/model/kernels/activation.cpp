#include "plait/run/model/kernels/activation.h"

#include "plait/run/model/kernels/types.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>

namespace plait::kernels {

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

}  // namespace plait::kernels
