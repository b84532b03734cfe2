#include "plait/verify/notation.h"
#include "plait/verify/row_tracer.h"

namespace plait::verifying {

MessageId RowTracer::next_message_out(RankId peer, ValueKind kind) {
  const std::uint32_t lane = out_lane_[lane_slot(peer, kind)];
  return messages_.out[lane].begin + out_next_[lane - messages_.out_begin[rank_]]++;
}

MessageId RowTracer::next_message_in(RankId peer, ValueKind kind) {
  const std::uint32_t lane = in_lane_[lane_slot(peer, kind)];
  const std::uint32_t index = in_next_[lane - messages_.in_begin[rank_]]++;
  const std::vector<MessageId>& remapped = messages_.remapped[lane];
  return remapped.empty() ? messages_.out[messages_.out_of_in[lane]].begin + index : remapped[index];
}

void RowTracer::run(const Send& send) {
  const MessageId message = next_message_out(send.peer, send.value.kind());
  const Cell cell = space_.cell(send.value);
  const bool met = !messages_.is_unmatched(message);
  if (at_ < batch_end_) trace_.batch_of_send[message] = static_cast<std::uint32_t>(trace_.batches.size());
  switch (send.value.kind()) {
    case ValueKind::kWeight: send_weight(send); break;
    case ValueKind::kWeightGrad: send_gradient(send, message); break;
    case ValueKind::kStash:
    case ValueKind::kWeightStash: add_live(-1); [[fallthrough]];
    default: read(cell);
  }
  if (met) emit(EventKind::kSend, message);
  if (unwaited_[cell] == 0) {
    unwaited_[cell] = message + 1;
    ++num_unwaited_;
  } else {
    more_unwaited_.emplace(cell, message);
  }
}

void RowTracer::run(const Recv& recv) {
  const MessageId message = next_message_in(recv.peer, recv.value.kind());
  const Cell cell = space_.cell(recv.value);
  const bool met = message != kNoMessage;
  if (met && at_ < batch_end_) trace_.batch_of_receive[message] = static_cast<std::uint32_t>(trace_.batches.size());
  if (met) emit(EventKind::kPost, message);
  if (recv.value.kind() == ValueKind::kWeight) {
    group(recv.value.group())
        .copies.push_back(
            WeightCopy{.arriving = met ? message : kNoMessage, .position = static_cast<std::uint32_t>(at_)});
    return;
  }
  if (recv.value.kind() == ValueKind::kWeightGrad) {
    if (met) group(recv.value.group()).received.push_back(message);
    return;
  }
  if (recv.value.kind() == ValueKind::kStash || recv.value.kind() == ValueKind::kWeightStash) add_live(1);
  std::uint32_t& state = held_[cell];
  if (state == kAbsent) {
    state = met ? message + kFirstPending : kHeld;
    ++num_held_;
    return;
  }
  const bool was_missed = state >= kFirstMissed;
  const std::size_t position = was_missed ? missed(state).position : at_;
  if (was_missed) state = kAbsent;
  if (quiet(cell)) return;
  report_.suspect(cell);
  const auto what = [&] { return describe(space_.layout(), recv.value); };
  if (was_missed)
    report_.at(Rule::kReceiveAfterUse, rank_, at_, [&] {
      return fmt::format("stands behind {} at position {}, which reads the {}; move the receive before it",
                         report_.name(rank_, position), position, what());
    });
  else
    report_.at(Rule::kHeldTwice, rank_, at_,
               [&] { return fmt::format("receives the {}, which is here already; remove it", what()); });
}

void RowTracer::run(const Batch& batch) {
  trace_.batches.push_back(
      TracedBatch{.rank = static_cast<std::uint32_t>(rank_), .position = static_cast<std::uint32_t>(at_)});
  batch_end_ = at_ + 1 + static_cast<std::size_t>(batch.count);
}

void RowTracer::run(const WaitSend& wait) {
  const Cell cell = space_.cell(wait.value);
  const std::uint32_t first = unwaited_[cell];
  if (first == 0) [[unlikely]] {
    wait_missing(wait, cell);
    return;
  }
  MessageId message = first - 1;
  const auto goes_to_peer = [&](MessageId id) { return messages_.lane_of(id).to == wait.peer.value(); };
  if (more_unwaited_.empty() || more_unwaited_.count(cell) == 0) {
    // One send under way; its lane is the wait's unless the wait names another peer.
    const std::uint32_t lane = out_lane_[lane_slot(wait.peer, wait.value.kind())];
    const bool same_lane = lane != kNoMessage && message - messages_.out[lane].begin < messages_.out[lane].count;
    if (!same_lane) [[unlikely]] {
      wait_missing(wait, cell);
      return;
    }
    unwaited_[cell] = 0;
    --num_unwaited_;
  } else {
    // Several: the oldest to this peer.
    auto [begin, end] = more_unwaited_.equal_range(cell);
    auto oldest = end;
    for (auto it = begin; it != end; ++it)
      if (goes_to_peer(it->second) && (oldest == end || it->second < oldest->second)) oldest = it;
    if (goes_to_peer(message)) {
      auto next = begin;
      for (auto it = begin; it != end; ++it)
        if (it->second < next->second) next = it;
      unwaited_[cell] = next->second + 1;
      more_unwaited_.erase(next);
    } else if (oldest != end) {
      message = oldest->second;
      more_unwaited_.erase(oldest);
    } else {
      wait_missing(wait, cell);
      return;
    }
  }
  if (!messages_.is_unmatched(message)) emit(EventKind::kAwaitPosted, message);
}

void RowTracer::wait_missing(const WaitSend& wait, Cell cell) {
  if (quiet(cell) || !wait_faults_.insert(cell).second) return;
  if (sent_before(wait))
    report_.at(Rule::kDuplicateWaitSend, rank_, at_,
               [] { return std::string("its send has been waited for already; remove one wait"); });
  else
    report_.at(Rule::kWaitWithoutSend, rank_, at_, [&] {
      return fmt::format("no send of it to rank {} stands before it; move the wait behind the send, or remove it",
                         wait.peer.value());
    });
}

bool RowTracer::sent_before(const WaitSend& wait) {
  if (scans_left_-- <= 0) return false;
  for (std::size_t at = 0; at < at_; ++at) {
    const Send* send = std::get_if<Send>(&rows_[rank_][at]);
    if (send != nullptr && send->value == wait.value && send->peer == wait.peer) return true;
  }
  return false;
}

void RowTracer::send_weight(const Send& send) {
  const GroupId id = send.value.group();
  GroupState& state = group(id);
  if (state.stepped)
    gradient_fault(Rule::kStepTooEarly, id, state, [&] {
      return fmt::format("sends the weights of group {} behind their step at position {}; move the step to the end",
                         param_group(id).name, state.stepped_at);
    });
  else if (!state.weight_ready())
    weight_fault(Rule::kSendNotHeld, id, state, [&] {
      return fmt::format("the weights of group {} are not here; send them where they are", param_group(id).name);
    });
  else
    await_weight(state);
}

void RowTracer::send_gradient(const Send& send, MessageId message) {
  const GroupId id = send.value.group();
  GroupState& state = group(id);
  if (state.reduced) {
    gradient_fault(Rule::kReduceTwice, id, state, [&] {
      return fmt::format("the gradient of group {} is reduced at position {} and then sent on; do one of the two",
                         param_group(id).name, state.reduced_at);
    });
    return;
  }
  if (state.stepped) {
    gradient_fault(Rule::kStepTooEarly, id, state, [&] {
      return fmt::format("sends the gradient of group {} behind its step at position {}; move the step to the end",
                         param_group(id).name, state.stepped_at);
    });
    return;
  }
  if (!state.holds && !state.received.empty()) {
    // A partial that only passes through.
    const MessageId passing = state.received.front();
    state.received.erase(state.received.begin());
    emit(EventKind::kAwaitArrival, passing);
    grad_action(GradAction::Kind::kTake, id, state, passing);
    state.holds = true;
  }
  if (!state.holds) {
    gradient_fault(Rule::kSendNotHeld, id, state, [&] {
      return fmt::format("this rank holds no gradient of group {}; send it behind the backwards that make it",
                         param_group(id).name);
    });
    return;
  }
  if (!state.waited) {
    gradient_fault(Rule::kGradientUnderWay, id, state, [&] {
      return fmt::format(
          "sends the gradient of group {} while its reduction at position {} is under way; wait for it first",
          param_group(id).name, state.reduced_at);
    });
    return;
  }
  if (!state.received.empty()) {
    gradient_fault(Rule::kMissingAdd, id, state, [&] {
      return fmt::format("a received partial gradient of group {} is not added yet; add it first",
                         param_group(id).name);
    });
    return;
  }
  state.holds = false;
  grad_action(GradAction::Kind::kGive, id, state, message);
}

}  // namespace plait::verifying
