#include "plait/ir/replicate.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace plait {
namespace {

bool is_weight_route(const Instr& instr) {
  const auto weight = [](const Value& value) { return value.kind() == ValueKind::kWeight; };
  if (const Send* send = std::get_if<Send>(&instr)) return weight(send->value);
  if (const Collective* collective = std::get_if<Collective>(&instr)) return weight(collective->value);
  return false;
}

bool sums_over_all(const Instr& instr) {
  const Collective* collective = std::get_if<Collective>(&instr);
  return collective != nullptr && collective->kind == CollectiveKind::kAllReduce &&
         collective->value.kind() == ValueKind::kWeightGrad;
}

Result<> check(const Schedule& one, int replicas, ReplicaState state) {
  const auto refuse = [&](std::string_view why) {
    return make_error(ErrorCode::kInvalidArgument, "schedule.replicas", "{} replicas of {}: {}", replicas,
                      one.layout.name, why);
  };
  if (replicas < 1) return refuse("at least 1 is needed");
  if (replicas == 1) return {};
  for (const ParamGroup& group : one.layout.groups)
    if (group.residency == Residency::kSharded)
      return refuse("its weights are sharded over all of its ranks already; give it more ranks instead");
  for (const Row& row : one.rows) {
    if (std::any_of(row.begin(), row.end(), sums_over_all))
      return refuse("its ranks are replicas already; give it more ranks instead");
    if (state == ReplicaState::kSharded && std::any_of(row.begin(), row.end(), is_weight_route))
      return refuse("its weights travel from ranks that hold them whole; leave the state whole");
  }
  return {};
}

/// One copy's names for ranks, micro-batches and rank sets.
class Copy {
 public:
  Copy(const Layout& one, int replica, Layout& all)
      : first_rank_(replica * one.num_ranks), first_microbatch_(replica * one.num_microbatches) {
    for (const std::vector<RankId>& set : one.rank_sets) sets_.push_back(intern_rank_set(all, of(set)));
  }

  [[nodiscard]] RankId of(RankId rank) const { return RankId{first_rank_ + rank.value()}; }
  [[nodiscard]] std::vector<RankId> of(std::vector<RankId> ranks) const {
    for (RankId& rank : ranks) rank = of(rank);
    return ranks;
  }

  [[nodiscard]] Instr of(Instr instr) const {
    std::visit([&](auto& held) { rename(held); }, instr);
    return instr;
  }

 private:
  [[nodiscard]] MicrobatchId of(MicrobatchId m) const { return MicrobatchId{first_microbatch_ + m.value()}; }
  [[nodiscard]] Value of(const Value& v) const {
    switch (v.kind()) {
      case ValueKind::kActivation: return Value::activation(v.edge(), of(v.microbatch()), v.slice());
      case ValueKind::kGradient: return Value::gradient(v.edge(), of(v.microbatch()), v.slice());
      case ValueKind::kStash: return Value::stash(v.stage(), of(v.microbatch()), v.slice());
      case ValueKind::kWeightStash: return Value::weight_stash(v.stage(), of(v.microbatch()), v.slice());
      case ValueKind::kKv: return Value::kv(v.stage(), of(v.microbatch()), v.slice());
      case ValueKind::kKvGrad: return Value::kv_grad(v.stage(), of(v.microbatch()), v.slice());
      case ValueKind::kWeight:
      case ValueKind::kWeightGrad:
      case ValueKind::kNorm: return v;
    }
    return v;
  }

  void rename(Op& op) const { op.microbatch = of(op.microbatch); }
  template <class Transfer>
  requires requires(Transfer t) { t.peer; }
  void rename(Transfer& transfer) const {
    transfer.value = of(transfer.value);
    transfer.peer = of(transfer.peer);
  }
  void rename(Collective& collective) const {
    collective.ranks = sets_[collective.ranks.index()];
    collective.root = of(collective.root);
    collective.value = of(collective.value);
  }
  template <class Other>
  requires(!requires(Other t) { t.peer; }) void rename(Other& /*unchanged*/) const {}

  std::int32_t first_rank_;
  std::int32_t first_microbatch_;
  std::vector<RankSetId> sets_;
};

/// Position behind the last op of the row that uses the group, and behind the pair that it is part of.
std::size_t behind_last_use(const Layout& layout, const Row& row, GroupId group) {
  std::size_t behind = 0;
  for (std::size_t at = 0; at < row.size(); ++at) {
    const Op* op = std::get_if<Op>(&row[at]);
    if (op == nullptr) continue;
    const std::vector<GroupId>& used = layout.stages[op->stage.index()].groups;
    if (std::find(used.begin(), used.end(), group) == used.end()) continue;
    const bool first_of_pair = at > 0 && std::holds_alternative<Pair>(row[at - 1]);
    behind = at + (first_of_pair ? 2 : 1);
  }
  return behind;
}

/// Gathers, frees and scatters of the groups whose shards lie on all replicas.
Row with_shards(const Layout& layout, const std::vector<RankSetId>& sets, RankId rank, const Row& row) {
  std::vector<std::pair<std::size_t, GroupId>> ends;
  Row out;
  Row waits;
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    const GroupId group{static_cast<std::int32_t>(g)};
    const std::vector<RankId>& homes = layout.groups[g].homes;
    if (!std::binary_search(homes.begin(), homes.end(), rank)) continue;
    out.emplace_back(
        Collective{.kind = CollectiveKind::kAllGather, .ranks = sets[g], .root = {}, .value = Value::weight(group)});
    ends.emplace_back(behind_last_use(layout, row, group), group);
  }
  const auto close = [&](std::size_t position) {
    for (const auto& [behind, group] : ends) {
      if (behind != position) continue;
      out.emplace_back(Free{.value = Value::weight(group)});
      if (layout.mode == Mode::kForward) continue;
      out.emplace_back(Collective{.kind = CollectiveKind::kReduceScatter,
                                  .ranks = sets[group.index()],
                                  .root = {},
                                  .value = Value::weight_grad(group)});
      waits.emplace_back(WaitCollective{.kind = CollectiveKind::kReduceScatter, .value = Value::weight_grad(group)});
    }
  };
  for (std::size_t at = 0; at < row.size(); ++at) {
    close(at);
    out.push_back(row[at]);
  }
  close(row.size());
  out.insert(out.end(), waits.begin(), waits.end());
  return out;
}

}  // namespace

Result<Schedule> replicate(const Schedule& one, int replicas, ReplicaState state) {
  PLAIT_TRY_VOID(check(one, replicas, state));
  if (replicas == 1) return one;
  Schedule all{.layout = one.layout, .rows = {}};
  Layout& layout = all.layout;
  layout.num_ranks *= replicas;
  layout.num_microbatches *= replicas;
  layout.rank_sets.clear();
  for (Stage& stage : layout.stages) stage.homes.clear();
  for (ParamGroup& group : layout.groups) group.homes.clear();
  for (int r = 0; r < replicas; ++r) {
    const Copy copy(one.layout, r, layout);
    const auto append = [&](std::vector<RankId>& homes, const std::vector<RankId>& own) {
      const std::vector<RankId> here = copy.of(own);
      homes.insert(homes.end(), here.begin(), here.end());
    };
    for (std::size_t s = 0; s < layout.stages.size(); ++s) append(layout.stages[s].homes, one.layout.stages[s].homes);
    for (std::size_t g = 0; g < layout.groups.size(); ++g) append(layout.groups[g].homes, one.layout.groups[g].homes);
    for (const Row& row : one.rows) {
      Row& renamed = all.rows.emplace_back();
      renamed.reserve(row.size());
      for (const Instr& instr : row) renamed.push_back(copy.of(instr));
    }
  }
  if (state == ReplicaState::kWhole) return all;
  std::vector<RankSetId> sets;
  for (ParamGroup& group : layout.groups) {
    group.residency = Residency::kSharded;
    sets.push_back(intern_rank_set(layout, group.homes));
  }
  for (std::size_t rank = 0; rank < all.rows.size(); ++rank)
    all.rows[rank] = with_shards(layout, sets, RankId{static_cast<std::int32_t>(rank)}, all.rows[rank]);
  return all;
}

}  // namespace plait
