// The attention of a module (plait/run/model/parts/attn.cpp): the one part that works slice by slice.

#include "plait/sim/engine_memory/module.h"

#include <algorithm>
#include <utility>

namespace plait::ledger {
namespace {

constexpr std::int64_t kDouble = 8;  // bytes

/// Queries and keys of a tile of the flash kernel.
/// \source PyTorch 2.x, aten/src/ATen/native/cpu/FlashAttentionKernel.cpp
struct Tile {
  std::int64_t queries;
  std::int64_t keys;
};
Tile tile_of(std::int64_t queries, std::int64_t keys) {
  constexpr std::int64_t kKeys = 512;
  const std::int64_t most = queries >= 768 ? 256 : queries >= 192 ? 64 : 32;
  return {.queries = std::min(most, queries), .keys = std::min(kKeys, keys)};
}

Tensors& slots(std::vector<Tensors>& of_parts, std::size_t attn_idx, std::size_t size) {
  if (of_parts.size() <= attn_idx) of_parts.resize(attn_idx + 1);
  if (of_parts[attn_idx].size() < size) of_parts[attn_idx].resize(size);
  return of_parts[attn_idx];
}

}  // namespace

Tensors Module::forward_attn(Forward& context, Tensors input) {
  constexpr std::size_t kWholeStash = 3;
  Tensor x = std::move(input[1]);
  const Tensors& known = context.known;
  const Tensor qkv = known.size() == kWholeStash ? known[0] : rotated(std::move(input[0]), *context.slice);
  Attended result =
      known.empty() ? attend(context, qkv) : Attended{.out = known[known.size() - 2], .lse = known.back()};
  Tensor o = result.out;
  if (context.stash != nullptr) *context.stash = {qkv, std::move(result.out), std::move(result.lse)};
  return {std::move(o), std::move(x)};
}

Tensors Module::backward_attn(Backward& context, const Tensors& output_grad) {
  const Tensor qkv = std::move(context.stash[0]);
  const Tensor out = std::move(context.stash[1]);
  const Tensor lse = std::move(context.stash[2]);
  HeadGrads grads = attention_grad(tokens_);
  if (context.cache != nullptr) add_slices(grads, context);
  Tensor dqkv = elements(rows_ * (shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim);
  grow_rotary(*context.slice);
  return {std::move(dqkv), output_grad[1]};
}

Module::Attended Module::attention(std::int64_t key_tokens) {
  Attended result{.out = elements(rows_ * shape_.heads * shape_.head_dim), .lse = wide(rows_ * shape_.heads)};
  const Tile tile = tile_of(tokens_, key_tokens);
  const Tensor scores = wide(tile.queries * (tile.keys + 2 + shape_.head_dim));
  const Tensor narrow = shape_.element_bytes < wide_bytes_ ? elements(tile.queries * tile.keys) : nullptr;
  return result;
}

Module::HeadGrads Module::attention_grad(std::int64_t key_tokens) {
  const std::int64_t keys = shape_.batch * key_tokens * shape_.kv_heads * shape_.head_dim;
  HeadGrads grads{.q = elements(rows_ * shape_.heads * shape_.head_dim), .k = elements(keys), .v = elements(keys)};
  const Tile tile = tile_of(tokens_, key_tokens);
  const Tensor scores = wide(2 * tile.queries * tile.keys);
  const Tensor narrow = shape_.element_bytes < wide_bytes_ ? elements(2 * tile.queries * tile.keys) : nullptr;
  const Tensor sums = wide(tile.queries);
  return grads;
}

Module::Attended Module::attend(const Forward& context, const Tensor& qkv) {
  if (context.cache == nullptr) return attention(tokens_);
  Tensors& keys = slots(context.cache->keys, context.attn_idx, 0);
  Tensors& values = slots(context.cache->values, context.attn_idx, 0);
  const bool again = context.entry == Forward::Entry::kThere;
  const std::size_t earlier = again ? static_cast<std::size_t>(context.slice->index) : keys.size();
  const std::int64_t outputs = rows_ * shape_.heads * shape_.head_dim;
  const bool narrow = shape_.element_bytes < wide_bytes_;
  Attended sum;  // merged blocks; the first as it came
  Tensor first;  // of the first block, while it is not merged, and its type is narrow
  const auto add = [&](Attended block) {
    if (sum.lse == nullptr) {
      sum = std::move(block);
      return;
    }
    if (narrow && first == nullptr) {
      first = std::move(sum.out);
      sum.out = wide(outputs);
    }
    Tensor lse = wide(rows_ * shape_.heads);
    const auto scaled = [&] {
      Tensors weight = {wide(rows_ * shape_.heads)};
      weight.push_back(wide(rows_ * shape_.heads));
      weight.erase(weight.begin());
      return wide(outputs);
    };
    const Tensor before = scaled();
    const Tensor converted = narrow ? wide(outputs) : nullptr;
    const Tensor added = scaled();
    sum.out = wide(outputs);
    sum.lse = std::move(lse);
  };
  const std::int64_t slice_tokens = earlier == 0 ? 0 : context.slice->first / static_cast<std::int64_t>(earlier);
  for (std::size_t slice = 0; slice < earlier; ++slice) add(attention(slice_tokens));
  add(attention(tokens_));
  if (!again) {
    const std::int64_t copied = rows_ * shape_.kv_heads * shape_.head_dim;
    const bool copies = context.entry == Forward::Entry::kCopied;
    keys.push_back(copies ? elements(copied, Use::kStash) : qkv);
    values.push_back(copies ? elements(copied, Use::kStash) : qkv);
  }
  if (earlier > 0) sum.out = elements(outputs);
  return sum;
}

void Module::add_slices(HeadGrads& grads, const Backward& context) {
  const auto slice = static_cast<std::size_t>(context.slice->index);
  Tensors& keys = slots(context.cache->keys, context.attn_idx, 0);
  Tensors& values = slots(context.cache->values, context.attn_idx, 0);
  Tensors& key_grads = slots(context.cache->key_grads, context.attn_idx, slice + 1);
  Tensors& value_grads = slots(context.cache->value_grads, context.attn_idx, slice + 1);
  const bool narrow = shape_.element_bytes < wide_bytes_;
  if (slice > 0 && narrow) grads.q = wide(rows_ * shape_.heads * shape_.head_dim);
  const std::int64_t slice_tokens = slice == 0 ? 0 : context.slice->first / static_cast<std::int64_t>(slice);
  const std::int64_t earlier_keys = shape_.batch * slice_tokens * shape_.kv_heads * shape_.head_dim;
  for (std::size_t earlier = 0; earlier < slice; ++earlier) {
    const HeadGrads part = attention_grad(slice_tokens);
    const auto collect = [&](Tensor& total, const Tensor& from) {
      if (total == nullptr) total = narrow ? wide(earlier_keys, Use::kStash) : from;
    };
    collect(key_grads[earlier], part.k);
    collect(value_grads[earlier], part.v);
  }
  if (key_grads[slice] != nullptr) {
    grads.k = key_grads[slice];
    grads.v = value_grads[slice];
  }
  for (Tensors* list : {&keys, &values, &key_grads, &value_grads}) list->resize(slice);
}

Tensor Module::rotated(Tensor qkv, const SliceSpan& slice) {
  if (is_gpt_) return qkv;
  grow_rotary(slice);
  if (is_sole_owner(qkv)) return qkv;
  return elements(rows_ * (shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim);
}

/// plait/run/model/kernels/rotary.cpp: tables grow to what is asked for, at least twofold.
void Module::grow_rotary(const SliceSpan& slice) {
  const std::int64_t needed = slice.first + slice.tokens;
  if (is_gpt_ || needed <= known_positions_) return;
  known_positions_ = std::max(needed, 2 * known_positions_);
  const std::int64_t size = known_positions_ * (shape_.head_dim / 2);
  const Tensors made = {make_block(ledger_, size * kDouble, Use::kFixed),
                        make_block(ledger_, size * kDouble, Use::kFixed)};
  if (wide_bytes_ == kDouble)
    rotary_ = made;
  else
    rotary_ = {wide(size, Use::kFixed), wide(size, Use::kFixed)};
}

}  // namespace plait::ledger
