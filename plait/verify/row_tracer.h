#pragma once

#include "plait/verify/row_state.h"
#include "plait/verify/trace.h"

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace plait::verifying {

/// Walks one row after the other. Tables are shared by all rows; a row leaves them as it found them.
class RowTracer {
 public:
  RowTracer(const Space& space, const std::vector<Row>& rows, const Structure& structure, const Messages& messages,
            const Collectives& collectives, Report& report, Trace& trace);
  /// \param limit  most stashes the rank may hold
  void trace(std::size_t rank, std::optional<int> limit);
  /// Gradients with findings, to be made suspects before the replay.
  [[nodiscard]] const std::vector<Cell>& faulty_gradients() const { return faulty_gradients_; }

 private:
  // States of a linear value in `held_`.
  static constexpr std::uint32_t kAbsent = 0;
  static constexpr std::uint32_t kHeld = 1;
  static constexpr std::uint32_t kFirstPending = 2;        ///< from here on: posted receive of message state - this
  static constexpr std::uint32_t kFirstMissed = 1u << 30;  ///< from here on: read in vain, misses_[state - this]

  struct Miss {
    Cell cell = 0;
    std::size_t position = 0;
  };
  enum class Norm : std::uint8_t { kNone, kEntered, kComplete };

  // Ops (row_ops.cpp).
  void run(const Op& op);
  void forward(const Op& op);
  void backward(const Op& op);
  void need_weights(const Op& op);
  void contribute(const Op& op);
  [[nodiscard]] std::string copies_here() const;
  [[nodiscard]] std::string turn_here() const;
  void read(Cell cell) {
    std::uint32_t& state = held_[cell];
    if (state == kHeld) {
      state = kAbsent;
      --num_held_;
    } else {
      take_pending_or_miss(cell, state);
    }
  }
  void peek(Cell cell);
  void write(Cell cell) {
    std::uint32_t& state = held_[cell];
    if (state == kAbsent) {
      state = kHeld;
      ++num_held_;
    } else {
      write_over(cell, state);
    }
  }
  void take_pending_or_miss(Cell cell, std::uint32_t& state);
  void miss(Cell cell, std::uint32_t& state);
  void write_over(Cell cell, std::uint32_t& state);
  [[nodiscard]] const Miss& missed(std::uint32_t state) const { return misses_[state - kFirstMissed]; }
  void add_live(int count);

  // Transfers (row_transfers.cpp).
  void run(const Send& send);
  void run(const Recv& recv);
  void run(const WaitSend& wait);
  void run(const Batch& batch);
  MessageId next_message_out(RankId peer, ValueKind kind);
  MessageId next_message_in(RankId peer, ValueKind kind);
  void send_weight(const Send& send);
  void send_gradient(const Send& send, MessageId message);
  void wait_missing(const WaitSend& wait, Cell cell);
  [[nodiscard]] bool sent_before(const WaitSend& wait);

  // Groups (row_groups.cpp).
  GroupState& group(GroupId id) {
    GroupState& state = groups_[id.index()];
    if (!state.touched) {
      state.touched = true;
      touched_.push_back(id);
    }
    return state;
  }
  void run(const Collective& collective);
  void run(const WaitCollective& wait);
  void run(const Free& free);
  void run(const Add& add);
  void run(const Step& step);
  void run(const Validate& validate);
  /// Steps that stand here are validated further on.
  [[nodiscard]] bool on_trial() const { return structure_.validated_at[rank_] > static_cast<std::int32_t>(at_); }
  void enter_gather(const Collective& collective, RunId run);
  void enter_reduction(const Collective& collective, RunId run);
  void enter_norm(const Collective& collective);
  void reduced_too_early(GroupId id, GroupState& state);
  void await_weight(GroupState& state);
  void wait_for_copy(WeightCopy& copy);
  void grad_action(GradAction::Kind kind, GroupId id, GroupState& state, std::uint32_t target);
  void norm_is_late(GroupId id, const GroupState& state);

  // The row's ends (row_tracer.cpp).
  void begin_row(std::size_t rank);
  void end_row(std::optional<int> limit);
  void report_misses();
  void report_unwaited_sends();
  void end_group(GroupId id, GroupState& state);
  void clear_cells();

  [[nodiscard]] bool quiet(Cell cell) const { return report_.is_suspect(cell); }
  void emit(EventKind kind, std::uint32_t id) { trace_.events.push_back(Event::of(kind, id, at_)); }
  [[nodiscard]] const ParamGroup& param_group(GroupId id) const { return space_.layout().groups[id.index()]; }
  [[nodiscard]] RankId here() const { return RankId{static_cast<std::int32_t>(rank_)}; }

  /// A finding about a group's weight, unless one is known.
  template <class Body>
  void weight_fault(Rule rule, GroupId id, GroupState& state, const Body& body) {
    if (state.weight_fault || quiet(space_.weight(id))) return;
    state.weight_fault = true;
    report_.at(rule, rank_, at_, body);
  }
  /// A finding about a group's gradient, unless one is known. The replay then does not judge its sum.
  template <class Body>
  void gradient_fault(Rule rule, GroupId id, GroupState& state, const Body& body) {
    const bool known = state.gradient_fault || quiet(space_.weight_grad(id));
    state.gradient_fault = true;
    if (known) return;
    faulty_gradients_.push_back(space_.weight_grad(id));
    report_.at(rule, rank_, at_, body);
  }

  const Space& space_;
  const std::vector<Row>& rows_;
  const Structure& structure_;
  const Messages& messages_;
  const Collectives& collectives_;
  Report& report_;
  Trace& trace_;

  // Over all cells and groups; all zero between rows.
  std::vector<std::uint32_t> held_;
  std::vector<std::uint32_t> unwaited_;  ///< message + 1 of a send whose wait is still to come
  std::vector<GroupState> groups_;
  std::vector<std::uint32_t> out_lane_;  ///< by lane_slot
  std::vector<std::uint32_t> in_lane_;
  std::vector<std::uint32_t> out_next_;  ///< messages taken, per lane of the row
  std::vector<std::uint32_t> in_next_;

  // Of the row.
  std::size_t rank_ = 0;
  std::size_t at_ = 0;
  std::size_t batch_end_ = 0;  ///< positions before it are in the latest batch
  std::size_t num_held_ = 0;
  std::size_t num_unwaited_ = 0;
  std::size_t num_entries_ = 0;
  std::size_t num_steps_ = 0;
  int live_ = 0;
  int most_live_ = 0;
  std::size_t most_live_at_ = 0;
  Norm norm_ = Norm::kNone;
  RunId norm_run_ = kNoRun;
  bool norm_fault_ = false;
  std::size_t norm_at_ = 0;
  std::vector<GroupId> touched_;
  std::vector<Miss> misses_;
  std::unordered_multimap<Cell, MessageId> more_unwaited_;  ///< further sends of the same value before the first wait
  std::unordered_set<Cell> wait_faults_;
  int scans_left_ = 1000;  ///< bounds the walks back that only word a finding better

  std::vector<Cell> faulty_gradients_;
};

}  // namespace plait::verifying
