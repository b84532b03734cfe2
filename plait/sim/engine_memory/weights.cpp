#include "plait/sim/engine_memory/weights.h"

#include <algorithm>
#include <utility>

// Follows ParameterSet::create and RankGroup of plait/run.
namespace plait::ledger {
namespace {

bool is_home(const ParamGroup& group, RankId rank) {
  return std::binary_search(group.homes.begin(), group.homes.end(), rank);
}

std::size_t stage_of(const Layout& layout, int part) {
  std::size_t stage = 0;
  while (stage + 1 < layout.stages.size() && layout.stages[stage].parts.end <= part) ++stage;
  return stage;
}

/// A home that has only the head of a tied model keeps nothing of the first part but the token table.
bool keeps(RankId home, const Layout& layout, int part, const Storage& storage, int num_shares) {
  if (layout.tying == HeadTying::kUntied || part != 0 || storage.is_table || num_shares != 1) return true;
  const std::vector<RankId>& with_embed = layout.stages.front().homes;
  return std::binary_search(with_embed.begin(), with_embed.end(), home);
}

}  // namespace

std::int64_t Storage::size() const {
  std::int64_t sum = 0;
  for (const std::int64_t member : members) sum += member;
  return sum;
}

std::vector<Storage> storages_of(const ModelShape& s, PartKind part) {
  const bool gpt = s.mlp == MlpKind::kPlain;
  const std::int64_t d = s.hidden;
  const std::int64_t q = s.heads * s.head_dim;
  const std::int64_t kv = s.kv_heads * s.head_dim;
  std::vector<Storage> storages;
  const auto add = [&](std::vector<std::int64_t> members) { storages.push_back({.members = std::move(members)}); };
  const auto add_norm = [&] {
    add({d});
    if (gpt) add({d});
  };
  switch (part) {
    case PartKind::kEmbed:
      storages.push_back({.members = {s.vocab * d}, .is_table = true});
      if (gpt) add({(s.positions > 0 ? s.positions : s.tokens) * d});
      break;
    case PartKind::kNorm: add_norm(); break;
    case PartKind::kQkv:
      if (gpt) {
        add({d * (q + 2 * kv)});
        add({q + 2 * kv});
        break;
      }
      add({q * d, kv * d, kv * d});
      if (s.qkv_bias == QkvBias::kAlways) add({q, kv, kv});
      break;
    case PartKind::kAttn: break;
    case PartKind::kPost:
      add({d * q});
      if (gpt) add({d});
      add_norm();
      if (gpt) {
        add({d * s.ffn});
        add({s.ffn});
      } else {
        add({s.ffn * d, s.ffn * d});
      }
      add({d * s.ffn});
      if (gpt) add({d});
      break;
    case PartKind::kHead:
      add_norm();
      if (s.tying == HeadTying::kUntied) add({s.vocab * d});
      break;
  }
  return storages;
}

Group::Group(RankId rank, const Layout& layout, GroupId id, const ModelShape& shape, const std::vector<bool>& runs_here,
             Ledger& ledger)
    : ledger_(ledger), element_bytes_(shape.element_bytes), master_bytes_(std::max<std::int64_t>(4, element_bytes_)) {
  const ParamGroup& group = layout.groups[id.index()];
  const auto homes = static_cast<std::int64_t>(group.homes.size());
  const bool home = is_home(group, rank);
  if (home) num_shares_ = group.residency == Residency::kResident ? 1 : static_cast<int>(homes);
  const std::int64_t place = std::lower_bound(group.homes.begin(), group.homes.end(), rank) - group.homes.begin();
  const bool used =
      std::any_of(group.users.begin(), group.users.end(), [&](StageId user) { return runs_here[user.index()]; });
  const bool trains = layout.mode == Mode::kTrain;
  for (const int part : group.parts) {
    for (const Storage& storage : storages_of(shape, part_at(layout.num_layers, part).kind)) {
      Held& held = held_.emplace_back(Held{.size = storage.size()});
      held.is_here = (used || home) && !(home && !keeps(rank, layout, part, storage, num_shares_));
      if (!held.is_here) continue;
      held.num_uses = runs_here[stage_of(layout, part)] ? 1 : 0;
      if (shape.tying == HeadTying::kTied && storage.is_table && runs_here.back()) ++held.num_uses;
      held.num_uses = std::max(1, held.num_uses);
      held.gradients.resize(static_cast<std::size_t>(held.num_uses));
      weight_bytes_ += counted(held.size * element_bytes_);
      gradient_bytes_ += counted(held.size * master_bytes_);
      const auto stand = [&](std::int64_t elements, std::int64_t bytes, Use use) {
        static_.push_back(make_block(ledger_, elements * bytes, use));
      };
      if (is_whole()) {
        // In fp32 and fp64 the weights that compute are the masters.
        const bool narrow = element_bytes_ < master_bytes_;
        stand(held.size, element_bytes_, Use::kWeights);
        if (narrow) stand(held.size, master_bytes_, Use::kOptimizer);
        for (Tensor& gradient : held.gradients)
          gradient = make_block(ledger_, held.size * master_bytes_, Use::kGradients);
        for (const std::int64_t member : storage.members) {
          for (int moment = 0; trains && moment < 2; ++moment) stand(member, master_bytes_, Use::kOptimizer);
          kept_.push_back(member);
        }
      } else if (num_shares_ > 1) {
        for (const std::int64_t member : storage.members) {
          const std::int64_t shard = (place + 1) * member / homes - place * member / homes;
          stand(shard, master_bytes_, Use::kWeights);
          stand(shard, master_bytes_, Use::kGradients);
          for (int moment = 0; trains && moment < 2; ++moment) stand(shard, master_bytes_, Use::kOptimizer);
          kept_.push_back(shard);
        }
      }
    }
  }
}

void Group::keep_undo() {
  constexpr int kMasterAndMoments = 3;
  for (const std::int64_t elements : kept_)
    for (int tensor = 0; tensor < kMasterAndMoments; ++tensor)
      undo_.push_back(make_block(ledger_, elements * master_bytes_, Use::kOptimizer));
}

Tensors Group::new_weights(Use use) const {
  Tensors weights;
  for (const Held& held : held_)
    weights.push_back(held.is_here ? make_block(ledger_, held.size * element_bytes_, use) : nullptr);
  return weights;
}

Tensors Group::new_gradients(Use use) const {
  Tensors gradients;
  for (const Held& held : held_)
    gradients.push_back(held.is_here ? make_block(ledger_, held.size * master_bytes_, use) : nullptr);
  return gradients;
}

void Group::begin_contribution() {
  folded_ = false;
  if (is_whole()) return;
  for (Held& held : held_)
    for (Tensor& gradient : held.gradients)
      if (gradient == nullptr) gradient = make_block(ledger_, held.size * master_bytes_, Use::kGradients);
}

void Group::fold() {
  if (std::exchange(folded_, true) || is_whole()) return;
  for (Held& held : held_)
    for (std::size_t use = 1; use < held.gradients.size(); ++use) held.gradients[use].reset();
}

Tensors Group::partial() const {
  Tensors partial;
  for (const Held& held : held_) partial.push_back(held.is_here ? held.gradients.front() : nullptr);
  return partial;
}

Tensors Group::take_partial(Use use_of_copy, bool copies_here) {
  fold();
  if (is_whole()) return copies_here ? new_gradients(use_of_copy) : Tensors{};
  Tensors taken;
  for (Held& held : held_) taken.push_back(held.is_here ? std::exchange(held.gradients.front(), nullptr) : nullptr);
  return taken;
}

void Group::add_partial(Tensors partial) {
  fold();
  for (std::size_t i = 0; i < held_.size(); ++i) {
    if (!held_[i].is_here) continue;
    Tensor& gradient = held_[i].gradients.front();
    if (gradient == nullptr) gradient = std::move(partial[i]);
  }
}

}  // namespace plait::ledger
