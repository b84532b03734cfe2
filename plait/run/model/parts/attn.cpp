#include "plait/base/check.h"
#include "plait/run/model/kernels/attention.h"
#include "plait/run/model/kernels/timing.h"
#include "plait/run/model/kernels/types.h"
#include "plait/run/model/parts/part.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

namespace plait {
namespace {

/// The slots of one attn part, made to hold `size` slices.
std::vector<at::Tensor>& slots(std::vector<std::vector<at::Tensor>>& of_parts, std::size_t attn_idx, std::size_t size) {
  if (of_parts.size() <= attn_idx) of_parts.resize(attn_idx + 1);
  if (of_parts[attn_idx].size() < size) of_parts[attn_idx].resize(size);
  return of_parts[attn_idx];
}

/// total += part, in the statistics type; total may be undefined.
void add_wide(at::Tensor& total, const at::Tensor& part) {
  const KernelScope timed(KernelKind::kCopy);
  if (total.defined())
    total.add_(part);
  else
    total = part.to(kernels::statistics_type(part));
}

/// {qkv, x} to {o, x}: rotary and causal attention, within documents where rows hold several. Rotary scores depend on the
/// distance alone, so positions need not start anew. B batch, T tokens, N query heads, G key heads, H head size.
class Attn final : public PartModule {
 public:
  Attn(const StageShared& stage, std::size_t attn_idx)
      : rotary_(stage.rotary),
        num_heads_(stage.config.num_heads),
        num_kv_heads_(stage.config.num_kv_heads),
        attn_idx_(attn_idx),
        counts_(stage.counts) {}

  ForwardResult forward(const ForwardContext& context, Payload input) override {
    constexpr std::size_t kWholeStash = 3;
    at::Tensor x = std::move(input[1]);
    const std::vector<at::Tensor>& known = context.known;
    const at::Tensor qkv =
        known.size() == kWholeStash ? known[0] : rotated(std::move(input[0]), context.data.first_position);
    kernels::AttentionResult result =
        known.empty() ? attend(context, split(qkv))
                      : kernels::AttentionResult{.out = known[known.size() - 2], .lse = known.back()};
    at::Tensor o = joined(result.out);
    if (context.stash != nullptr) *context.stash = {qkv, std::move(result.out), std::move(result.lse)};
    return {.output = {std::move(o), std::move(x)}, .loss = {}, .logits = {}};
  }

  Payload backward_input(BackwardContext context, Payload output_grad) override {
    const at::Tensor qkv = std::move(context.stash[0]);
    const at::Tensor out = std::move(context.stash[1]);
    const at::Tensor lse = std::move(context.stash[2]);
    const Heads heads = split(qkv);
    const at::Tensor dout = output_grad[0].view({qkv.size(0), qkv.size(1), num_heads_, -1}).transpose(1, 2);
    ++counts_->attention_backwards;
    kernels::AttentionGrads grads =
        context.data.documents.empty()
            ? kernels::attention_grad(dout, heads.q, heads.k, heads.v, out, lse, kernels::Mask::kCausal)
            : grad_within(context.data.documents, dout, heads, out, lse);
    if (context.cache != nullptr) add_slices(grads, dout, heads.q, out, lse, *context.cache, context.slice_idx);
    at::Tensor dqkv = merged(grads, qkv, context.data.first_position);
    return {std::move(dqkv), std::move(output_grad[1])};
  }

  void backward_weight(std::vector<at::Tensor> /*weight_stash*/) override {}

 private:
  struct Heads {
    at::Tensor q;  ///< [B,N,T,H]
    at::Tensor k;  ///< [B,G,T,H]
    at::Tensor v;
  };

  kernels::AttentionResult attend(const ForwardContext& context, const Heads& heads) {
    ++counts_->attention_forwards;
    if (!context.data.documents.empty()) return attend_within(context.data.documents, heads);
    if (context.cache == nullptr) return kernels::attention(heads.q, heads.k, heads.v, kernels::Mask::kCausal);
    kernels::AttentionSum sum;
    std::vector<at::Tensor>& keys = slots(context.cache->keys, attn_idx_, 0);
    std::vector<at::Tensor>& values = slots(context.cache->values, attn_idx_, 0);
    const bool again = context.cache_entry == CacheEntry::kThere;
    const std::size_t earlier = again ? static_cast<std::size_t>(context.slice_idx) : keys.size();
    for (std::size_t slice = 0; slice < earlier; ++slice) {
      ++counts_->attention_forwards;
      sum.add(kernels::attention(heads.q, keys[slice], values[slice], kernels::Mask::kNone));
    }
    sum.add(kernels::attention(heads.q, heads.k, heads.v, kernels::Mask::kCausal));
    if (!again) {
      const KernelScope timed(KernelKind::kCopy);
      const bool copies = context.cache_entry == CacheEntry::kCopied;
      keys.push_back(copies ? heads.k.contiguous() : heads.k);
      values.push_back(copies ? heads.v.contiguous() : heads.v);
    }
    return std::move(sum).finish();
  }

  /// One document's rows and tokens of a [B,*,T,...].
  static at::Tensor of_document(const at::Tensor& x, const Document& document) {
    return x.narrow(0, document.row, 1).narrow(2, document.begin, document.length);
  }

  [[nodiscard]] static Heads of_document(const Heads& heads, const Document& document) {
    return {
        .q = of_document(heads.q, document), .k = of_document(heads.k, document), .v = of_document(heads.v, document)};
  }

  /// [B,N,T,H], stored as [B,T,N,H].
  [[nodiscard]] static at::Tensor empty_heads(const at::Tensor& like) {
    return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options()).transpose(1, 2);
  }

  static kernels::AttentionResult attend_within(const std::vector<Document>& documents, const Heads& heads) {
    kernels::AttentionResult whole{.out = empty_heads(heads.q),
                                   .lse = at::empty({heads.q.size(0), heads.q.size(1), heads.q.size(2)},
                                                    heads.q.options().dtype(kernels::statistics_type(heads.q)))};
    for (const Document& document : documents) {
      const Heads part = of_document(heads, document);
      const auto result = kernels::attention(part.q, part.k, part.v, kernels::Mask::kCausal);
      of_document(whole.out, document).copy_(result.out);
      of_document(whole.lse, document).copy_(result.lse);
    }
    return whole;
  }

  static kernels::AttentionGrads grad_within(const std::vector<Document>& documents, const at::Tensor& dout,
                                             const Heads& heads, const at::Tensor& out, const at::Tensor& lse) {
    kernels::AttentionGrads whole{.q = empty_heads(heads.q), .k = empty_heads(heads.k), .v = empty_heads(heads.v)};
    for (const Document& document : documents) {
      const Heads part = of_document(heads, document);
      const auto grads =
          kernels::attention_grad(of_document(dout, document), part.q, part.k, part.v, of_document(out, document),
                                  of_document(lse, document).contiguous(), kernels::Mask::kCausal);
      of_document(whole.q, document).copy_(grads.q);
      of_document(whole.k, document).copy_(grads.k);
      of_document(whole.v, document).copy_(grads.v);
    }
    return whole;
  }

  /// qkv [B,T,(N+2G)H] as [B,T,N+2G,H].
  [[nodiscard]] at::Tensor as_heads(const at::Tensor& qkv) const {
    return qkv.view({qkv.size(0), qkv.size(1), num_heads_ + 2 * num_kv_heads_, -1});
  }

  [[nodiscard]] Heads split(const at::Tensor& qkv) const {
    const at::Tensor heads = as_heads(qkv).transpose(1, 2);
    return {.q = heads.narrow(1, 0, num_heads_),
            .k = heads.narrow(1, num_heads_, num_kv_heads_),
            .v = heads.narrow(1, num_heads_ + num_kv_heads_, num_kv_heads_)};
  }

  /// [B,N,T,H], stored as [B,T,N,H], as [B,T,N H].
  [[nodiscard]] static at::Tensor joined(const at::Tensor& out) {
    const at::Tensor o = out.transpose(1, 2);
    return o.view({o.size(0), o.size(1), o.size(2) * o.size(3)});
  }

  /// Queries and keys turned by their positions; in place where nobody else holds the payload.
  [[nodiscard]] at::Tensor rotated(at::Tensor qkv, std::int64_t first_position) const {
    if (rotary_ == nullptr) return qkv;
    const auto rows = rotary_->rows(first_position, qkv.size(1));
    const bool in_place = kernels::is_sole_owner(qkv);
    at::Tensor result = in_place ? qkv : at::empty_like(qkv);
    const at::Tensor to = as_heads(result);
    const at::Tensor from = as_heads(qkv);
    kernels::rotate(to.narrow(2, 0, num_heads_ + num_kv_heads_), from.narrow(2, 0, num_heads_ + num_kv_heads_), rows);
    if (!in_place) {
      const KernelScope timed(KernelKind::kCopy);
      const std::int64_t first_value = num_heads_ + num_kv_heads_;
      to.narrow(2, first_value, num_kv_heads_).copy_(from.narrow(2, first_value, num_kv_heads_));
    }
    return result;
  }

  /// Adds what the earlier slices' keys give to dq, and what later slices gave to this slice's keys; passes on what the
  /// earlier slices' keys get from these queries.
  void add_slices(kernels::AttentionGrads& grads, const at::Tensor& dout, const at::Tensor& q, const at::Tensor& out,
                  const at::Tensor& lse, KvCache& cache, int slice_idx) {
    const auto slice = static_cast<std::size_t>(slice_idx);
    std::vector<at::Tensor>& keys = slots(cache.keys, attn_idx_, 0);
    std::vector<at::Tensor>& values = slots(cache.values, attn_idx_, 0);
    std::vector<at::Tensor>& key_grads = slots(cache.key_grads, attn_idx_, slice + 1);
    std::vector<at::Tensor>& value_grads = slots(cache.value_grads, attn_idx_, slice + 1);
    PLAIT_CHECK(slice < keys.size(), "backward of slice {}, but the cache holds {}", slice, keys.size());
    if (slice > 0) {
      const KernelScope timed(KernelKind::kCopy);
      grads.q = grads.q.to(kernels::statistics_type(grads.q));
    }
    for (std::size_t earlier = 0; earlier < slice; ++earlier) {
      ++counts_->attention_backwards;
      const kernels::AttentionGrads part =
          kernels::attention_grad(dout, q, keys[earlier], values[earlier], out, lse, kernels::Mask::kNone);
      {
        const KernelScope timed(KernelKind::kCopy);
        grads.q.add_(part.q);
      }
      add_wide(key_grads[earlier], part.k);
      add_wide(value_grads[earlier], part.v);
    }
    if (key_grads[slice].defined()) {
      const KernelScope timed(KernelKind::kCopy);
      grads.k = key_grads[slice].add_(grads.k);
      grads.v = value_grads[slice].add_(grads.v);
    }
    keys.resize(slice);  // the last slice that reads these is done
    values.resize(slice);
    key_grads.resize(slice);
    value_grads.resize(slice);
  }

  /// Gradients of q, k and v, turned back, as one [B,T,(N+2G)H].
  [[nodiscard]] at::Tensor merged(const kernels::AttentionGrads& grads, const at::Tensor& qkv,
                                  std::int64_t first_position) const {
    at::Tensor dqkv = at::empty_like(qkv);
    const at::Tensor heads = as_heads(dqkv);
    const at::Tensor q = heads.narrow(2, 0, num_heads_);
    const at::Tensor k = heads.narrow(2, num_heads_, num_kv_heads_);
    if (rotary_ == nullptr) {
      const KernelScope timed(KernelKind::kCopy);
      q.copy_(grads.q.transpose(1, 2));
      k.copy_(grads.k.transpose(1, 2));
    } else {
      const auto rows = rotary_->rows(first_position, qkv.size(1));
      kernels::rotate_back(q, grads.q.transpose(1, 2), rows);
      kernels::rotate_back(k, grads.k.transpose(1, 2), rows);
    }
    const KernelScope timed(KernelKind::kCopy);
    heads.narrow(2, num_heads_ + num_kv_heads_, num_kv_heads_).copy_(grads.v.transpose(1, 2));
    return dqkv;
  }

  std::shared_ptr<kernels::RotaryTable> rotary_;
  std::int64_t num_heads_;
  std::int64_t num_kv_heads_;
  std::size_t attn_idx_;
  KernelCounts* counts_;
};

}  // namespace

std::unique_ptr<PartModule> make_attn(const StageShared& stage, std::size_t attn_idx) {
  return std::make_unique<Attn>(stage, attn_idx);
}

}  // namespace plait
