#pragma once

#include "plait/run/model/kernels/cpu/loops.h"

#include <ATen/core/TensorBody.h>

#include <initializer_list>

namespace plait::kernels {

/// Whether the loops of cpu/ can run on these: dense, in host memory, of one type that they know. Undefined tensors pass.
inline bool is_dense_on_host(std::initializer_list<const at::Tensor*> tensors) {
  const at::ScalarType type = (*tensors.begin())->scalar_type();
  if (type != at::kFloat && type != at::kDouble && type != at::kBFloat16) return false;
  for (const at::Tensor* tensor : tensors)
    if (tensor->defined() && (!tensor->is_cpu() || !tensor->is_contiguous() || tensor->scalar_type() != type))
      return false;
  return true;
}

template <class T>
const T* data_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<const T*>(tensor.const_data_ptr()) : nullptr;
}
template <class T>
T* mutable_data_of(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

/// Calls body(loops, T{}) for the element type T of `type`, one of those that is_dense_on_host lets through.
template <class Body>
void with_loops(at::ScalarType type, Body body) {
  switch (type) {
    case at::kDouble: body(cpu::loops<double>(), double{}); break;
    case at::kBFloat16: body(cpu::loops<cpu::Bf16>(), cpu::Bf16{}); break;
    default: body(cpu::loops<float>(), float{}); break;
  }
}

}  // namespace plait::kernels
