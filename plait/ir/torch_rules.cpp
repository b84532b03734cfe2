#include "plait/ir/torch_rules.h"

#include "plait/ir/lower.h"

#include <fmt/format.h>

#include <string>

namespace plait::torch_rules {
namespace {

template <class... Args>
Error cannot(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(ErrorCode::kUnsupported, "csv.cannot_express", "PyTorch's schedule files cannot hold this: {}",
                    fmt::format(format, std::forward<Args>(args)...));
}

std::string describe(const Op& op) {
  return fmt::format("{}{}{}", op.stage.value(), to_string(op.kind), op.microbatch.value());
}

}  // namespace

Result<> check_layout(const Layout& layout) {
  if (layout.mode != Mode::kTrain) return cannot("forwards only; PyTorch demands a backward of every forward");
  if (layout.num_slices != 1)
    return cannot("sequences are cut into {} slices; the format knows whole micro-batches only", layout.num_slices);
  std::vector<bool> has_stage(static_cast<std::size_t>(layout.num_ranks));
  for (std::size_t s = 0; s < layout.stages.size(); ++s) {
    const std::vector<RankId>& homes = layout.stages[s].homes;
    if (homes.empty()) return cannot("stage {} has no home rank; it moves between ranks", s);
    if (homes.size() > 1)
      return cannot("stage {} has replicas on {} ranks; a stage may live on one rank only", s, homes.size());
    has_stage[homes.front().index()] = true;
  }
  for (std::size_t rank = 0; rank < has_stage.size(); ++rank)
    if (!has_stage[rank]) return cannot("rank {} holds no stage", rank);
  bool chain = layout.edges.size() + 1 == layout.stages.size();
  for (std::size_t e = 0; chain && e < layout.edges.size(); ++e)
    chain = layout.edges[e].producer.index() == e && layout.edges[e].consumer.index() == e + 1;
  if (!chain) return cannot("the stages are not a chain");
  return {};
}

Result<> check_schedule(const Schedule& schedule) {
  const Layout& layout = schedule.layout;
  if (static_cast<int>(schedule.rows.size()) != layout.num_ranks)
    return make_error(ErrorCode::kInvalidSchedule, "verify.ranks", "{} rows for {} ranks", schedule.rows.size(),
                      layout.num_ranks);
  for (std::size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    const Row& row = schedule.rows[rank];
    for (std::size_t at = 0; at < row.size(); ++at) {
      if (std::holds_alternative<Idle>(row[at])) continue;
      if (std::holds_alternative<Pair>(row[at])) {
        if (at + 2 >= row.size() || !std::holds_alternative<Op>(row[at + 1]) ||
            !std::holds_alternative<Op>(row[at + 2]))
          return make_error(ErrorCode::kInvalidSchedule, "verify.pair",
                            "rank {}, position {}: a pair is followed by two ops", rank, at);
        continue;
      }
      const Op* op = std::get_if<Op>(&row[at]);
      if (op == nullptr) {
        if (std::holds_alternative<Turn>(row[at]))
          return cannot("rank {}, position {}: turns of a lock step", rank, at);
        return cannot(
            "rank {}, position {}: a {} that the schedule orders itself; only forwards and backwards may stand in it",
            rank, at, kind_name(row[at]));
      }
      PLAIT_TRY_VOID(check_op(layout, rank, at, *op));
    }
  }
  return {};
}

Result<> check_op(const Layout& layout, std::size_t rank, std::size_t at, const Op& op) {
  if (op.kind == OpKind::kRecompute)
    return cannot("rank {}, position {}, op {}: recomputation", rank, at, describe(op));
  if (op.slice != SliceId{})
    return cannot("rank {}, position {}, op {}: slice {}", rank, at, describe(op), op.slice.value());
  if (op.stage.value() < 0 || op.stage.value() >= layout.num_stages())
    return make_error(ErrorCode::kInvalidSchedule, "verify.out_of_range",
                      "rank {}, position {}, op {}: there are stages 0..{}", rank, at, describe(op),
                      layout.num_stages() - 1);
  const RankId home = layout.stages[op.stage.index()].homes.front();
  if (home.index() != rank)
    return cannot("rank {}, position {}, op {}: stage {} lives on rank {}, and the format has no way to move it", rank,
                  at, describe(op), op.stage.value(), home.value());
  return {};
}

Result<> check_groups(const Layout& layout) {
  for (const ParamGroup& group : layout.groups) {
    if (group.users.size() > 1)
      return cannot("group {} is used by {} stages; the format has no action for tied weights", group.name,
                    group.users.size());
  }
  for (std::size_t s = 0; s < layout.stages.size(); ++s) {
    const Stage& stage = layout.stages[s];
    if (stage.groups.size() != 1)
      return cannot("stage {} has {} parameter groups; one is expected", s, stage.groups.size());
    if (layout.groups[stage.groups.front().index()].homes != stage.homes)
      return cannot("the parameters of stage {} do not live where the stage does", s);
  }
  return {};
}

void make_sharded(Layout& layout) {
  for (ParamGroup& group : layout.groups) group.residency = Residency::kSharded;
  layout.rank_sets.clear();
  for (int rank = 0; rank < layout.num_ranks; ++rank) layout.rank_sets.push_back({RankId{rank}});
}

Collective reduction(std::size_t rank, GroupId group) {
  return Collective{
      .kind = CollectiveKind::kReduceScatter, .ranks = own_set(rank), .root = {}, .value = Value::weight_grad(group)};
}

WaitCollective reduction_wait(GroupId group) {
  return WaitCollective{.kind = CollectiveKind::kReduceScatter, .value = Value::weight_grad(group)};
}

void append_implicit(Program& program, Reductions reductions) {
  if (reductions == Reductions::kImplicit) {
    for (std::size_t g = 0; g < program.layout.groups.size(); ++g) {
      const GroupId group{static_cast<std::int32_t>(g)};
      for (const RankId home : program.layout.groups[g].homes) {
        program.rows[home.index()].push_back(reduction(home.index(), group));
        program.rows[home.index()].push_back(reduction_wait(group));
      }
    }
  }
  add_steps(program);
}

}  // namespace plait::torch_rules
