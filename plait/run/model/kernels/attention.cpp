#include "plait/run/model/kernels/attention.h"

#include "plait/run/model/kernels/timing.h"
#include "plait/run/model/kernels/types.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>

#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

namespace plait::kernels {
namespace {

/// [B,G,S,H] to [B,N,S,H]: each key head as often as it has query heads.
at::Tensor expand_heads(const at::Tensor& keys, std::int64_t num_heads) {
  return keys.repeat_interleave(num_heads / keys.size(1), 1);
}

/// [B,N,S,H] to [B,G,S,H]: gradients of the query heads that share a key head, summed.
at::Tensor sum_heads(const at::Tensor& grads, std::int64_t num_key_heads) {
  return at::sum(grads.unflatten(1, {num_key_heads, grads.size(1) / num_key_heads}), {2});
}

/// Scaled scores [B,N,T,S], minus infinity where masked.
at::Tensor scores(const at::Tensor& q, const at::Tensor& k, Mask mask) {
  at::Tensor s = at::matmul(q, k.transpose(-1, -2)) * (1.0 / std::sqrt(static_cast<double>(q.size(3))));
  if (mask == Mask::kCausal) {
    const at::Tensor hidden = at::ones({q.size(2), k.size(2)}, q.options().dtype(at::kBool)).triu(1);
    s.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
  }
  return s;
}

/// Stored as [B,T,N,H], seen as [B,N,T,H].
at::Tensor heads_inside(const at::Tensor& out) {
  return out.transpose(1, 2).contiguous().transpose(1, 2);
}

}  // namespace

AttentionResult attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Mask mask) {
  const KernelScope timed(KernelKind::kAttention);
  if (!q.device().is_cpu()) return attention_reference(q, k, v, mask);
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, /*dropout_p=*/0.0, mask == Mask::kCausal);
  return {.out = std::move(out), .lse = std::move(lse)};
}

AttentionGrads attention_grad(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const at::Tensor& out, const at::Tensor& lse, Mask mask) {
  const KernelScope timed(KernelKind::kAttentionGrad);
  if (!q.device().is_cpu()) return attention_grad_reference(dout, q, k, v, out, lse, mask);
  auto [dq, dk, dv] =
      at::_scaled_dot_product_flash_attention_for_cpu_backward(dout, q, k, v, out, lse,
                                                               /*dropout_p=*/0.0, mask == Mask::kCausal);
  return {.q = std::move(dq), .k = std::move(dk), .v = std::move(dv)};
}

AttentionResult attention_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Mask mask) {
  const at::ScalarType wide = statistics_type(q);
  const at::Tensor s = scores(q.to(wide), expand_heads(k, q.size(1)).to(wide), mask);
  const at::Tensor lse = at::logsumexp(s, {-1});
  const at::Tensor out = at::matmul(at::exp(s - lse.unsqueeze(-1)), expand_heads(v, q.size(1)).to(wide));
  return {.out = heads_inside(out.to(q.scalar_type())), .lse = lse};
}

AttentionGrads attention_grad_reference(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse, Mask mask) {
  const at::ScalarType wide = statistics_type(q);
  const at::Tensor keys = expand_heads(k, q.size(1)).to(wide);
  const at::Tensor values = expand_heads(v, q.size(1)).to(wide);
  const at::Tensor slope = dout.to(wide);
  const at::Tensor p = at::exp(scores(q.to(wide), keys, mask) - lse.unsqueeze(-1));
  const at::Tensor dv = at::matmul(p.transpose(-1, -2), slope);
  const at::Tensor delta = at::sum(slope * out.to(wide), {-1}, /*keepdim=*/true);
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor ds = p * (at::matmul(slope, values.transpose(-1, -2)) - delta) * scale;
  const at::Tensor dq = at::matmul(ds, keys);
  const at::Tensor dk = at::matmul(ds.transpose(-1, -2), q.to(wide));
  const at::ScalarType type = q.scalar_type();
  return {.q = heads_inside(dq.to(type)),
          .k = heads_inside(sum_heads(dk, k.size(1)).to(type)),
          .v = heads_inside(sum_heads(dv, k.size(1)).to(type))};
}

void AttentionSum::add(AttentionResult block) {
  const KernelScope timed(KernelKind::kAttention);
  if (!first_.lse.defined()) {
    first_ = std::move(block);
    return;
  }
  if (!out_.defined()) out_ = first_.out.to(statistics_type(first_.out));
  const at::Tensor lse = at::logaddexp(first_.lse, block.lse);
  out_ = out_ * at::exp(first_.lse - lse).unsqueeze(-1) +
         block.out.to(out_.scalar_type()) * at::exp(block.lse - lse).unsqueeze(-1);
  first_.lse = lse;
}

AttentionResult AttentionSum::finish() && {
  const KernelScope timed(KernelKind::kAttention);
  if (!out_.defined()) return std::move(first_);
  return {.out = heads_inside(out_.to(first_.out.scalar_type())), .lse = std::move(first_.lse)};
}

}  // namespace plait::kernels
