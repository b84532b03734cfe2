#include "plait/schedules/common.h"
#include "plait/schedules/weight_rows.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace plait {
namespace {

int groups_of(const ScheduleShape& shape) {
  return shape.groups.value_or(shape.ranks % 2 == 0 ? 2 : 1);
}

/// Groups are neighbouring ranks: group g is ranks g G .. g G + G - 1. Shards are dealt out over the groups, so that a
/// shard's owner and its staging ranks have the same place in their groups: messages stay on one rail.
class Topology {
 public:
  Topology(int num_ranks, int num_groups) : p_(num_ranks), d_(num_groups), size_(num_ranks / num_groups) {}

  [[nodiscard]] int num_ranks() const { return p_; }
  [[nodiscard]] int num_groups() const { return d_; }
  [[nodiscard]] int first(int group) const { return group * size_; }
  [[nodiscard]] int end(int group) const { return (group + 1) * size_; }
  [[nodiscard]] int owner(int shard) const { return first(shard % d_) + shard / d_; }
  /// The rank of a group that gets the shard from its owner and hands it on: the owner itself in the owner's group.
  [[nodiscard]] int stage(int group, int shard) const { return first(group) + shard / d_; }
  [[nodiscard]] bool owns(int group, int shard) const { return shard % d_ == group; }
  [[nodiscard]] std::vector<RankId> members(int group) const {
    std::vector<RankId> ranks;
    for (int rank = first(group); rank < end(group); ++rank) ranks.emplace_back(rank);
    return ranks;
  }

 private:
  int p_;
  int d_;
  int size_;
};

/// What all ranks of a group compute in one step, each on its own micro-batch.
struct Cell {
  OpKind kind = OpKind::kForward;
  int shard = 0;
  int round = 0;
};

/// Group g runs g steps behind group 0. In every step
///
///   1. the weights of the next step: owner -> staging rank where the owner is in another group, then (behind the op) a
///      broadcast in the group; nothing at the turns F W_{P-1} -> B W_{P-1} and B W_0 -> F W_0, where the shard is here;
///   2. the gradients of the step before: a reduction in the group, to the owner or to the staging rank;
///   3. the op, behind which the old weights are freed;
///   4. the reduced gradient goes to its owner in another group, which adds it a step later.
///
/// Without prefetch the weights are those of the step itself, and its op waits for them.
class StepWriter {
 public:
  StepWriter(const Topology& topology, int rounds, int prefetch, Layout& layout)
      : t_(topology), rounds_(rounds), prefetch_(prefetch), layout_(layout), rows_(topology.num_ranks()) {
    for (int group = 0; group < t_.num_groups(); ++group) sets_.push_back(intern_rank_set(layout, t_.members(group)));
  }

  std::vector<Row> write() && {
    const int last = 2 * t_.num_ranks() * rounds_ + t_.num_groups() - 2;
    // One step before the first op for the first broadcast, one behind the last for the last gradient.
    for (int step = -prefetch_; step <= last + 1; ++step) {
      for (int group = 0; group < t_.num_groups(); ++group) {
        fetch(group, step + prefetch_);
        reduce(group, step);
      }
      for (int group = 0; group < t_.num_groups(); ++group) {
        compute(group, step);
        if (const auto shard = missing(group, step + prefetch_); shard && comes_late(group, *shard))
          broadcast(group, *shard);
        for (int rank = t_.first(group); rank < t_.end(group); ++rank) {
          finish_reduction(group, rank, step);
          add_received(rank);
          rows_.wait_sends(rank);
          release(group, rank, step);
        }
      }
      for (int group = 0; group < t_.num_groups(); ++group) send_home(group, step);
      rows_.turn_of_all();
    }
    for (int rank = 0; rank < t_.num_ranks(); ++rank) {
      add_received(rank);
      rows_.wait_sends(rank);
    }
    return std::move(rows_).take();
  }

 private:
  [[nodiscard]] std::optional<Cell> cell(int group, int step) const {
    const int p = t_.num_ranks();
    const int k = step - group;
    if (k < 0 || k >= 2 * p * rounds_) return {};
    const int i = k % (2 * p);
    return i < p ? Cell{.kind = OpKind::kForward, .shard = i, .round = k / (2 * p)}
                 : Cell{.kind = OpKind::kBackward, .shard = 2 * p - 1 - i, .round = k / (2 * p)};
  }
  [[nodiscard]] GroupId weights(int shard) const { return group_of_stage(layout_, shard); }

  /// The shard that a group needs for a step and has not from the step before.
  [[nodiscard]] std::optional<int> missing(int group, int step) const {
    const auto now = cell(group, step);
    const auto before = cell(group, step - 1);
    if (!now || (before && before->shard == now->shard)) return {};
    return now->shard;
  }

  /// A shard that must come from another group first is broadcast behind the op of the step, so that no lane stands at the
  /// broadcast while the message is under way.
  [[nodiscard]] bool comes_late(int group, int shard) const { return prefetch_ > 0 && !t_.owns(group, shard); }

  void fetch(int group, int step) {
    const auto shard = missing(group, step);
    if (!shard) return;
    if (!t_.owns(group, *shard)) rows_.move(Value::weight(weights(*shard)), t_.owner(*shard), t_.stage(group, *shard));
    if (!comes_late(group, *shard)) broadcast(group, *shard);
  }

  void broadcast(int group, int shard) {
    for (int rank = t_.first(group); rank < t_.end(group); ++rank)
      rows_.put(rank, Collective{.kind = CollectiveKind::kBroadcast,
                                 .ranks = sets_[static_cast<std::size_t>(group)],
                                 .root = RankId{t_.stage(group, shard)},
                                 .value = Value::weight(weights(shard))});
  }

  /// The shard whose gradient the group reduces in this step.
  [[nodiscard]] std::optional<int> reduced(int group, int step) const {
    const auto before = cell(group, step - 1);
    if (!before || before->kind != OpKind::kBackward) return {};
    return before->shard;
  }

  void reduce(int group, int step) {
    const auto shard = reduced(group, step);
    if (!shard) return;
    for (int rank = t_.first(group); rank < t_.end(group); ++rank)
      rows_.put(rank, Collective{.kind = CollectiveKind::kReduce,
                                 .ranks = sets_[static_cast<std::size_t>(group)],
                                 .root = RankId{t_.stage(group, *shard)},
                                 .value = Value::weight_grad(weights(*shard))});
  }

  void compute(int group, int step) {
    const auto now = cell(group, step);
    if (!now) return;
    for (int rank = t_.first(group); rank < t_.end(group); ++rank)
      rows_.put(rank, Op{.kind = now->kind,
                         .stage = StageId{now->shard},
                         .microbatch = MicrobatchId{now->round * t_.num_ranks() + rank},
                         .slice = {}});
  }

  void finish_reduction(int group, int rank, int step) {
    if (const auto shard = reduced(group, step))
      rows_.put(rank, WaitCollective{.kind = CollectiveKind::kReduce, .value = Value::weight_grad(weights(*shard))});
  }

  /// Drops the step's weights unless the next step wants them again.
  void release(int group, int rank, int step) {
    const auto now = cell(group, step);
    const auto next = cell(group, step + 1);
    const bool stays = next && now && next->shard == now->shard;
    if (now && !stays && t_.owner(now->shard) != rank)
      rows_.put(rank, Free{.value = Value::weight(weights(now->shard))});
  }

  void send_home(int group, int step) {
    const auto shard = reduced(group, step);
    if (!shard || t_.owns(group, *shard)) return;
    rows_.move(Value::weight_grad(weights(*shard)), t_.stage(group, *shard), t_.owner(*shard));
    received_.emplace_back(t_.owner(*shard), *shard);
  }

  /// What arrived in the step before. Its owner reads it only here, behind the step's op.
  void add_received(int rank) {
    const auto mine = std::stable_partition(received_.begin(), received_.end(),
                                            [&](const auto& entry) { return entry.first != rank; });
    for (auto entry = mine; entry != received_.end(); ++entry) rows_.put(rank, Add{.group = weights(entry->second)});
    received_.erase(mine, received_.end());
  }

  Topology t_;
  int rounds_;
  int prefetch_;
  const Layout& layout_;
  WeightRows rows_;
  std::vector<RankSetId> sets_;
  std::vector<std::pair<int, int>> received_;  ///< owner and shard of gradients that are not added yet
};

Result<> supports(const ScheduleShape& shape) {
  PLAIT_TRY_VOID(check_rounds("tawpipe", shape));
  if (shape.groups && (*shape.groups < 1 || shape.ranks % *shape.groups != 0))
    return make_error(ErrorCode::kInvalidArgument, "schedule.groups",
                      "tawpipe: makes groups of equal size, got --groups {} and --ranks {}; use a divisor of {}",
                      *shape.groups, shape.ranks, shape.ranks);
  if (shape.prefetch && (*shape.prefetch < 0 || *shape.prefetch > 1))
    return make_error(ErrorCode::kInvalidArgument, "schedule.size",
                      "tawpipe: fetches the weights of one step ahead, or none, got --prefetch {}; use 0 or 1",
                      *shape.prefetch);
  return {};
}

constexpr int kDefaultPrefetch = 1;

Result<Schedule> build(const ScheduleShape& shape) {
  const Topology topology(shape.ranks, groups_of(shape));
  PLAIT_TRY(Layout layout, sharded_by_owner("tawpipe", shape, [&](int shard) { return topology.owner(shard); }));
  std::vector<Row> rows =
      StepWriter(topology, *shape.microbatches / shape.ranks, shape.prefetch.value_or(kDefaultPrefetch), layout)
          .write();
  return Schedule{.layout = std::move(layout), .rows = std::move(rows)};
}

Expectation expect(const ScheduleShape& shape) {
  const std::int64_t p = shape.ranks;
  const std::int64_t d = groups_of(shape);
  const std::int64_t rounds = *shape.microbatches / p;
  const double n = *shape.microbatches;
  const auto skew = static_cast<double>((d - 1) * p);
  const std::int64_t weights = rounds * 2 * (p - 1) * (d - 1) + d - 1;
  const std::int64_t gradients = rounds * p * (d - 1);
  Expectation expectation{
      .peak_activation_units = std::vector<int>(static_cast<std::size_t>(p), shape.ranks),
      .sends = weights + gradients,
      .published_bubble_ratio = (skew + n) / ((3 * n + static_cast<double>(d) - 1) * static_cast<double>(p) + n)};
  // Two groups wait for nothing once transfers take no time; from three on, an owner in a group ahead sends too late.
  if (d <= 2 && shape.prefetch.value_or(kDefaultPrefetch) == 1) {
    expectation.makespan = *shape.microbatches * work(shape.times);
    expectation.max_idle = 0;
  }
  return expectation;
}

constexpr ScheduleInfo kInfo{
    .name = "tawpipe",
    .summary =
        "weights come to the ranks: broadcast inside a group, one message between groups, every shard has one owner",
    .needs = "m = R p, groups D divide p (default 2 where p is even), p divides the layers",
    .forms =
        "in lock step makespan 3pR + (D-1)(R+1) at F = 1, B = 2; published bubble ((D-1)p + m)/((3m + D-1)p + m); "
        "memory one micro-batch, all layers",
    .source = "Wu & Chen 2025, arXiv:2511.09741 (AAAI 2026)",
    .supports = &supports,
    .build = &build,
    .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
