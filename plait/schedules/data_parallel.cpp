#include "plait/schedules/data_parallel.h"

#include "plait/schedules/common.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace plait {
namespace {

int num_units(const ScheduleShape& shape) {
  return shape.ranks * shape.chunks.value_or(1);
}

/// One op of a row, the same on all ranks but for the micro-batch.
struct Use {
  OpKind kind = OpKind::kForward;
  int stage = 0;
  int round = 0;
};

class ReplicaWriter {
 public:
  ReplicaWriter(const Layout& layout, const DataParallelPlan& plan, RankSetId everyone, int rounds)
      : layout_(layout), plan_(plan), everyone_(everyone), rounds_(rounds), held_(layout.groups.size()) {
    for (int round = 0; round < rounds; ++round) {
      for (int s = 0; s < layout.num_stages(); ++s) uses_.push_back({OpKind::kForward, s, round});
      for (int s = layout.num_stages(); s-- > 0;) uses_.push_back({OpKind::kBackward, s, round});
    }
  }

  Row of_rank(int rank) {
    row_.clear();
    for (std::size_t k = 0; k < uses_.size(); ++k) {
      if (sharded()) gather_ahead(k);
      const Use& use = uses_[k];
      row_.emplace_back(Op{.kind = use.kind,
                           .stage = StageId{use.stage},
                           .microbatch = MicrobatchId{use.round * layout_.num_ranks + rank},
                           .slice = {}});
      if (plan_.wait == DataParallelPlan::Wait::kBehindNextOp) wait_for_reductions();
      if (sharded()) free_behind(k);
      if (use.kind == OpKind::kBackward) reduce_behind(k);
    }
    wait_for_reductions();
    return std::move(row_);
  }

 private:
  [[nodiscard]] bool sharded() const { return plan_.residency == Residency::kSharded; }
  [[nodiscard]] const std::vector<GroupId>& groups(std::size_t use) const {
    return layout_.stages[static_cast<std::size_t>(uses_[use].stage)].groups;
  }
  [[nodiscard]] bool needs(std::size_t use, GroupId group) const {
    return std::find(groups(use).begin(), groups(use).end(), group) != groups(use).end();
  }

  void gather_ahead(std::size_t k) {
    const std::size_t end = std::min(uses_.size(), k + 1 + static_cast<std::size_t>(plan_.ahead));
    for (std::size_t use = k; use < end; ++use) {
      for (const GroupId group : groups(use)) {
        if (held_[group.index()]) continue;
        held_[group.index()] = true;
        row_.emplace_back(Collective{
            .kind = CollectiveKind::kAllGather, .ranks = everyone_, .root = {}, .value = Value::weight(group)});
      }
    }
  }

  [[nodiscard]] bool stays(std::size_t k, GroupId group) const {
    std::size_t next = k + 1;
    while (next < uses_.size() && !needs(next, group)) ++next;
    if (next == uses_.size()) return false;
    if (next <= k + static_cast<std::size_t>(plan_.ahead)) return true;
    switch (plan_.keep) {
      case DataParallelPlan::Keep::kWindow: return false;
      case DataParallelPlan::Keep::kToBackward: return uses_[k].round == uses_[next].round;
      case DataParallelPlan::Keep::kWholeStep: return true;
    }
    return false;
  }

  void free_behind(std::size_t k) {
    for (const GroupId group : groups(k)) {
      if (stays(k, group)) continue;
      held_[group.index()] = false;
      row_.emplace_back(Free{.value = Value::weight(group)});
    }
  }

  [[nodiscard]] CollectiveKind reduction() const {
    return sharded() ? CollectiveKind::kReduceScatter : CollectiveKind::kAllReduce;
  }

  void reduce_behind(std::size_t k) {
    const Use& use = uses_[k];
    if (plan_.reduce == DataParallelPlan::Reduce::kLastRound && use.round + 1 < rounds_) return;
    for (const GroupId group : groups(k)) {
      // A tied token table is whole once the first stage has added to it.
      if (layout_.groups[group.index()].users.front() != StageId{use.stage}) continue;
      row_.emplace_back(
          Collective{.kind = reduction(), .ranks = everyone_, .root = {}, .value = Value::weight_grad(group)});
      under_way_.push_back(group);
    }
  }

  void wait_for_reductions() {
    for (const GroupId group : under_way_)
      row_.emplace_back(WaitCollective{.kind = reduction(), .value = Value::weight_grad(group)});
    under_way_.clear();
  }

  const Layout& layout_;
  const DataParallelPlan& plan_;
  RankSetId everyone_;
  int rounds_;
  std::vector<Use> uses_;
  std::vector<bool> held_;
  std::vector<GroupId> under_way_;
  Row row_;
};

}  // namespace

Result<> check_data_parallel(std::string_view name, const ScheduleShape& shape, GatherFlags flags) {
  if (flags == GatherFlags::kRefused && (shape.prefetch || shape.reshard != Reshard::kAfterForward))
    return make_error(ErrorCode::kInvalidArgument, "schedule.flag",
                      "{}: has its weights from its first forward to its last backward; leave --prefetch and --reshard "
                      "out, or use fsdp",
                      name);
  ScheduleShape plain = shape;
  plain.rounds.reset();
  plain.prefetch.reset();
  plain.reshard = Reshard::kAfterForward;
  if (shape.rounds && *shape.rounds < 1)
    return make_error(ErrorCode::kInvalidArgument, "schedule.size", "{}: --rounds is {}; at least 1 is needed", name,
                      *shape.rounds);
  PLAIT_TRY_VOID(check_sizes(name, plain));
  PLAIT_TRY_VOID(check_whole_sequences(name, plain));
  PLAIT_TRY_VOID(check_layers(name, plain, num_units(shape)));
  const int p = shape.ranks;
  const int m = *shape.microbatches;
  if (m % p != 0)
    return make_error(ErrorCode::kInvalidArgument, "schedule.microbatches",
                      "{0}: every rank takes one micro-batch a round, M = R P, got --microbatches {2} and --ranks {1}; "
                      "use a multiple of {1}",
                      name, p, m);
  if (shape.rounds && *shape.rounds != m / p)
    return make_error(ErrorCode::kInvalidArgument, "schedule.rounds",
                      "{}: {} micro-batches on {} ranks are {} rounds, got --rounds {}; leave one out", name, m, p,
                      m / p, *shape.rounds);
  return {};
}

Result<Schedule> write_data_parallel(std::string_view name, const ScheduleShape& shape, const DataParallelPlan& plan) {
  std::vector<RankId> everyone;
  for (int rank = 0; rank < shape.ranks; ++rank) everyone.emplace_back(rank);
  PLAIT_TRY(Layout layout, replicated_layout(name, shape, num_units(shape), [&](int) { return everyone; }));
  for (ParamGroup& group : layout.groups) group.residency = plan.residency;
  const RankSetId set = intern_rank_set(layout, everyone);
  std::vector<Row> rows;
  for (int rank = 0; rank < shape.ranks; ++rank)
    rows.push_back(ReplicaWriter(layout, plan, set, *shape.microbatches / shape.ranks).of_rank(rank));
  return Schedule{.layout = std::move(layout), .rows = std::move(rows)};
}

Expectation expect_data_parallel(const ScheduleShape& shape) {
  return Expectation{.makespan = *shape.microbatches * work(shape.times),
                     .max_idle = 0,
                     .peak_activation_units = std::vector<int>(static_cast<std::size_t>(shape.ranks), num_units(shape)),
                     .sends = 0};
}

}  // namespace plait
