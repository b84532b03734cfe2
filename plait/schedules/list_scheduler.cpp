#include "plait/schedules/list_scheduler.h"

#include "plait/schedules/common.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <set>
#include <utility>

namespace plait {
namespace {

constexpr Ticks kNever = std::numeric_limits<Ticks>::max();

class ListScheduler {
 public:
  explicit ListScheduler(const ListSpec& spec)
      : spec_(spec),
        ranks_(static_cast<std::size_t>(spec.num_ranks)),
        forward_end_(cells(), kNever),
        backward_end_(cells(), kNever),
        next_forward_(static_cast<std::size_t>(spec.num_stages), 0),
        next_backward_(static_cast<std::size_t>(spec.num_stages), 0) {
    for (int stage = 0; stage < spec.num_stages; ++stage) ranks_[rank_of(stage)].stages.push_back(stage);
  }

  std::optional<std::vector<Row>> run() {
    for (const RankState& rank : ranks_)
      if (spec_.memory_limit && *spec_.memory_limit < static_cast<int>(rank.stages.size())) return std::nullopt;
    moments_.insert(0);
    while (!moments_.empty()) {
      const Ticks now = *moments_.begin();
      moments_.erase(moments_.begin());
      // An op of no duration may enable another at the same moment.
      for (bool progress = true; progress;) {
        progress = false;
        for (std::size_t r = 0; r < ranks_.size(); ++r)
          if (ranks_[r].free_at <= now && take_one(r, now)) progress = true;
      }
    }
    std::vector<Row> rows;
    for (RankState& rank : ranks_) rows.push_back(std::move(rank.row));
    return rows;
  }

 private:
  struct RankState {
    std::vector<int> stages;  ///< ascending
    Ticks free_at = 0;
    int live = 0;
    std::deque<Op> pending_weights;
    Row row;
  };

  [[nodiscard]] std::size_t cells() const {
    return static_cast<std::size_t>(spec_.num_stages) * static_cast<std::size_t>(spec_.num_microbatches);
  }
  [[nodiscard]] std::size_t cell(int stage, int microbatch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(spec_.num_microbatches) +
           static_cast<std::size_t>(microbatch);
  }
  [[nodiscard]] std::size_t rank_of(int stage) const { return static_cast<std::size_t>(spec_.home(stage)); }
  [[nodiscard]] Ticks arrival(const std::vector<Ticks>& ends, int from_stage, int microbatch, std::size_t rank) const {
    const Ticks end = ends[cell(from_stage, microbatch)];
    return end == kNever || rank_of(from_stage) == rank ? end : end + spec_.times.transfer;
  }

  /// When the next forward or backward of a stage could start; kNever if that is not known yet or none is left.
  [[nodiscard]] Ticks forward_ready(int stage) const {
    const int m = next_forward_[static_cast<std::size_t>(stage)];
    if (m >= spec_.num_microbatches) return kNever;
    return stage == 0 ? 0 : arrival(forward_end_, stage - 1, m, rank_of(stage));
  }
  [[nodiscard]] Ticks backward_ready(int stage) const {
    const int m = next_backward_[static_cast<std::size_t>(stage)];
    if (m >= spec_.num_microbatches) return kNever;
    if (stage + 1 == spec_.num_stages) return forward_end_[cell(stage, m)];
    return arrival(backward_end_, stage + 1, m, rank_of(stage));
  }

  [[nodiscard]] bool limits_allow(const RankState& rank, std::size_t chunk) const {
    const int reserved = static_cast<int>(rank.stages.size() - chunk);
    if (spec_.memory_limit && rank.live + reserved > *spec_.memory_limit) return false;
    return rank.stages[chunk] > 0 || !spec_.in_flight_limit ||
           next_forward_[0] - next_backward_[0] < *spec_.in_flight_limit;
  }

  void start(std::size_t r, const Op& op, Ticks now, Ticks duration) {
    RankState& rank = ranks_[r];
    rank.free_at = now + duration;
    rank.row.push_back(op);
    moments_.insert(rank.free_at);
    if (spec_.times.transfer > 0) moments_.insert(rank.free_at + spec_.times.transfer);
  }

  bool take_backward(std::size_t r, Ticks now) {
    RankState& rank = ranks_[r];
    int best = -1;
    for (const int stage : rank.stages) {
      if (backward_ready(stage) > now) continue;
      if (best < 0 || next_backward_[static_cast<std::size_t>(stage)] <= next_backward_[static_cast<std::size_t>(best)])
        best = stage;
    }
    if (best < 0) return false;
    const bool split = spec_.backward == ListSpec::Backward::kSplit;
    const int m = next_backward_[static_cast<std::size_t>(best)]++;
    start(r, split ? backward_input(best, m) : backward(best, m), now,
          spec_.times.backward + (split ? 0 : spec_.times.weight));
    backward_end_[cell(best, m)] = rank.free_at;
    if (split)
      rank.pending_weights.push_back(backward_weight(best, m));
    else
      --rank.live;
    return true;
  }

  bool take_forward(std::size_t r, Ticks now) {
    RankState& rank = ranks_[r];
    for (std::size_t chunk = rank.stages.size(); chunk-- > 0;) {
      const int stage = rank.stages[chunk];
      if (forward_ready(stage) > now || !limits_allow(rank, chunk)) continue;
      const int m = next_forward_[static_cast<std::size_t>(stage)]++;
      start(r, forward(stage, m), now, spec_.times.forward);
      forward_end_[cell(stage, m)] = rank.free_at;
      ++rank.live;
      return true;
    }
    return false;
  }

  bool take_weight(std::size_t r, Ticks now) {
    RankState& rank = ranks_[r];
    if (rank.pending_weights.empty()) return false;
    if (spec_.fill == ListSpec::Fill::kIfFits) {
      Ticks next_arrival = kNever;
      for (std::size_t chunk = 0; chunk < rank.stages.size(); ++chunk) {
        next_arrival = std::min(next_arrival, backward_ready(rank.stages[chunk]));
        // What the limits hold back does not come before a weight gradient has made room.
        if (limits_allow(rank, chunk)) next_arrival = std::min(next_arrival, forward_ready(rank.stages[chunk]));
      }
      if (next_arrival < now + spec_.times.weight) return false;
    }
    start(r, rank.pending_weights.front(), now, spec_.times.weight);
    rank.pending_weights.pop_front();
    --rank.live;
    return true;
  }

  bool take_one(std::size_t r, Ticks now) {
    return take_backward(r, now) || take_forward(r, now) || take_weight(r, now);
  }

  const ListSpec& spec_;
  std::vector<RankState> ranks_;
  std::vector<Ticks> forward_end_;  ///< per stage and micro-batch
  std::vector<Ticks> backward_end_;
  std::vector<int> next_forward_;  ///< per stage
  std::vector<int> next_backward_;
  std::set<Ticks> moments_;  ///< at which something ends or arrives
};

}  // namespace

Ticks longest_span(const std::vector<Row>& rows, const ListSpec& spec) {
  const auto cells = static_cast<std::size_t>(spec.num_stages) * static_cast<std::size_t>(spec.num_microbatches);
  std::vector<Ticks> forward_end(cells, kNever);
  std::vector<Ticks> backward_end(cells, kNever);
  std::vector<Ticks> clock(rows.size(), 0);
  std::vector<std::optional<Ticks>> start(rows.size());
  std::vector<std::size_t> next(rows.size(), 0);
  const auto cell = [&](int stage, MicrobatchId m) {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(spec.num_microbatches) + m.index();
  };
  /// When the op's input is there; kNever if it is not made yet.
  const auto ready = [&](const Op& op, std::size_t rank) -> Ticks {
    const int stage = op.stage.value();
    if (op.kind == OpKind::kBackwardWeight || (op.kind == OpKind::kForward && stage == 0)) return 0;
    if (op.kind != OpKind::kForward && stage + 1 == spec.num_stages) return forward_end[cell(stage, op.microbatch)];
    const int from = op.kind == OpKind::kForward ? stage - 1 : stage + 1;
    const Ticks end = (op.kind == OpKind::kForward ? forward_end : backward_end)[cell(from, op.microbatch)];
    return end == kNever || static_cast<std::size_t>(spec.home(from)) == rank ? end : end + spec.times.transfer;
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t rank = 0; rank < rows.size(); ++rank) {
      for (; next[rank] < rows[rank].size(); ++next[rank]) {
        const Op& op = std::get<Op>(rows[rank][next[rank]]);
        const Ticks arrival = ready(op, rank);
        if (arrival == kNever) break;
        const Ticks begin = std::max(clock[rank], arrival);
        if (!start[rank]) start[rank] = begin;
        switch (op.kind) {
          case OpKind::kForward:
            forward_end[cell(op.stage.value(), op.microbatch)] = clock[rank] = begin + spec.times.forward;
            break;
          case OpKind::kBackwardInput:
            backward_end[cell(op.stage.value(), op.microbatch)] = clock[rank] = begin + spec.times.backward;
            break;
          case OpKind::kBackward:
            backward_end[cell(op.stage.value(), op.microbatch)] = clock[rank] =
                begin + spec.times.backward + spec.times.weight;
            break;
          case OpKind::kBackwardWeight: clock[rank] = begin + spec.times.weight; break;
          case OpKind::kRecompute: break;
        }
        progress = true;
      }
    }
  }
  Ticks longest = 0;
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    PLAIT_CHECK(next[rank] == rows[rank].size(), "rank {} is stuck", rank);
    longest = std::max(longest, clock[rank] - start[rank].value_or(0));
  }
  return longest;
}

std::optional<std::vector<Row>> list_schedule(const ListSpec& spec) {
  return ListScheduler(spec).run();
}

}  // namespace plait
