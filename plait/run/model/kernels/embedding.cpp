#include "plait/run/model/kernels/embedding.h"

#include "plait/run/model/kernels/dispatch.h"
#include "plait/run/model/kernels/reference.h"
#include "plait/run/model/kernels/timing.h"
#include "plait/run/model/kernels/types.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/sum.h>

namespace plait::kernels {

at::Tensor gather_rows(const at::Tensor& table, const at::Tensor& ids) {
  const KernelScope timed(KernelKind::kEmbedding);
  return at::embedding(table, ids);
}

void accumulate_rows(const at::Tensor& grad, const at::Tensor& ids, const at::Tensor& dx) {
  const KernelScope timed(KernelKind::kEmbeddingGrad);
  const bool fits = grad.scalar_type() == statistics_type(dx) && ids.is_contiguous();
  if (!fits || !is_dense_on_host({&grad}) || !is_dense_on_host({&dx})) return reference::accumulate_rows(grad, ids, dx);
  with_loops(dx.scalar_type(), [&](const auto& loops, auto element) {
    using T = decltype(element);
    using Wide = typename cpu::WideOf<T>::Type;
    loops.accumulate_rows(mutable_data_of<Wide>(grad), data_of<std::int64_t>(ids), data_of<T>(dx), ids.numel(),
                          grad.size(1));
  });
}

void accumulate_batch_sum(const at::Tensor& grad, const at::Tensor& dx) {
  const KernelScope timed(KernelKind::kEmbeddingGrad);
  grad.add_(at::sum(dx, {0}, /*keepdim=*/false, grad.scalar_type()));
}

}  // namespace plait::kernels
