#include "plait/run/model/kernels/attention.h"

#include "plait/run/model/kernels/dispatch.h"
#include "plait/run/model/kernels/timing.h"
#include "plait/run/model/kernels/types.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>

#include <cmath>
#include <initializer_list>
#include <limits>
#include <memory>
#include <new>
#include <tuple>
#include <type_traits>
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

template <class T>
cpu::HeadData<T> heads_of(const at::Tensor& x) {
  const at::IntArrayRef strides = x.strides();
  return {.data = static_cast<T*>(const_cast<void*>(x.const_data_ptr())),
          .strides = {.batch = strides[0], .token = strides[2], .head = strides[1]}};
}

/// This thread's, made at its first attention; small beside any model, so it is no part of a rank's memory account.
float* attention_scratch() {
  constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(float* memory) const { ::operator delete[](memory, kAlignment); }
  };
  thread_local const std::unique_ptr<float, Free> kScratch(
      static_cast<float*>(::operator new[](sizeof(float) * cpu::kAttentionScratch, kAlignment)));
  return kScratch.get();
}

/// Whether the loops of cpu/ take these heads: fp32 or bf16 in host memory, of a size that is whole vectors.
bool has_loops(std::initializer_list<const at::Tensor*> tensors) {
  const at::Tensor& first = **tensors.begin();
  const at::ScalarType type = first.scalar_type();
  const std::int64_t size = first.size(3);
  if ((type != at::kFloat && type != at::kBFloat16) || size % cpu::kHeadMultiple != 0 || size > cpu::kLargestHead)
    return false;
  for (const at::Tensor* tensor : tensors)
    if (!tensor->is_cpu() || tensor->scalar_type() != type || tensor->stride(3) != 1) return false;
  return true;
}

/// Whether torch's flash attention takes these heads: 16 bits on a GPU, of a size that is whole vectors.
bool has_flash(const at::Tensor& q) {
  constexpr std::int64_t kMultiple = 8;
  constexpr std::int64_t kLargest = 256;
  return q.is_cuda() && q.scalar_type() == at::kBFloat16 && q.size(3) % kMultiple == 0 && q.size(3) <= kLargest;
}

AttentionResult flash_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Mask mask) {
  auto results = at::_scaled_dot_product_flash_attention(q, k, v, /*dropout_p=*/0.0, mask == Mask::kCausal);
  return {.out = std::move(std::get<0>(results)), .lse = std::move(std::get<1>(results))};
}

AttentionGrads flash_attention_grad(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                    const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse, Mask mask) {
  // The state of the generator: not read without dropout.
  const at::Tensor unread = at::empty({2}, q.options().dtype(at::kLong));
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
      dout, q, k, v, out, lse, /*cum_seq_q=*/{}, /*cum_seq_k=*/{}, q.size(2), k.size(2), /*dropout_p=*/0.0,
      mask == Mask::kCausal, unread, unread);
  return {.q = std::move(dq), .k = std::move(dk), .v = std::move(dv)};
}

cpu::AttentionShape shape_of(const at::Tensor& q, const at::Tensor& k, Mask mask) {
  return {.batch = q.size(0),
          .heads = q.size(1),
          .kv_heads = k.size(1),
          .queries = q.size(2),
          .keys = k.size(2),
          .size = q.size(3),
          .causal = mask == Mask::kCausal};
}

/// As q, stored as [B,T,N,H].
at::Tensor empty_heads(const at::Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options()).transpose(1, 2);
}

}  // namespace

AttentionResult attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Mask mask) {
  const KernelScope timed(KernelKind::kAttention);
  if (has_flash(q)) return flash_attention(q, k, v, mask);
  if (!q.device().is_cpu()) return attention_reference(q, k, v, mask);
  if (!has_loops({&q, &k, &v})) {
    auto [out, lse] =
        at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, /*dropout_p=*/0.0, mask == Mask::kCausal);
    return {.out = std::move(out), .lse = std::move(lse)};
  }
  AttentionResult result{.out = empty_heads(q),
                         .lse = at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat))};
  with_loops(q.scalar_type(), [&](const auto& loops, auto element) {
    using T = decltype(element);
    if constexpr (!std::is_same_v<T, double>)
      loops.attention(shape_of(q, k, mask), heads_of<const T>(q), heads_of<const T>(k), heads_of<const T>(v),
                      heads_of<T>(result.out), mutable_data_of<float>(result.lse), attention_scratch());
  });
  return result;
}

AttentionGrads attention_grad(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const at::Tensor& out, const at::Tensor& lse, Mask mask) {
  const KernelScope timed(KernelKind::kAttentionGrad);
  if (has_flash(q)) return flash_attention_grad(dout, q, k, v, out, lse, mask);
  if (!q.device().is_cpu()) return attention_grad_reference(dout, q, k, v, out, lse, mask);
  if (!has_loops({&q, &k, &v, &dout, &out}) || !lse.is_contiguous()) {
    auto [dq, dk, dv] =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(dout, q, k, v, out, lse,
                                                                 /*dropout_p=*/0.0, mask == Mask::kCausal);
    return {.q = std::move(dq), .k = std::move(dk), .v = std::move(dv)};
  }
  AttentionGrads grads{.q = empty_heads(q), .k = empty_heads(k), .v = empty_heads(v)};
  with_loops(q.scalar_type(), [&](const auto& loops, auto element) {
    using T = decltype(element);
    if constexpr (!std::is_same_v<T, double>) {
      at::Tensor wide_dq;
      if (!std::is_same_v<T, float>)
        wide_dq = at::empty({q.size(1) / k.size(1), q.size(2), q.size(3)}, q.options().dtype(at::kFloat));
      loops.attention_grad(shape_of(q, k, mask), heads_of<const T>(dout), heads_of<const T>(q), heads_of<const T>(k),
                           heads_of<const T>(v), heads_of<const T>(out), data_of<float>(lse), heads_of<T>(grads.q),
                           heads_of<T>(grads.k), heads_of<T>(grads.v),
                           wide_dq.defined() ? mutable_data_of<float>(wide_dq) : nullptr, attention_scratch());
    }
  });
  return grads;
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
