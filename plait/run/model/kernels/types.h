#pragma once

#include <ATen/core/TensorBody.h>

namespace plait::kernels {

/// Type of sums and statistics over values of this tensor: fp32, or fp64 for fp64.
inline at::ScalarType statistics_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// Whether nobody else can see these values, so that they may be overwritten: no other handle, no other view, and no
/// foreign bytes (a storage that is not resizable may be one of several on the same bytes).
inline bool is_sole_owner(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1 && tensor.storage().resizable();
}

}  // namespace plait::kernels
