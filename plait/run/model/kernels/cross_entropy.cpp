#include "plait/run/model/kernels/cross_entropy.h"

#include "plait/run/model/kernels/types.h"
#include "plait/run/model/stage_module.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/sum.h>

namespace plait::kernels {

CrossEntropyResult cross_entropy(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor wide = logits.to(statistics_type(logits));
  const at::Tensor lse = at::logsumexp(wide, {1});
  const at::Tensor picked = at::gather(wide, 1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
  const at::Tensor losses = (lse - picked).to(at::kDouble);
  return {.loss = at::sum(losses.masked_fill(targets == kIgnoredTarget, 0.0)), .lse = lse};
}

at::Tensor cross_entropy_grad(at::Tensor logits, const at::Tensor& lse, const at::Tensor& targets, double scale) {
  const at::Tensor wide = logits.to(lse.scalar_type());
  at::Tensor grad = at::exp(wide - lse.unsqueeze(1));
  const at::Tensor column = targets.clamp_min(0).unsqueeze(1);
  grad.scatter_add_(1, column, at::full_like(lse, -1.0).unsqueeze(1));
  grad.mul_(scale);
  grad.masked_fill_((targets == kIgnoredTarget).unsqueeze(1), 0.0);
  return logits.copy_(grad);
}

}  // namespace plait::kernels
