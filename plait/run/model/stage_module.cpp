#include "plait/run/model/stage_module.h"

#include "plait/base/check.h"
#include "plait/run/model/parts/part.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>

#include <utility>

namespace plait {

struct StageModule::Impl {
  std::vector<std::unique_ptr<PartModule>> parts;
};

namespace {

/// Operators go straight to the kernels: nothing here is differentiated by torch or tracks views.
using KernelsOnly = at::AutoDispatchBelowADInplaceOrView;

}  // namespace

StageModule::StageModule(const ModelConfig& config, PartRange parts, ParameterSet& parameters)
    : impl_(std::make_unique<Impl>()) {
  PLAIT_CHECK(parts.begin >= 0 && parts.end <= num_parts(config.num_layers), "parts [{}, {}) of a chain of {}",
              parts.begin, parts.end, num_parts(config.num_layers));
  StageShared shared{.config = config, .parameters = parameters, .rotary = nullptr};
  if (config.family != ModelFamily::kGpt2) {
    const at::ScalarType type = parameters.type() == ComputeType::kFloat64 ? at::kDouble : at::kFloat;
    shared.rotary = std::make_shared<kernels::RotaryTable>(config, type);
  }
  std::size_t num_attn = 0;
  for (int idx = parts.begin; idx < parts.end; ++idx) {
    const Part part = part_at(config.num_layers, idx);
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

ForwardResult StageModule::forward(const SliceData& data, Payload input, Stash* stash, KvCache* cache,
                                   KeepLogits keep) {
  const KernelsOnly guard;
  if (stash != nullptr) stash->parts.assign(impl_->parts.size(), {});
  ForwardResult result{.output = std::move(input), .loss = {}, .logits = {}};
  for (std::size_t idx = 0; idx < impl_->parts.size(); ++idx) {
    const ForwardContext context{
        .data = data, .stash = stash == nullptr ? nullptr : &stash->parts[idx], .cache = cache, .keep = keep};
    result = impl_->parts[idx]->forward(context, std::move(result.output));
  }
  return result;
}

Payload StageModule::backward_input(const SliceData& data, Payload output_grad, Stash stash, WeightStash* weight_stash,
                                    KvCache* cache, int slice_idx) {
  const KernelsOnly guard;
  PLAIT_CHECK(stash.parts.size() == impl_->parts.size(), "a stash of {} parts for a stage of {}", stash.parts.size(),
              impl_->parts.size());
  if (weight_stash != nullptr) weight_stash->parts.assign(impl_->parts.size(), {});
  Payload grad = std::move(output_grad);
  for (std::size_t idx = impl_->parts.size(); idx-- > 0;) {
    BackwardContext context{.data = data,
                            .stash = std::move(stash.parts[idx]),
                            .weight_stash = weight_stash == nullptr ? nullptr : &weight_stash->parts[idx],
                            .cache = cache,
                            .slice_idx = slice_idx};
    grad = impl_->parts[idx]->backward_input(std::move(context), std::move(grad));
  }
  return grad;
}

void StageModule::backward_weight(WeightStash weight_stash) {
  const KernelsOnly guard;
  PLAIT_CHECK(weight_stash.parts.size() == impl_->parts.size(), "a weight stash of {} parts for a stage of {}",
              weight_stash.parts.size(), impl_->parts.size());
  for (std::size_t idx = impl_->parts.size(); idx-- > 0;)
    impl_->parts[idx]->backward_weight(std::move(weight_stash.parts[idx]));
}

}  // namespace plait
