#include "plait/sim/engine_memory/module.h"

#include <algorithm>
#include <utility>

// Follows plait/run/model/stage_module.cpp and plait/run/model/parts line by line; what changes there changes here, and
// tests/run/calibrate holds both to each other.
namespace plait::ledger {
namespace {

constexpr std::int64_t kDouble = 8;  // bytes
constexpr std::int64_t kFloat = 4;

Tensor take_last(Tensors& tensors) {
  Tensor last = std::move(tensors.back());
  tensors.pop_back();
  return last;
}

void mark(const Stash& stash, Use use) {
  for (const Tensors& part : stash)
    for (const Tensor& tensor : part)
      if (tensor != nullptr && tensor->use() != Use::kLogits) tensor->use_as(use);
}

}  // namespace

Module::Module(const ModelShape& shape, PartRange parts, const KernelScratch& scratch, Ledger& ledger)
    : shape_(shape),
      scratch_(scratch),
      ledger_(ledger),
      is_gpt_(shape.mlp == MlpKind::kPlain),
      has_qkv_bias_(is_gpt_ || shape.qkv_bias == QkvBias::kAlways),
      wide_bytes_(std::max(kFloat, shape.element_bytes)) {
  for (int idx = parts.begin; idx < parts.end; ++idx) kinds_.push_back(part_at(shape.layers, idx).kind);
}

void Module::begin(const SliceSpan& slice) {
  tokens_ = slice.tokens;
  rows_ = shape_.batch * slice.tokens;
}
Tensor Module::elements(std::int64_t count, Use use) const {
  return make_block(ledger_, count * shape_.element_bytes, use);
}
Tensor Module::wide(std::int64_t count, Use use) const {
  return make_block(ledger_, count * wide_bytes_, use);
}
Tensor Module::scalar() const {
  return make_block(ledger_, kDouble);
}
Tensors Module::statistics() const {
  Tensors result = {wide(rows_)};
  if (is_gpt_) result.push_back(wide(rows_));
  return result;
}
Module::Normed Module::norm() const {
  Normed result{.y = elements(rows_ * shape_.hidden), .statistics = {}};
  result.statistics = statistics();
  return result;
}

/// What adding up a weight gradient takes for a moment.
void Module::accumulate_product(std::int64_t rows, std::int64_t columns, bool biased) const {
  if (shape_.element_bytes < wide_bytes_ && !scratch_.bf16_products_in_place) [[maybe_unused]]
    const Tensor product = elements(rows * columns);
  if (biased) [[maybe_unused]]
    const Tensor sum = wide(columns);
}

std::size_t Module::attn_before(std::size_t part) const {
  return static_cast<std::size_t>(
      std::count(kinds_.begin(), kinds_.begin() + static_cast<std::ptrdiff_t>(part), PartKind::kAttn));
}

Tensors Module::forward(const SliceSpan& slice, Tensors input, Stash* stash, Cache* cache, StashRule rule) {
  begin(slice);
  const bool keeps_all = stash != nullptr && rule == StashRule::kEverything;
  const bool keeps_less = stash != nullptr && !keeps_all;
  if (stash != nullptr) stash->assign(kinds_.size() + (keeps_less ? 1 : 0), {});
  const bool has_post = std::find(kinds_.begin(), kinds_.end(), PartKind::kPost) != kinds_.end();
  const bool starts_with_attention = kinds_.front() == PartKind::kAttn;
  const bool keeps_attention = keeps_less && rule == StashRule::kInputsAndAttention;
  if (keeps_less) {
    const bool passes_through = (kinds_.front() == PartKind::kQkv || starts_with_attention) && !has_post;
    stash->front() = passes_through ? Tensors{input[0]} : input;
    if (keeps_attention && starts_with_attention) stash->front()[0].reset();
  }
  Tensors payload = std::move(input);
  Tensors unused;
  for (std::size_t idx = 0; idx < kinds_.size(); ++idx) {
    const bool is_attention = kinds_[idx] == PartKind::kAttn;
    Forward context{.slice = &slice,
                    .cache = cache,
                    .entry = keeps_less ? Forward::Entry::kCopied : Forward::Entry::kShared,
                    .known = {},
                    .attn_idx = attn_before(idx)};
    if (keeps_all) context.stash = &(*stash)[idx];
    if (keeps_attention && is_attention) context.stash = &(*stash)[idx + 1];
    if (keeps_less && kinds_[idx] == PartKind::kHead) context.stash = &unused;
    payload = forward_part(kinds_[idx], std::move(context), std::move(payload));
    if (keeps_attention && is_attention && idx > 0) {
      Tensors& kept = (*stash)[idx + 1];
      kept.erase(kept.begin());
    }
  }
  if (stash != nullptr) mark(*stash, Use::kStash);
  for (const Tensor& tensor : payload)
    if (tensor != nullptr && tensor->use() == Use::kTransient) tensor->use_as(Use::kBuffers);
  return payload;
}

Stash Module::recompute(const SliceSpan& slice, Stash kept, Cache* cache, StashRule /*rule*/) {
  begin(slice);
  Stash stash(kinds_.size());
  Tensors payload = std::move(kept[0]);
  if (kinds_.front() == PartKind::kQkv || kinds_.front() == PartKind::kAttn) payload.resize(2);
  for (std::size_t idx = 0; idx < kinds_.size(); ++idx) {
    payload = forward_part(kinds_[idx],
                           {.slice = &slice,
                            .stash = &stash[idx],
                            .cache = cache,
                            .want = idx + 1 == kinds_.size() ? Want::kStashOnly : Want::kOutput,
                            .entry = Forward::Entry::kThere,
                            .known = std::move(kept[idx + 1]),
                            .attn_idx = attn_before(idx)},
                           std::move(payload));
  }
  mark(stash, Use::kStash);
  return stash;
}

Tensors Module::backward_input(const SliceSpan& slice, Tensors output_grad, Stash stash, Stash* weight_stash,
                               Cache* cache) {
  begin(slice);
  weight_stash->assign(kinds_.size(), {});
  Tensors grad = std::move(output_grad);
  for (std::size_t idx = kinds_.size(); idx-- > 0;) {
    grad = backward_part(kinds_[idx],
                         {.slice = &slice,
                          .stash = std::move(stash[idx]),
                          .weight_stash = &(*weight_stash)[idx],
                          .cache = cache,
                          .attn_idx = attn_before(idx)},
                         std::move(grad));
  }
  loss_.reset();
  mark(*weight_stash, Use::kWeightStash);
  for (const Tensor& tensor : grad)
    if (tensor != nullptr && tensor->use() == Use::kTransient) tensor->use_as(Use::kBuffers);
  return grad;
}

Tensors Module::backward(const SliceSpan& slice, Tensors output_grad, Stash stash, Cache* cache) {
  begin(slice);
  Tensors grad = std::move(output_grad);
  for (std::size_t idx = kinds_.size(); idx-- > 0;) {
    Backward context{.slice = &slice,
                     .stash = std::move(stash[idx]),
                     .weight_stash = nullptr,
                     .cache = cache,
                     .attn_idx = attn_before(idx)};
    if (kinds_[idx] == PartKind::kHead) {
      grad = backward_head_whole(context);
      continue;
    }
    Tensors weight_stash;
    context.weight_stash = &weight_stash;
    Tensors input_grad = backward_part(kinds_[idx], std::move(context), std::move(grad));
    weight_part(kinds_[idx], std::move(weight_stash));
    grad = std::move(input_grad);
  }
  loss_.reset();
  for (const Tensor& tensor : grad)
    if (tensor != nullptr && tensor->use() == Use::kTransient) tensor->use_as(Use::kBuffers);
  return grad;
}

void Module::backward_weight(const SliceSpan& slice, Stash weight_stash) {
  begin(slice);
  for (std::size_t idx = kinds_.size(); idx-- > 0;) weight_part(kinds_[idx], std::move(weight_stash[idx]));
}

Tensors Module::forward_part(PartKind kind, Forward context, Tensors input) {
  switch (kind) {
    case PartKind::kEmbed: return {elements(rows_ * shape_.hidden)};
    case PartKind::kNorm: {
      Tensor x = std::move(input[0]);
      Normed normed = norm();
      if (context.stash != nullptr) {
        *context.stash = std::move(normed.statistics);
        context.stash->push_back(x);
      }
      return {normed.y, std::move(x)};
    }
    case PartKind::kQkv: {
      const Tensor normed = std::move(input[0]);
      Tensor x = std::move(input[1]);
      if (context.stash != nullptr) *context.stash = {normed};
      if (context.want == Want::kStashOnly) return {};
      Tensor qkv = elements(rows_ * (shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim);
      return {std::move(qkv), std::move(x)};
    }
    case PartKind::kAttn: return forward_attn(context, std::move(input));
    case PartKind::kPost: return forward_post(context, input);
    case PartKind::kHead:
      if (context.stash != nullptr)
        *context.stash = {input[0]};
      else if (context.want == Want::kOutput)
        forward_loss();
      return {};
  }
  return {};
}

Tensors Module::forward_post(Forward& context, const Tensors& input) {
  const Tensor& o = input[0];
  Tensor h = elements(rows_ * shape_.hidden);
  Normed normed = norm();
  Tensor inner = elements(rows_ * shape_.ffn * (is_gpt_ ? 1 : 2));
  normed.y.reset();
  Tensor y;
  if (context.want == Want::kOutput) {
    const Tensor activation = elements(rows_ * shape_.ffn);
    y = elements(rows_ * shape_.hidden);
  }
  if (context.stash != nullptr) {
    *context.stash = std::move(normed.statistics);
    for (const Tensor& kept : {o, h, inner}) context.stash->push_back(kept);
  }
  return y == nullptr ? Tensors{} : Tensors{y};
}

std::int64_t Module::logit_rows() const {
  // plait/run/model/parts/head.cpp, own_chunk
  constexpr std::int64_t kElements = std::int64_t{1} << 21;
  constexpr std::int64_t kLeastRows = 256;
  return std::min(rows_, std::max(kElements / shape_.vocab, kLeastRows));
}

void Module::forward_loss() {
  const Tensor total = scalar();
  const std::int64_t rows = logit_rows();
  Tensors first = {elements(rows * shape_.hidden), wide(rows)};
  const Tensor logits = elements(rows * shape_.vocab, Use::kLogits);
  first.clear();
  const Tensors entropy = {wide(rows), scalar()};
}

Tensors Module::backward_part(PartKind kind, Backward context, Tensors output_grad) {
  switch (kind) {
    case PartKind::kEmbed: *context.weight_stash = {std::move(output_grad[0]), scalar()}; return {};
    case PartKind::kNorm: {
      Tensors statistics = std::move(context.stash);
      const Tensor x = take_last(statistics);
      Tensor dx = elements(rows_ * shape_.hidden);
      statistics.push_back(output_grad[0]);
      statistics.push_back(x);
      *context.weight_stash = std::move(statistics);
      return {std::move(dx)};
    }
    case PartKind::kQkv: {
      const Tensor normed = std::move(context.stash[0]);
      Tensor dnormed = elements(rows_ * shape_.hidden);
      *context.weight_stash = {normed, output_grad[0]};
      return {std::move(dnormed), std::move(output_grad[1])};
    }
    case PartKind::kAttn: return backward_attn(context, output_grad);
    case PartKind::kPost: return backward_post(context, output_grad);
    case PartKind::kHead: return backward_head(context);
  }
  return {};
}

Tensors Module::backward_post(Backward& context, const Tensors& output_grad) {
  Tensors statistics = std::move(context.stash);
  const Tensor inner = take_last(statistics);
  const Tensor h = take_last(statistics);
  const Tensor o = take_last(statistics);
  const Tensor& dy = output_grad[0];
  const Tensor activation = elements(rows_ * shape_.ffn);  // its gradient first; both change in place
  const Tensor dnormed = elements(rows_ * shape_.hidden);
  Tensor dh = elements(rows_ * shape_.hidden);
  Tensor d_o = elements(rows_ * shape_.heads * shape_.head_dim);
  for (const Tensor& needed : {o, h, dnormed, dh, inner, activation, dy}) statistics.push_back(needed);
  *context.weight_stash = std::move(statistics);
  return {std::move(d_o), std::move(dh)};
}

/// B alone: the logits stay whole for W.
Tensors Module::backward_head(Backward& context) {
  const Tensor x = std::move(context.stash[0]);
  Normed normed = norm();
  const Tensor dnormed = elements(rows_ * shape_.hidden);
  loss_ = scalar();
  const Tensor logits = elements(rows_ * shape_.vocab, Use::kLogits);
  const Tensors entropy = {wide(rows_), scalar()};
  Tensor dx = elements(rows_ * shape_.hidden);
  *context.weight_stash = std::move(normed.statistics);
  for (const Tensor& kept : {x, dnormed, logits}) context.weight_stash->push_back(kept);
  return {std::move(dx)};
}

/// B and W at once: a chunk of the logits at a time.
Tensors Module::backward_head_whole(Backward& context) {
  const Tensor x = std::move(context.stash[0]);
  const Normed normed = norm();
  const Tensor dnormed = elements(rows_ * shape_.hidden);
  loss_ = scalar();
  const std::int64_t rows = logit_rows();
  {
    const Tensor logits = elements(rows * shape_.vocab, Use::kLogits);
    const Tensors entropy = {wide(rows), scalar()};
    accumulate_product(shape_.vocab, shape_.hidden, false);
  }
  return {elements(rows_ * shape_.hidden)};
}

void Module::weight_part(PartKind kind, Tensors weight_stash) {
  const std::int64_t query = shape_.heads * shape_.head_dim;
  const std::int64_t qkv = query + 2 * shape_.kv_heads * shape_.head_dim;
  switch (kind) {
    case PartKind::kEmbed:
      if (is_gpt_) [[maybe_unused]]
        const Tensor sum = wide(tokens_ * shape_.hidden);
      break;
    case PartKind::kQkv: accumulate_product(shape_.hidden, qkv, has_qkv_bias_); break;
    case PartKind::kPost: {
      const Tensor normed = elements(rows_ * shape_.hidden);
      accumulate_product(shape_.ffn, shape_.hidden, is_gpt_);
      accumulate_product(shape_.hidden, shape_.ffn * (is_gpt_ ? 1 : 2), is_gpt_);
      accumulate_product(query, shape_.hidden, is_gpt_);
      break;
    }
    case PartKind::kHead: {
      const Tensor normed = elements(rows_ * shape_.hidden);
      accumulate_product(shape_.vocab, shape_.hidden, false);
      break;
    }
    case PartKind::kNorm:
    case PartKind::kAttn: break;
  }
  weight_stash.clear();
}

}  // namespace plait::ledger
