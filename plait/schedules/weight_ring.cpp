#include "plait/schedules/weight_ring.h"

#include "plait/schedules/common.h"
#include "plait/schedules/weight_rows.h"

#include <utility>

namespace plait {
namespace {

int owner_of(int shard, int num_ranks) {
  return (shard + 1) % num_ranks;
}

int forward_shard(int num_ranks, int rank, int turn) {
  return ((turn - rank) % num_ranks + num_ranks) % num_ranks;
}

int backward_shard(int num_ranks, int rank, int turn) {
  return ((rank - 1 - turn) % num_ranks + num_ranks) % num_ranks;
}

class RingWriter {
 public:
  RingWriter(const RingPlan& plan, const Layout& layout)
      : plan_(plan),
        layout_(layout),
        p_(plan.ranks),
        rows_(plan.ranks),
        arrived_(static_cast<std::size_t>(plan.ranks)),
        arriving_(arrived_.size()),
        contributions_(arrived_.size()) {
    for (int rank = 0; rank < p_; rank += 2) hop_order_.push_back(rank);
    for (int rank = 1; rank < p_; rank += 2) hop_order_.push_back(rank);
  }

  std::vector<Row> write() && {
    swap();
    for (int turn = 0; turn < plan_.turns; ++turn) {
      if (p_ > 1) pass_weights(turn);
      for (int rank = 0; rank < p_; ++rank) backward(rank, turn);
      pass_gradients(turn);
      for (int rank = 0; rank < p_; ++rank) finish(rank, turn);
      rows_.turn_of_all();
    }
    // The ring turns on until every gradient is at home.
    for (int turn = plan_.turns; on_the_way(); ++turn) {
      pass_gradients(turn);
      for (int rank = 0; rank < p_; ++rank) rows_.wait_sends(rank);
    }
    for (int rank = 0; rank < p_; ++rank) take_home(rank);
    return std::move(rows_).take();
  }

 private:
  [[nodiscard]] Value weight(int shard) const { return Value::weight(group_of_stage(layout_, shard)); }
  [[nodiscard]] Value gradient(int shard) const { return Value::weight_grad(group_of_stage(layout_, shard)); }
  [[nodiscard]] int next(int rank) const { return (rank + 1) % p_; }
  [[nodiscard]] bool forward_flows(int turn) const { return turn < plan_.forward_turns; }
  [[nodiscard]] bool backward_flows(int turn) const { return turn >= p_ && turn < plan_.turns; }

  void swap() {
    for (int rank = 0; rank < p_; ++rank) {
      const int shard = forward_shard(p_, rank, 0);
      if (owner_of(shard, p_) != rank) rows_.move(weight(shard), owner_of(shard, p_), rank);
    }
    for (int rank = 0; rank < p_; ++rank) rows_.wait_sends(rank);
  }

  void pass_weights(int turn) {
    for (const int rank : hop_order_) {
      if (forward_flows(turn + 1)) rows_.move(weight(forward_shard(p_, rank, turn)), rank, next(rank));
      if (backward_flows(turn) && backward_flows(turn + 1))
        rows_.move(weight(backward_shard(p_, rank, turn)), rank, next(rank));
    }
  }

  void backward(int rank, int turn) {
    const auto whole = plan_.backward(rank, turn);
    const bool split = plan_.backward_ops == RingPlan::Backward::kSplit;
    if (whole)
      rows_.put(rank, split ? backward_input(whole->shard, whole->microbatch)
                            : plait::backward(whole->shard, whole->microbatch));
    const auto contributes = split ? plan_.weight(rank, turn) : whole;
    if (!contributes) return;
    if (split) rows_.put(rank, backward_weight(contributes->shard, contributes->microbatch));
    ++contributions_[static_cast<std::size_t>(contributes->shard)];
    if (p_ == 1) return;
    if (arrived_[static_cast<std::size_t>(rank)])
      rows_.put(rank, Add{.group = group_of_stage(layout_, contributes->shard)});
    arrived_[static_cast<std::size_t>(rank)] = contributes->shard;
  }

  /// Gradients hop on, complete ones until they are at home.
  void pass_gradients(int turn) {
    if (p_ == 1) return;
    for (const int rank : hop_order_) {
      const auto shard = arrived_[static_cast<std::size_t>(rank)];
      if (!shard || is_home(*shard, rank)) continue;
      rows_.move(gradient(*shard), rank, next(rank));
      arriving_[static_cast<std::size_t>(next(rank))] = shard;
      arrived_[static_cast<std::size_t>(rank)].reset();
    }
    for (int rank = 0; rank < p_; ++rank) {
      // What is at home stays; a rank's next gradient is another one.
      auto& arrived = arrived_[static_cast<std::size_t>(rank)];
      if (arrived) keep(rank, turn);
      arrived = std::exchange(arriving_[static_cast<std::size_t>(rank)], std::nullopt);
    }
  }

  [[nodiscard]] bool is_home(int shard, int rank) const {
    return owner_of(shard, p_) == rank && contributions_[static_cast<std::size_t>(shard)] == plan_.rounds * p_;
  }

  /// A complete gradient that arrived becomes the home's own; one whose last contribution is the home's own is already.
  void keep(int rank, int turn) {
    const int shard = *arrived_[static_cast<std::size_t>(rank)];
    const bool own = turn < plan_.turns && contributes_here(rank, turn, shard);
    if (!own) rows_.put(rank, Add{.group = group_of_stage(layout_, shard)});
  }
  [[nodiscard]] bool contributes_here(int rank, int turn, int shard) const {
    const auto work =
        plan_.backward_ops == RingPlan::Backward::kSplit ? plan_.weight(rank, turn) : plan_.backward(rank, turn);
    return work && work->shard == shard;
  }

  [[nodiscard]] bool on_the_way() const {
    for (int rank = 0; rank < p_; ++rank) {
      const auto shard = arrived_[static_cast<std::size_t>(rank)];
      if (shard && !is_home(*shard, rank)) return true;
    }
    return false;
  }
  void take_home(int rank) {
    if (p_ > 1 && arrived_[static_cast<std::size_t>(rank)]) keep(rank, plan_.turns);
  }

  void finish(int rank, int turn) {
    if (const auto work = plan_.forward(rank, turn)) rows_.put(rank, forward(work->shard, work->microbatch));
    rows_.wait_sends(rank);
    if (p_ == 1) return;
    // The flows start with what a rank owns, or got in the swap; only what came is freed.
    const int ahead = forward_shard(p_, rank, turn);
    if (forward_flows(turn) && (turn > 0 || owner_of(ahead, p_) != rank)) rows_.put(rank, Free{.value = weight(ahead)});
    if (backward_flows(turn) && turn > p_) rows_.put(rank, Free{.value = weight(backward_shard(p_, rank, turn))});
  }

  const RingPlan& plan_;
  const Layout& layout_;
  int p_;
  WeightRows rows_;
  std::vector<std::optional<int>> arrived_;   ///< per rank: the gradient it has in this turn
  std::vector<std::optional<int>> arriving_;  ///< and will have in the next
  std::vector<int> contributions_;            ///< per shard
  std::vector<int> hop_order_;                ///< even ranks first: neighbours do not all send at once
};

}  // namespace

std::optional<RingWork> interleaved_forward(const RingPlan& plan, int rank, int turn) {
  const int p = plan.ranks;
  const int u = turn - rank;
  if (u < 0 || u >= plan.rounds * p) return {};
  return RingWork{.shard = u % p, .microbatch = u / p * p + rank};
}

std::optional<RingWork> interleaved_backward(const RingPlan& plan, int rank, int turn) {
  const int p = plan.ranks;
  const int u = turn - rank - p;
  if (u < 0 || u >= plan.rounds * p) return {};
  return RingWork{.shard = p - 1 - u % p, .microbatch = u / p * p + rank};
}

Result<> check_ring(std::string_view name, const ScheduleShape& shape) {
  PLAIT_TRY_VOID(check_rounds(name, shape));
  if (shape.groups)
    return make_error(ErrorCode::kInvalidArgument, "schedule.flag",
                      "{}: has one ring, got --groups {}; leave it out, or use tawpipe", name, *shape.groups);
  if (shape.prefetch)
    return make_error(ErrorCode::kInvalidArgument, "schedule.flag",
                      "{}: weights come a turn ahead, got --prefetch {}; leave it out, or use tawpipe or fsdp", name,
                      *shape.prefetch);
  return {};
}

Expectation expect_ring(const RingPlan& plan, int peak_units) {
  return Expectation{.peak_activation_units = std::vector<int>(static_cast<std::size_t>(plan.ranks), peak_units),
                     .sends = count_ring_sends(plan)};
}

Result<Schedule> write_ring(std::string_view name, const ScheduleShape& shape, const RingPlan& plan) {
  PLAIT_TRY(Layout layout, sharded_by_owner(name, shape, [&](int shard) { return owner_of(shard, shape.ranks); }));
  std::vector<Row> rows = RingWriter(plan, layout).write();
  return Schedule{.layout = std::move(layout), .rows = std::move(rows)};
}

std::int64_t count_ring_sends(const RingPlan& plan) {
  const int p = plan.ranks;
  if (p == 1) return 0;
  // A rank of the swap stays where 2 r = 1 (mod P), which odd P have once.
  const std::int64_t swap = p - p % 2;
  const std::int64_t weights = std::int64_t{p} * (plan.forward_turns - 1 + plan.turns - 1 - p);
  // D_j hops every turn from its first contribution until it is at home.
  std::int64_t gradients = 0;
  for (int shard = 0; shard < p; ++shard) {
    std::optional<int> first;
    int last = 0;
    int last_rank = 0;
    for (int turn = 0; turn < plan.turns; ++turn) {
      for (int rank = 0; rank < p; ++rank) {
        const auto work =
            plan.backward_ops == RingPlan::Backward::kSplit ? plan.weight(rank, turn) : plan.backward(rank, turn);
        if (!work || work->shard != shard) continue;
        first = first.value_or(turn);
        last = turn;
        last_rank = rank;
      }
    }
    gradients += last - *first + ((owner_of(shard, p) - last_rank) % p + p) % p;
  }
  return swap + weights + gradients;
}

}  // namespace plait
