#include "plait/run/model/kernels/embedding.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/sum.h>

namespace plait::kernels {

at::Tensor gather_rows(const at::Tensor& table, const at::Tensor& ids) {
  return at::embedding(table, ids);
}

void accumulate_rows(const at::Tensor& grad, const at::Tensor& ids, const at::Tensor& dx) {
  grad.index_add_(0, ids.reshape({-1}), dx.reshape({-1, dx.size(-1)}).to(grad.scalar_type()));
}

void accumulate_batch_sum(const at::Tensor& grad, const at::Tensor& dx) {
  grad.add_(at::sum(dx, {0}, /*keepdim=*/false, grad.scalar_type()));
}

}  // namespace plait::kernels
