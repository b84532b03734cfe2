#pragma once

#include <ATen/core/TensorBody.h>

namespace plait::kernels {

// B batch, T tokens, D wide, V rows of the table.

/// table[ids]: [B,T,D].
///
/// \param table  [V,D]
/// \param ids    [B,T] int64, within the table
at::Tensor gather_rows(const at::Tensor& table, const at::Tensor& ids);

/// grad[ids] += dx, in the order of the ids; only the rows that are named are touched.
///
/// \param grad  [V,D] fp32 or fp64
/// \param dx    [B,T,D]
void accumulate_rows(const at::Tensor& grad, const at::Tensor& ids, const at::Tensor& dx);

/// grad += dx summed over the batch: [T,D].
void accumulate_batch_sum(const at::Tensor& grad, const at::Tensor& dx);

}  // namespace plait::kernels
