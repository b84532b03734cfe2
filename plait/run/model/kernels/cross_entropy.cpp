#include "plait/run/model/kernels/cross_entropy.h"

#include "plait/run/model/kernels/dispatch.h"
#include "plait/run/model/kernels/reference.h"
#include "plait/run/model/kernels/timing.h"
#include "plait/run/model/kernels/types.h"
#include "plait/run/model/stage_module.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <utility>

namespace plait::kernels {

static_assert(kIgnoredTarget < 0, "the loops take a negative target for a masked one");

CrossEntropyResult cross_entropy(const at::Tensor& logits, const at::Tensor& targets) {
  const KernelScope timed(KernelKind::kCrossEntropy);
  if (!is_dense_on_host({&logits}) || !targets.is_contiguous()) return reference::cross_entropy(logits, targets);
  CrossEntropyResult result{.loss = {},
                            .lse = at::empty({logits.size(0)}, logits.options().dtype(statistics_type(logits)))};
  double loss = 0;
  with_loops(logits.scalar_type(), [&](const auto& loops, auto element) {
    using T = decltype(element);
    using Wide = typename cpu::WideOf<T>::Type;
    loss = loops.cross_entropy(data_of<T>(logits), data_of<std::int64_t>(targets), mutable_data_of<Wide>(result.lse),
                               logits.size(0), logits.size(1));
  });
  result.loss = at::scalar_tensor(loss, at::TensorOptions().dtype(at::kDouble));
  return result;
}

at::Tensor cross_entropy_grad(at::Tensor logits, const at::Tensor& lse, const at::Tensor& targets, double scale) {
  const KernelScope timed(KernelKind::kCrossEntropyGrad);
  if (!is_dense_on_host({&logits}) || !targets.is_contiguous())
    return reference::cross_entropy_grad(std::move(logits), lse, targets, scale);
  with_loops(logits.scalar_type(), [&](const auto& loops, auto element) {
    using T = decltype(element);
    using Wide = typename cpu::WideOf<T>::Type;
    loops.cross_entropy_grad(mutable_data_of<T>(logits), data_of<Wide>(lse), data_of<std::int64_t>(targets),
                             static_cast<Wide>(scale), logits.size(0), logits.size(1));
  });
  return logits;
}

}  // namespace plait::kernels
