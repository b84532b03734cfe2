#include "plait/verify/notation.h"
#include "plait/verify/row_tracer.h"

#include <algorithm>

namespace plait::verifying {

void RowTracer::run(const Op& op) {
  switch (op.kind) {
    case OpKind::kForward: forward(op); return;
    case OpKind::kBackwardInput:
      backward(op);
      write(space_.cell(ValueKind::kWeightStash, op.stage.value(), op.microbatch, op.slice));
      return;
    case OpKind::kBackward:
      backward(op);
      contribute(op);
      add_live(-1);
      return;
    case OpKind::kBackwardWeight:
      read(space_.cell(ValueKind::kWeightStash, op.stage.value(), op.microbatch, op.slice));
      contribute(op);
      add_live(-1);
      return;
    case OpKind::kRecompute:
      need_weights(op);
      peek(space_.cell(ValueKind::kStash, op.stage.value(), op.microbatch, op.slice));
      return;
  }
}

void RowTracer::forward(const Op& op) {
  need_weights(op);
  for (const EdgeId e : space_.into(op.stage))
    read(space_.cell(ValueKind::kActivation, e.value(), op.microbatch, op.slice));
  const int num_slices = space_.num_slices();
  if (num_slices > 1) {
    for (int q = 0; q < op.slice.value(); ++q)
      peek(space_.cell(ValueKind::kKv, op.stage.value(), op.microbatch, SliceId{q}));
    write(space_.cell(ValueKind::kKv, op.stage.value(), op.microbatch, op.slice));
    if (!space_.trains() && op.slice.value() == num_slices - 1)
      for (int q = 0; q < num_slices; ++q)
        read(space_.cell(ValueKind::kKv, op.stage.value(), op.microbatch, SliceId{q}));
  }
  for (const EdgeId e : space_.out_of(op.stage))
    write(space_.cell(ValueKind::kActivation, e.value(), op.microbatch, op.slice));
  if (space_.trains()) {
    write(space_.cell(ValueKind::kStash, op.stage.value(), op.microbatch, op.slice));
    add_live(1);
  }
}

void RowTracer::backward(const Op& op) {
  need_weights(op);
  for (const EdgeId e : space_.out_of(op.stage))
    read(space_.cell(ValueKind::kGradient, e.value(), op.microbatch, op.slice));
  read(space_.cell(ValueKind::kStash, op.stage.value(), op.microbatch, op.slice));
  if (space_.num_slices() > 1) {
    for (int q = 0; q < op.slice.value(); ++q)
      peek(space_.cell(ValueKind::kKv, op.stage.value(), op.microbatch, SliceId{q}));
    read(space_.cell(ValueKind::kKv, op.stage.value(), op.microbatch, op.slice));
  }
  for (const EdgeId e : space_.into(op.stage))
    write(space_.cell(ValueKind::kGradient, e.value(), op.microbatch, op.slice));
}

void RowTracer::need_weights(const Op& op) {
  for (const GroupId id : space_.layout().stages[op.stage.index()].groups) {
    GroupState& state = group(id);
    if (state.stepped) [[unlikely]] {
      gradient_fault(Rule::kStepTooEarly, id, state, [&] {
        return fmt::format(
            "stands behind the step of group {} at position {}, which changes the weights it reads; move the step to "
            "the end",
            param_group(id).name, state.stepped_at);
      });
    } else if (!state.weight_ready()) [[unlikely]] {
      const std::string others = copies_here();
      if (!others.empty() && state.base == GroupState::Base::kNone) {
        weight_fault(Rule::kWrongWeights, id, state, [&] {
          return fmt::format(
              "{}expected the weights of group {}, found copies of {}; correct the route that brings them", turn_here(),
              param_group(id).name, others);
        });
        continue;
      }
      weight_fault(Rule::kWeightsNotHere, id, state, [&] {
        std::string homes;
        for (const RankId home : param_group(id).homes)
          homes += fmt::format("{}{}", homes.empty() ? "" : ", ", home.value());
        return state.base == GroupState::Base::kShard
                   ? fmt::format(
                         "only a shard of group {} is here; gather the weights before this op and free them behind it",
                         param_group(id).name)
                   : fmt::format("the weights of group {} are on rank {}; move the op there, or bring the weights here",
                                 param_group(id).name, homes);
      });
    } else {
      await_weight(state);
    }
  }
}

/// Groups that a copy of lies here, by name.
std::string RowTracer::copies_here() const {
  std::string names;
  for (const GroupId id : touched_)
    if (!groups_[id.index()].copies.empty())
      names += fmt::format("{}{}", names.empty() ? "" : ", ", param_group(id).name);
  return names;
}

/// "turn 4: " where the row has turns.
std::string RowTracer::turn_here() const {
  const Row& row = rows_[rank_];
  const auto is_turn = [](const Instr& instr) { return std::holds_alternative<Turn>(instr); };
  if (std::none_of(row.begin(), row.end(), is_turn)) return "";
  return fmt::format("turn {}: ", std::count_if(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(at_), is_turn));
}

void RowTracer::contribute(const Op& op) {
  for (const GroupId id : space_.layout().stages[op.stage.index()].groups) {
    GroupState& state = group(id);
    if (state.stepped) [[unlikely]]
      gradient_fault(Rule::kStepTooEarly, id, state, [&] {
        return fmt::format("adds to the gradient of group {} behind its step at position {}; move the step to the end",
                           param_group(id).name, state.stepped_at);
      });
    else if (state.reduced) [[unlikely]]
      gradient_fault(Rule::kReduceBeforeBackward, id, state, [&] {
        return fmt::format(
            "adds to the gradient of group {} behind its reduction at position {}; reduce after the last backward",
            param_group(id).name, state.reduced_at);
      });
    else if (!state.waited) [[unlikely]]
      gradient_fault(Rule::kGradientUnderWay, id, state, [&] {
        return fmt::format(
            "adds to the gradient of group {} while its reduction at position {} is under way; wait for it first",
            param_group(id).name, state.reduced_at);
      });
    if (norm_ != Norm::kNone) [[unlikely]]
      norm_is_late(id, state);
    ++state.own;
    state.holds = true;
  }
}

void RowTracer::peek(Cell cell) {
  std::uint32_t& state = held_[cell];
  if (state == kHeld) return;
  if (state < kFirstPending || state >= kFirstMissed) {
    miss(cell, state);
    return;
  }
  if (!quiet(cell)) emit(EventKind::kAwaitArrival, state - kFirstPending);
  state = kHeld;
}

void RowTracer::take_pending_or_miss(Cell cell, std::uint32_t& state) {
  if (state < kFirstPending || state >= kFirstMissed) {
    miss(cell, state);
    return;
  }
  // A value with a finding blocks nobody: its reader may stand where it can only wait in vain.
  if (!quiet(cell)) emit(EventKind::kAwaitArrival, state - kFirstPending);
  state = kAbsent;
  --num_held_;
}

void RowTracer::miss(Cell cell, std::uint32_t& state) {
  if (state >= kFirstMissed || quiet(cell)) return;
  state = kFirstMissed + static_cast<std::uint32_t>(misses_.size());
  misses_.push_back(Miss{.cell = cell, .position = at_});
}

void RowTracer::write_over(Cell cell, std::uint32_t& state) {
  const bool was_missed = state >= kFirstMissed;
  const std::size_t position = was_missed ? missed(state).position : at_;
  // A missed value was asked for too early; otherwise it is here or on its way already.
  if (was_missed) state = kAbsent;
  if (quiet(cell)) return;
  report_.suspect(cell);
  const auto what = [&] { return describe(space_.layout(), space_.value(cell)); };
  if (was_missed)
    report_.at(Rule::kSendBeforeWrite, rank_, position, [&] {
      return fmt::format("the {} is written later, by {} at position {}; move the send behind it", what(),
                         report_.name(rank_, at_), at_);
    });
  else
    report_.at(Rule::kHeldTwice, rank_, position,
               [&] { return fmt::format("writes the {}, which is here already; remove the other one", what()); });
}

void RowTracer::add_live(int count) {
  live_ += count;
  if (live_ <= most_live_) return;
  most_live_ = live_;
  most_live_at_ = at_;
}

}  // namespace plait::verifying
