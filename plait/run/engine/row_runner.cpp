#include "plait/run/engine/row_runner.h"

#include "plait/run/engine/blame.h"
#include "plait/run/engine/process_group.h"
#include "plait/run/engine/step_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace plait {
namespace {

Nanos since(Clock::time_point start, Clock::time_point now) {
  return Nanos{std::chrono::duration_cast<std::chrono::nanoseconds>(now - start).count()};
}

}  // namespace

Result<> RowRunner::run() {
  run_.moved = Bytes{0};
  run_.live_stashes = 0;
  run_.peak_stashes = 0;
  run_.grad_norm = 0;
  run_.not_finite.clear();
  std::fill(run_.losses.begin(), run_.losses.end(), 0.0);
  if (run_.late) run_.late->begin_step();
  if (!worker_.device_.is_host()) run_.data = on_device(context_.data, worker_.device_.device());
  started_ = Clock::now();
  WaitState& shown = (*context_.waits)[worker_.rank_.index()];
  for (position_ = 0; position_ < row_.instrs.size(); ++position_) {
    shown.position.store(static_cast<std::int32_t>(position_), std::memory_order_relaxed);
    moved_ = Bytes{0};
    if (KernelLog* log = RecordingScope::current()) log->set_position(static_cast<int>(position_));
    bool goes_on = false;
    try {
      goes_on = std::visit([this](const auto& instr) { return execute(instr); }, row_.instrs[position_]);
    } catch (const InternalError&) {
      throw;
    } catch (const c10::Error& error) {
      goes_on = fail(ErrorCode::kTransport, "engine.op_failed", error.what_without_backtrace());
    } catch (const std::exception& error) {
      goes_on = fail(ErrorCode::kTransport, "engine.op_failed", error.what());
    }
    if (!goes_on) return failure_;
    const Clock::time_point now = Clock::now();
    run_.trace[position_] = TraceEvent{.position = static_cast<int>(position_),
                                       .start = since(context_.start, started_),
                                       .end = since(context_.start, now),
                                       .moved = moved_};
    run_.moved += moved_;
    started_ = now;
  }
  if (run_.late) {
    position_ = row_.instrs.empty() ? 0 : row_.instrs.size() - 1;
    if (!end_row()) return failure_;
  }
  shown.position.store(static_cast<std::int32_t>(row_.instrs.size()), std::memory_order_relaxed);
  return {};
}

std::string RowRunner::where(RankId rank, std::size_t position) const {
  return place_in_row(*context_.program, rank, position);
}

bool RowRunner::fail(ErrorCode code, std::string_view rule, const std::string& what) {
  failure_ = make_error(code, rule, "{}: {}", where(worker_.rank_, position_), what);
  return false;
}

template <class Wait>
bool RowRunner::await(RankId peer, Awaited awaited, const Wait& wait) {
  const Clock::time_point now = Clock::now();
  WaitState& state = (*context_.waits)[worker_.rank_.index()];
  state.transfer.store(awaited.transfer, std::memory_order_relaxed);
  state.collective.store(awaited.collective, std::memory_order_relaxed);
  state.since.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  state.peer.store(peer.value(), std::memory_order_release);
  const WaitStatus status = wait(now + context_.timeout);
  switch (status) {
    case WaitStatus::kReady: state.peer.store(kAbsent, std::memory_order_relaxed); return true;
    case WaitStatus::kTimedOut: failure_ = timed_out(); return false;
    case WaitStatus::kStopped:
      return fail(ErrorCode::kInterrupted, "engine.stopped", "stopped because another rank failed");
  }
  return false;
}

bool RowRunner::await_collective(CollectiveId collective) {
  return await(transport_.awaited(collective, worker_.rank_), {.collective = collective},
               [&](Clock::time_point deadline) { return transport_.finish(collective, worker_.rank_, deadline); });
}

Error RowRunner::timed_out() const {
  const WaitTable& waits = *context_.waits;
  StepView view{.program = context_.program,
                .bound = context_.bound,
                .waits = &waits,
                .step = waits[worker_.rank_.index()].step.load(std::memory_order_relaxed)};
  ProcessGroup* processes = context_.processes;
  if (processes != nullptr) view.silent = ranks_of(processes->hear_all(), static_cast<int>(waits.size()));
  const auto own = wait_of(view, worker_.rank_);
  PLAIT_CHECK(own, "rank {} does not wait", worker_.rank_.value());
  const Wait wait = last_wait(view, *own);
  if (view.is_silent(wait.peer)) {
    processes->give_up(process_of_rank(wait.peer, processes->size(), static_cast<int>(waits.size())));
    if (const auto failure = processes->failure()) return *failure;
  }
  return make_error(
      ErrorCode::kTimeout, "engine.timeout", "{}: rank {} has been silent for {:.3f} s (limit {:.3f} s), at {}; {}",
      where(wait.rank, wait.position), wait.peer.value(), std::chrono::duration<double>(wait.waited).count(),
      std::chrono::duration<double>(context_.timeout).count(), place_of(view, wait.peer),
      wait.is_met ? fmt::format("it did send, so the message was lost on its way, or rank {} hangs", wait.rank.value())
                  : "see why it hangs, or allow more time");
}

bool RowRunner::await_message(TransferId transfer, Message& message) {
  const Transfer& route = transport_.routes().transfers[static_cast<std::size_t>(transfer)];
  return await(route.source, {.transfer = transfer},
               [&](Clock::time_point deadline) { return transport_.receive(transfer, message, deadline); });
}

bool RowRunner::receive(TransferId transfer, Message& message) {
  if (!await_message(transfer, message)) return false;
  charge_to(message, worker_.account_);
  return true;
}

bool RowRunner::take_payload(const Source& source, const std::vector<std::int64_t>& widths, const SliceData& data,
                             Payload& payload) {
  if (source.slot == kAbsent) return true;
  if (source.transfer == kAbsent) {
    payload = std::move(run_.payloads[static_cast<std::size_t>(source.slot)]);
    return true;
  }
  Message message;
  if (!receive(source.transfer, message)) return false;
  const Transfer& route = transport_.routes().transfers[static_cast<std::size_t>(source.transfer)];
  const std::string wrong = check_payload(message, route.value, widths, data.tokens.size(0), data.tokens.size(1),
                                          scalar_type(worker_.parameters_.type()));
  if (!wrong.empty())
    return fail(ErrorCode::kTransport, "engine.message", fmt::format("from rank {}: {}", route.source.value(), wrong));
  payload = std::move(message.tensors);
  return true;
}

bool RowRunner::take_stash(const Source& source, Stash& stash) {
  if (source.transfer == kAbsent) {
    stash = std::move(run_.stashes[static_cast<std::size_t>(source.slot)]);
    return true;
  }
  Message message;
  if (!receive(source.transfer, message)) return false;
  const std::string wrong =
      check_name(message, transport_.routes().transfers[static_cast<std::size_t>(source.transfer)].value);
  if (!wrong.empty()) return fail(ErrorCode::kTransport, "engine.message", wrong);
  stash.parts = unflatten(std::move(message));
  return true;
}

bool RowRunner::take_weight_stash(const Source& source, WeightStash& weight_stash) {
  if (source.transfer == kAbsent) {
    weight_stash = std::move(run_.weight_stashes[static_cast<std::size_t>(source.slot)]);
    return true;
  }
  Message message;
  if (!receive(source.transfer, message)) return false;
  const std::string wrong =
      check_name(message, transport_.routes().transfers[static_cast<std::size_t>(source.transfer)].value);
  if (!wrong.empty()) return fail(ErrorCode::kTransport, "engine.message", wrong);
  weight_stash.parts = unflatten(std::move(message));
  return true;
}

bool RowRunner::execute(const BoundOp& op) {
  const SliceData& data = data_of(op);
  switch (op.kind) {
    case OpKind::kForward: return forward(op, data);
    case OpKind::kBackward:
    case OpKind::kBackwardInput: return backward(op, data);
    case OpKind::kBackwardWeight: {
      WeightStash weight_stash;
      if (!take_weight_stash(op.weight_stash, weight_stash)) return false;
      if (!begin_contributions(op.stage)) return false;
      compute_begins();
      worker_.kernels_[static_cast<std::size_t>(op.stage)]->backward_weight(std::move(weight_stash));
      --run_.live_stashes;
      return true;
    }
    case OpKind::kRecompute: return recompute(op, data);
  }
  PLAIT_CHECK(false, "op kind {}", static_cast<int>(op.kind));
}

bool RowRunner::forward(const BoundOp& op, const SliceData& data) {
  StageKernels& kernels = *worker_.kernels_[static_cast<std::size_t>(op.stage)];
  Payload input;
  if (!take_input(op, kernels.input_widths(), data, input)) return false;
  if (!read_weights(op.weights)) return false;
  Stash* stash = nullptr;
  if (op.stash.slot != kAbsent) {
    stash = &run_.stashes[static_cast<std::size_t>(op.stash.slot)];
    run_.peak_stashes = std::max(run_.peak_stashes, ++run_.live_stashes);
  }
  KvCache* cache = op.cache == kAbsent ? nullptr : &run_.caches[static_cast<std::size_t>(op.cache)];
  compute_begins();
  ForwardResult result = kernels.forward(data, std::move(input), stash, cache, op.rule);
  put_output(op, std::move(result.output));
  note_loss(op, result.loss);
  if (op.cache_use == BoundOp::CacheUse::kEnds) *cache = KvCache{};
  return true;
}

void RowRunner::note_loss(const BoundOp& op, const at::Tensor& loss) {
  if (!loss.defined()) return;
  if (run_.late) {
    run_.late->losses.select(0, op.data).copy_(loss);
    return;
  }
  run_.losses[static_cast<std::size_t>(op.data)] = loss.is_cpu() ? *loss.const_data_ptr<double>() : loss.item<double>();
}

bool RowRunner::recompute(const BoundOp& op, const SliceData& data) {
  if (!read_weights(op.weights)) return false;
  Stash stash;
  if (!take_stash(op.stash, stash)) return false;
  KvCache* cache = op.cache == kAbsent ? nullptr : &run_.caches[static_cast<std::size_t>(op.cache)];
  compute_begins();
  run_.stashes[static_cast<std::size_t>(op.stash.slot)] =
      worker_.kernels_[static_cast<std::size_t>(op.stage)]->recompute(data, std::move(stash), cache,
                                                                      static_cast<int>(op.slice), op.rule);
  return true;
}

bool RowRunner::backward(const BoundOp& op, const SliceData& data) {
  StageKernels& kernels = *worker_.kernels_[static_cast<std::size_t>(op.stage)];
  Payload output_grad;
  if (!take_input(op, kernels.output_widths(), data, output_grad)) return false;
  if (!read_weights(op.weights)) return false;
  if (op.kind == OpKind::kBackward && !begin_contributions(op.stage)) return false;
  Stash stash;
  if (!take_stash(op.stash, stash)) return false;
  KvCache* cache = op.cache == kAbsent ? nullptr : &run_.caches[static_cast<std::size_t>(op.cache)];
  const int slice_idx = static_cast<int>(op.slice);
  compute_begins();
  BackwardResult result;
  if (op.kind == OpKind::kBackward) {
    result = kernels.backward(data, std::move(output_grad), std::move(stash), cache, slice_idx);
    --run_.live_stashes;
  } else {
    WeightStash* weight_stash = &run_.weight_stashes[static_cast<std::size_t>(op.weight_stash.slot)];
    result = kernels.backward_input(data, std::move(output_grad), std::move(stash), weight_stash, cache, slice_idx);
  }
  put_output(op, std::move(result.input_grad));
  note_loss(op, result.loss);
  if (op.cache_use == BoundOp::CacheUse::kEnds) *cache = KvCache{};
  return true;
}

void RowRunner::hand_over(TransferId transfer, Message&& message) {
  if (message.value.is_edge())
    share_storage(message, in_flight_account());
  else
    own_storage(message);
  charge_to(message, in_flight_account());
  moved_ = message_bytes(message);
  transport_.send(transfer, std::move(message));
}

bool RowRunner::execute(const BoundSend& send) {
  const Value value = transport_.routes().transfers[static_cast<std::size_t>(send.transfer)].value;
  const auto slot = static_cast<std::size_t>(send.source.slot);
  switch (send.kind) {
    case ValueKind::kStash: {
      Stash stash;
      if (!take_stash(send.source, stash)) return false;
      hand_over(send.transfer, flatten(value, std::move(stash.parts)));
      --run_.live_stashes;
      return true;
    }
    case ValueKind::kWeightStash: {
      WeightStash weight_stash;
      if (!take_weight_stash(send.source, weight_stash)) return false;
      hand_over(send.transfer, flatten(value, std::move(weight_stash.parts)));
      --run_.live_stashes;
      return true;
    }
    case ValueKind::kWeight: return send_weights(send);
    case ValueKind::kWeightGrad: return send_gradient(send);
    default: break;
  }
  Message message{.value = value, .tensors = {}, .counts = {}};
  if (send.source.transfer == kAbsent) {
    message.tensors = std::move(run_.payloads[slot]);
  } else {
    if (!receive(send.source.transfer, message)) return false;
    const std::string wrong = check_name(message, value);
    if (!wrong.empty()) return fail(ErrorCode::kTransport, "engine.message", wrong);
  }
  hand_over(send.transfer, std::move(message));
  return true;
}

bool RowRunner::execute(const BoundReceive& receive) {
  if (receive.kind == ValueKind::kStash || receive.kind == ValueKind::kWeightStash)
    run_.peak_stashes = std::max(run_.peak_stashes, ++run_.live_stashes);
  // A buffer for weights or their gradient is taken from here on.
  if (receive.group != kAbsent) {
    const RankGroup& group = worker_.groups_[static_cast<std::size_t>(receive.group)];
    worker_.account_.charge(receive.kind == ValueKind::kWeight ? group.weight_bytes() : group.gradient_bytes());
  }
  transport_.post_receive(receive.transfer);
  return true;
}

bool RowRunner::execute(const BoundWaitSent& wait) {
  const RankId peer = transport_.routes().transfers[static_cast<std::size_t>(wait.transfer)].destination;
  return await(peer, {}, [&](Clock::time_point deadline) { return transport_.wait_sent(wait.transfer, deadline); });
}

}  // namespace plait
