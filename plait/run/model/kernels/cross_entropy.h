#pragma once

#include <ATen/core/TensorBody.h>

namespace plait::kernels {

// R rows, V classes; targets [R] int64, kIgnoredTarget where masked.

struct CrossEntropyResult {
  at::Tensor loss;  ///< fp64 scalar: sum over valid rows of lse - logit of the target
  at::Tensor lse;   ///< [R]  log of the sum of exponentials (natural), fp32 (fp64 for fp64)
};
/// \param logits  [R,V]
CrossEntropyResult cross_entropy(const at::Tensor& logits, const at::Tensor& targets);

/// scale (softmax - one-hot) of valid rows, zero for the others. The logits are consumed: the result may lie in them.
at::Tensor cross_entropy_grad(at::Tensor logits, const at::Tensor& lse, const at::Tensor& targets, double scale);

}  // namespace plait::kernels
