#include "plait/run/engine/rank_group.h"

#include "plait/base/check.h"
#include "plait/run/engine/messages.h"
#include "plait/run/engine/sanitizer.h"
#include "plait/run/engine/segments.h"
#include "plait/run/model/kernels/timing.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace plait {
namespace {

const ParamGroup* group_of(const Layout& layout, int part) {
  for (const ParamGroup& group : layout.groups)
    if (std::binary_search(group.parts.begin(), group.parts.end(), part)) return &group;
  return nullptr;
}

bool is_home(const ParamGroup& group, RankId rank) {
  return std::binary_search(group.homes.begin(), group.homes.end(), rank);
}

Share share_of(const ParamGroup& group, RankId rank) {
  if (!is_home(group, rank)) return Share{.index = 0, .count = 0};
  if (group.residency == Residency::kResident) return {};
  const auto place = std::lower_bound(group.homes.begin(), group.homes.end(), rank) - group.homes.begin();
  return Share{.index = static_cast<int>(place), .count = static_cast<int>(group.homes.size())};
}

std::size_t stage_of(const Layout& layout, int part) {
  std::size_t stage = 0;
  while (stage + 1 < layout.stages.size() && layout.stages[stage].parts.end <= part) ++stage;
  return stage;
}

/// Does a home keep the tensor? One that has only the head of a tied model has no use for anything but the token table.
bool keeps(RankId home, const Layout& layout, const ParamGroup& group, const ModelConfig& config,
           const ParameterSpec& spec) {
  const bool is_table = spec.name == token_table_name(config);
  if (layout.tying == HeadTying::kUntied || spec.part != 0 || is_table || !share_of(group, home).is_whole())
    return true;
  const std::vector<RankId>& with_embed = layout.stages.front().homes;
  return std::binary_search(with_embed.begin(), with_embed.end(), home);
}

std::int64_t counted_bytes(std::int64_t num_elements, at::ScalarType type) {
  constexpr std::int64_t kRounding = 64;  // as memory.h counts
  const std::int64_t bytes = num_elements * static_cast<std::int64_t>(c10::elementSize(type));
  return (bytes + kRounding - 1) / kRounding * kRounding;
}

}  // namespace

std::optional<Holding> holding_on(RankId rank, const Layout& layout, const ModelConfig& config,
                                  const std::vector<bool>& runs_here, const ParameterSpec& first) {
  const ParamGroup* group = group_of(layout, first.part);
  if (group == nullptr) return std::nullopt;
  const bool used =
      std::any_of(group->users.begin(), group->users.end(), [&](StageId user) { return runs_here[user.index()]; });
  if (!used && !is_home(*group, rank)) return std::nullopt;
  if (is_home(*group, rank) && !keeps(rank, layout, *group, config, first)) return std::nullopt;
  int num_uses = runs_here[stage_of(layout, first.part)] ? 1 : 0;
  if (config.tied_head && first.name == token_table_name(config) && runs_here.back()) ++num_uses;
  return Holding{.share = share_of(*group, rank), .num_uses = num_uses};
}

RankGroup::RankGroup(RankId rank, const Layout& layout, GroupId id, const ModelConfig& config, ParameterSet& set,
                     const std::vector<std::string>& parameter_order)
    : share_(share_of(layout.groups[id.index()], rank)),
      device_(set.device()),
      compute_type_(scalar_type(set.type())),
      master_type_(master_type(set.type())) {
  const ParamGroup& group = layout.groups[id.index()];
  const std::vector<ParameterSpec> specs = parameter_specs(config);
  for (std::size_t s = 0; s < specs.size(); ++s) {
    const ParameterSpec& spec = specs[s];
    if (!std::binary_search(group.parts.begin(), group.parts.end(), spec.part)) continue;
    // The first tensor of an allocation names it; the others follow it.
    const bool is_member = !storages_.empty() && storages_.back() != nullptr &&
                           std::any_of(storages_.back()->members.begin(), storages_.back()->members.end(),
                                       [&](const StorageMember& member) { return member.name == spec.name; });
    if (!is_member) storages_.push_back(set.find_storage(spec.name));
    const auto found = set.by_name().find(spec.name);
    if (found == set.by_name().end() || share_.is_nothing()) continue;
    parameters_.push_back(&found->second);
    const auto first_home = std::find_if(group.homes.begin(), group.homes.end(),
                                         [&](RankId home) { return keeps(home, layout, group, config, spec); });
    if (share_.is_whole() && *first_home != rank) continue;
    const auto place =
        std::lower_bound(parameter_order.begin(), parameter_order.end(), spec.name) - parameter_order.begin();
    counted_.emplace_back(place, &found->second);
  }
  for (const ParameterStorage* storage : storages_) {
    if (storage == nullptr) continue;
    std::int64_t size = 1;
    for (const std::int64_t extent : storage->shape) size *= extent;
    weight_bytes_ += counted_bytes(size, compute_type_);
    gradient_bytes_ += counted_bytes(size, master_type_);
  }
}

std::vector<at::Tensor> RankGroup::weights() const {
  std::vector<at::Tensor> weights;
  for (const ParameterStorage* storage : storages_)
    weights.push_back(storage == nullptr ? at::Tensor() : storage->compute);
  return weights;
}

void RankGroup::bind_weights(const std::vector<at::Tensor>& weights) {
  for (std::size_t i = 0; i < storages_.size(); ++i)
    if (storages_[i] != nullptr) storages_[i]->compute = weights[i];
}

void RankGroup::begin_gather() {
  for (ParameterStorage* storage : storages_)
    if (storage != nullptr)
      storage->compute = at::empty(storage->shape, at::TensorOptions().dtype(compute_type_).device(device_));
  if (share_.is_nothing()) return;
  const std::vector<at::Tensor> whole = as_parameters(weights());
  for (std::size_t i = 0; i < whole.size(); ++i)
    whole[i].view(-1).narrow(0, parameters_[i]->begin, parameters_[i]->master.numel()).copy_(parameters_[i]->master);
}

void RankGroup::drop_weights() {
  for (ParameterStorage* storage : storages_) {
    if (storage == nullptr || !storage->compute.defined()) continue;
    announce_drop(storage->compute.const_data_ptr());  // a broadcast may hold it still, and drop it on another thread
    storage->compute.reset();
  }
}

void RankGroup::begin_contribution() {
  folded_ = false;
  if (is_whole()) return;
  for (ParameterStorage* storage : storages_) {
    if (storage == nullptr) continue;
    for (std::size_t use = 0; use < storage->grads.size(); ++use) {
      at::Tensor& grad = storage->grads[use];
      if (grad.defined()) continue;
      grad = at::empty(storage->shape, at::TensorOptions().dtype(master_type_).device(device_));
      storage->empty_grad(use);
    }
  }
}

void RankGroup::fold() {
  if (std::exchange(folded_, true)) return;
  const KernelScope timed(KernelKind::kCopy);
  for (ParameterStorage* storage : storages_) {
    if (storage == nullptr || !storage->grads.front().defined()) continue;
    storage->fold_grads();
    if (!is_whole())
      for (std::size_t use = 1; use < storage->grads.size(); ++use) storage->grads[use].reset();
  }
}

std::vector<at::Tensor> RankGroup::partial() const {
  std::vector<at::Tensor> partial;
  for (const ParameterStorage* storage : storages_)
    partial.push_back(storage == nullptr ? at::Tensor() : storage->grads.front());
  return partial;
}

std::vector<at::Tensor> RankGroup::take_partial() {
  fold();
  std::vector<at::Tensor> taken;
  for (ParameterStorage* storage : storages_) {
    at::Tensor& tensor = taken.emplace_back();
    if (storage == nullptr) continue;
    if (is_whole()) {
      tensor = at::clone(storage->grads.front(), at::MemoryFormat::Contiguous);
      storage->grads.front().zero_();
    } else {
      tensor = std::exchange(storage->grads.front(), at::Tensor());
    }
  }
  return taken;
}

void RankGroup::add_partial(std::vector<at::Tensor>&& partial) {
  fold();
  for (std::size_t i = 0; i < storages_.size(); ++i) {
    if (storages_[i] == nullptr) continue;
    at::Tensor& grad = storages_[i]->grads.front();
    if (!grad.defined())
      grad = std::move(partial[i]);
    else if (partial[i].defined())
      grad.add_(partial[i]);
  }
}

void RankGroup::begin_step() {
  folded_ = false;
  reductions.clear();
  lent.clear();
}

std::vector<at::Tensor> RankGroup::as_parameters(const std::vector<at::Tensor>& storages) const {
  std::vector<at::Tensor> parameters;
  for (std::size_t i = 0; i < storages_.size(); ++i) {
    if (storages_[i] == nullptr) continue;
    for (const StorageMember& member : storages_[i]->members)
      parameters.push_back(storages[i].defined() ? storages[i].narrow(0, member.first_row, member.num_rows)
                                                 : at::Tensor());
  }
  return parameters;
}

void RankGroup::add_shards(const std::vector<at::Tensor>& sum) {
  PLAIT_CHECK(sum.size() == parameters_.size(), "{} sums for {} parameters", sum.size(), parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = *parameters_[i];
    parameter.grads.front().add_(sum[i].view(-1).narrow(0, parameter.begin, parameter.master.numel()));
  }
}

std::string RankGroup::check(const Message& message, Value value) const {
  const at::ScalarType type = value.kind() == ValueKind::kWeight ? compute_type_ : master_type_;
  if (message.value != value) return check_name(message, value);
  bool fits = message.tensors.size() == storages_.size();
  for (std::size_t i = 0; fits && i < storages_.size(); ++i) {
    const at::Tensor& tensor = message.tensors[i];
    if (storages_[i] == nullptr) continue;
    // Of a gradient, the sender may have no part in some tensors.
    fits = tensor.defined() ? tensor.scalar_type() == type && tensor.sizes() == at::IntArrayRef(storages_[i]->shape)
                            : value.kind() == ValueKind::kWeightGrad;
  }
  if (fits) return {};
  std::vector<std::string> expected;
  for (const ParameterStorage* storage : storages_)
    if (storage != nullptr)
      expected.push_back(fmt::format("{} [{}]", c10::toString(type), fmt::join(storage->shape, ", ")));
  return fmt::format("the tensors should be {}; got {}", fmt::join(expected, ", "), describe_tensors(message.tensors));
}

}  // namespace plait
