#include "plait/run/model/stage_module.h"

#include "plait/base/check.h"
#include "plait/run/model/kernels/timing.h"
#include "plait/run/model/parts/part.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace plait {

struct StageModule::Impl {
  std::vector<std::unique_ptr<PartModule>> parts;
  std::vector<Part> chain;  ///< what the parts are
  KernelCounts counts;

  [[nodiscard]] bool has(PartKind kind) const {
    return std::any_of(chain.begin(), chain.end(), [&](const Part& part) { return part.kind == kind; });
  }
  [[nodiscard]] Payload needed_inputs(const Payload& input) const;
};

namespace {

/// Operators go straight to the kernels: nothing here is differentiated by torch or tracks views.
using KernelsOnly = at::AutoDispatchBelowADInplaceOrView;

}  // namespace

StageModule::StageModule(const ModelConfig& config, PartRange parts, ParameterSet& parameters,
                         const StageOptions& options)
    : impl_(std::make_unique<Impl>()) {
  PLAIT_CHECK(parts.begin >= 0 && parts.end <= num_parts(config.num_layers), "parts [{}, {}) of a chain of {}",
              parts.begin, parts.end, num_parts(config.num_layers));
  StageShared shared{
      .config = config, .parameters = parameters, .options = options, .counts = &impl_->counts, .rotary = nullptr};
  if (config.family != ModelFamily::kGpt2) {
    const at::ScalarType type = parameters.type() == ComputeType::kFloat64 ? at::kDouble : at::kFloat;
    shared.rotary = std::make_shared<kernels::RotaryTable>(config, type, parameters.device());
  }
  std::size_t num_attn = 0;
  for (int idx = parts.begin; idx < parts.end; ++idx) {
    const Part part = part_at(config.num_layers, idx);
    impl_->chain.push_back(part);
    switch (part.kind) {
      case PartKind::kEmbed: impl_->parts.push_back(make_embed(shared)); break;
      case PartKind::kNorm: impl_->parts.push_back(make_norm(shared, part.layer)); break;
      case PartKind::kQkv: impl_->parts.push_back(make_qkv(shared, part.layer)); break;
      case PartKind::kAttn: impl_->parts.push_back(make_attn(shared, num_attn++)); break;
      case PartKind::kPost: impl_->parts.push_back(make_post(shared, part.layer)); break;
      case PartKind::kHead: impl_->parts.push_back(make_head(shared)); break;
    }
  }
}

StageModule::~StageModule() = default;
StageModule::StageModule(StageModule&&) noexcept = default;
StageModule& StageModule::operator=(StageModule&&) noexcept = default;

/// What a recompute of the whole stage starts from. A residual that only passes through is left out.
Payload StageModule::Impl::needed_inputs(const Payload& input) const {
  const bool passes_through =
      (chain.front().kind == PartKind::kQkv || chain.front().kind == PartKind::kAttn) && !has(PartKind::kPost);
  return passes_through ? Payload{input[0]} : input;
}

ForwardResult StageModule::forward(const SliceData& data, Payload input, Stash* stash, KvCache* cache, KeepLogits keep,
                                   StashRule rule) {
  const KernelsOnly guard;
  const bool keeps_all = stash != nullptr && rule == StashRule::kEverything;
  const bool keeps_less = stash != nullptr && !keeps_all;
  // Under the lesser rules: the inputs, then an entry per part.
  if (stash != nullptr) stash->parts.assign(impl_->parts.size() + (keeps_less ? 1 : 0), {});
  const bool starts_with_attention = impl_->chain.front().kind == PartKind::kAttn;
  const bool keeps_attention = keeps_less && rule == StashRule::kInputsAndAttention;
  if (keeps_less) stash->parts[0] = impl_->needed_inputs(input);
  // Of the attention in front, what it made is kept instead of what it came from.
  if (keeps_attention && starts_with_attention) stash->parts[0][0].reset();
  ForwardResult result{.output = std::move(input), .loss = {}, .logits = {}};
  std::vector<at::Tensor> unused;
  for (std::size_t idx = 0; idx < impl_->parts.size(); ++idx) {
    const bool is_attention = impl_->chain[idx].kind == PartKind::kAttn;
    const bool is_head = impl_->chain[idx].kind == PartKind::kHead;
    ForwardContext context{.data = data,
                           .cache = cache,
                           .keep = keep,
                           .cache_entry = keeps_less ? CacheEntry::kCopied : CacheEntry::kShared};
    if (keeps_all) context.stash = &stash->parts[idx];
    if (keeps_attention && is_attention) context.stash = &stash->parts[idx + 1];
    if (keeps_less && is_head) context.stash = &unused;
    const PartScope timed(impl_->chain[idx]);
    result = impl_->parts[idx]->forward(context, std::move(result.output));
    if (keeps_attention && is_attention && idx > 0) {
      std::vector<at::Tensor>& kept = stash->parts[idx + 1];
      kept.erase(kept.begin());  // q, k and v are made again
    }
  }
  return result;
}

Stash StageModule::recompute(const SliceData& data, Stash kept, KvCache* cache, int slice_idx, StashRule rule) {
  const KernelsOnly guard;
  PLAIT_CHECK(rule != StashRule::kEverything && kept.parts.size() == impl_->parts.size() + 1,
              "a recompute from a stash of {} parts for a stage of {}", kept.parts.size(), impl_->parts.size());
  Stash stash;
  stash.parts.resize(impl_->parts.size());
  Payload payload = std::move(kept.parts[0]);
  const bool has_residual = impl_->chain.front().kind == PartKind::kQkv || impl_->chain.front().kind == PartKind::kAttn;
  if (has_residual) payload.resize(2);
  for (std::size_t idx = 0; idx < impl_->parts.size(); ++idx) {
    const ForwardContext context{.data = data,
                                 .stash = &stash.parts[idx],
                                 .cache = cache,
                                 .want = idx + 1 == impl_->parts.size() ? Want::kStashOnly : Want::kOutput,
                                 .cache_entry = CacheEntry::kThere,
                                 .slice_idx = slice_idx,
                                 .known = std::move(kept.parts[idx + 1])};
    const PartScope timed(impl_->chain[idx]);
    payload = impl_->parts[idx]->forward(context, std::move(payload)).output;
  }
  return stash;
}

BackwardResult StageModule::backward_input(const SliceData& data, Payload output_grad, Stash stash,
                                           WeightStash* weight_stash, KvCache* cache, int slice_idx) {
  const KernelsOnly guard;
  PLAIT_CHECK(stash.parts.size() == impl_->parts.size(), "a stash of {} parts for a stage of {}", stash.parts.size(),
              impl_->parts.size());
  if (weight_stash != nullptr) weight_stash->parts.assign(impl_->parts.size(), {});
  BackwardResult result{.input_grad = std::move(output_grad), .loss = {}};
  for (std::size_t idx = impl_->parts.size(); idx-- > 0;) {
    const PartScope timed(impl_->chain[idx]);
    BackwardContext context{.data = data,
                            .stash = std::move(stash.parts[idx]),
                            .weight_stash = weight_stash == nullptr ? nullptr : &weight_stash->parts[idx],
                            .cache = cache,
                            .slice_idx = slice_idx,
                            .loss = &result.loss};
    result.input_grad = impl_->parts[idx]->backward_input(std::move(context), std::move(result.input_grad));
  }
  return result;
}

BackwardResult StageModule::backward(const SliceData& data, Payload output_grad, Stash stash, KvCache* cache,
                                     int slice_idx) {
  const KernelsOnly guard;
  PLAIT_CHECK(stash.parts.size() == impl_->parts.size(), "a stash of {} parts for a stage of {}", stash.parts.size(),
              impl_->parts.size());
  BackwardResult result{.input_grad = std::move(output_grad), .loss = {}};
  for (std::size_t idx = impl_->parts.size(); idx-- > 0;) {
    const PartScope timed(impl_->chain[idx]);
    BackwardContext context{.data = data,
                            .stash = std::move(stash.parts[idx]),
                            .weight_stash = nullptr,
                            .cache = cache,
                            .slice_idx = slice_idx,
                            .loss = &result.loss};
    result.input_grad = impl_->parts[idx]->backward(std::move(context), std::move(result.input_grad));
  }
  return result;
}

const KernelCounts& StageModule::counts() const {
  return impl_->counts;
}

void StageModule::backward_weight(WeightStash weight_stash) {
  const KernelsOnly guard;
  PLAIT_CHECK(weight_stash.parts.size() == impl_->parts.size(), "a weight stash of {} parts for a stage of {}",
              weight_stash.parts.size(), impl_->parts.size());
  for (std::size_t idx = impl_->parts.size(); idx-- > 0;) {
    const PartScope timed(impl_->chain[idx]);
    impl_->parts[idx]->backward_weight(std::move(weight_stash.parts[idx]));
  }
}

}  // namespace plait
