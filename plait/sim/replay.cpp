#include "plait/sim/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace plait::sim_detail {
namespace {

/// Values that a program may have, all kinds together: 48 bytes each.
constexpr std::size_t kMostCells = std::size_t{1} << 31;

std::string describe(const Instr& instr) {
  if (const Op* op = std::get_if<Op>(&instr))
    return fmt::format("op {}{}{}{}", op->stage.value(), to_string(op->kind), op->microbatch.value(),
                       op->slice.value() == 0 ? "" : fmt::format(".{}", op->slice.value()));
  return std::string(kind_name(instr));
}

bool produces_gradient(OpKind kind) {
  return kind == OpKind::kBackwardInput || kind == OpKind::kBackward;
}

}  // namespace

Replay::Replay(const Program& program, const CostModel& costs, const SimOptions& options)
    : program_(program),
      layout_(program.layout),
      costs_(costs),
      options_(options),
      num_ranks_(program.rows.size()),
      num_microbatches_(static_cast<std::size_t>(program.layout.num_microbatches)),
      num_slices_(static_cast<std::size_t>(program.layout.num_slices)),
      ordered_(costs.cluster.has_value() && options.transfers != TransferMode::kFree &&
               options.transfers != TransferMode::kFixed),
      timeline_(options.detail == Detail::kTimeline) {}

Result<> Replay::check_limits() const {
  if (program_.rows.size() != static_cast<std::size_t>(layout_.num_ranks) || layout_.num_ranks < 1)
    return make_error(ErrorCode::kInvalidSchedule, "sim.unverified", "{} rows for {} ranks", program_.rows.size(),
                      layout_.num_ranks);
  if (layout_.num_microbatches < 1 || layout_.num_slices < 1)
    return make_error(ErrorCode::kInvalidSchedule, "sim.unverified",
                      "{} micro-batches of {} slices; at least 1 of each is needed", layout_.num_microbatches,
                      layout_.num_slices);
  const double cells = (2.0 * static_cast<double>(layout_.edges.size()) + static_cast<double>(layout_.stages.size())) *
                       layout_.num_microbatches * layout_.num_slices;
  if (cells > static_cast<double>(kMostCells))
    return make_error(ErrorCode::kInvalidArgument, "sim.too_large",
                      "the step has {:.0f} values; at most {} can be simulated", cells, kMostCells);
  if (options_.buffers < 1)
    return make_error(ErrorCode::kInvalidArgument, "sim.buffers", "{} buffers per channel; at least 1 is needed",
                      options_.buffers);
  constexpr double kMostFactor = 1e6;
  if (options_.pair_factor && !(*options_.pair_factor >= 0 && *options_.pair_factor <= kMostFactor))
    return make_error(ErrorCode::kInvalidArgument, "sim.pair_factor",
                      "pair factor {}; expected a number from 0 to {:.0f}", *options_.pair_factor, kMostFactor);

  // A step lasts at most as long as everything in it one after the other.
  std::int64_t longest = costs_.latency;
  std::int64_t most_bytes = costs_.norm_bytes.value();
  for (const OpCost& op : costs_.ops) longest = std::max(longest, op.ticks);
  for (const GroupCost& group : costs_.groups) {
    longest = std::max({longest, group.step_ticks, group.add_ticks});
    most_bytes = std::max({most_bytes, group.weight.value(), group.gradient.value(), group.undo.value()});
  }
  for (const auto* table : {&costs_.edge_bytes, &costs_.stash_bytes, &costs_.weight_stash_bytes, &costs_.kv_bytes})
    for (const Bytes bytes : *table) most_bytes = std::max(most_bytes, bytes.value());
  long double slowest = static_cast<long double>(longest) * std::max(1.0, options_.pair_factor.value_or(1));
  if (costs_.cluster) {
    for (const Link* link : {&costs_.cluster->inner, &costs_.cluster->outer}) {
      const long double wire = static_cast<long double>(most_bytes) *
                               static_cast<long double>(costs_.cluster->ticks_per_second) /
                               static_cast<long double>(link->bytes_per_second);
      slowest = std::max(slowest, (wire + static_cast<long double>(link->latency_ticks) + 1) * 2 *
                                      static_cast<long double>(num_ranks_));
    }
  }
  std::size_t instrs = 1;
  for (const Row& row : program_.rows) instrs += row.size();
  constexpr auto kMost = static_cast<long double>(std::numeric_limits<std::int64_t>::max());
  if (slowest * static_cast<long double>(instrs) > kMost)
    return make_error(ErrorCode::kInvalidArgument, "sim.overflow",
                      "{} instructions of up to {:.3g} ticks may last longer than 2^63 ticks; use a coarser unit",
                      instrs, static_cast<double>(slowest));
  long double bytes = static_cast<long double>(costs_.fixed_bytes.value());
  for (const OpCost& op : costs_.ops) most_bytes = std::max({most_bytes, op.alloc, op.transient, op.freed});
  for (const GroupCost& group : costs_.groups) most_bytes = std::max(most_bytes, group.optimizer.value());
  bytes += static_cast<long double>(most_bytes + costs_.block_bytes.value()) *
           static_cast<long double>(instrs + 3 * layout_.groups.size());
  if (bytes > kMost || costs_.block_bytes.value() < 1)
    return make_error(ErrorCode::kInvalidArgument, "sim.overflow",
                      "values of up to {} bytes in blocks of {} may sum up to more than 2^63 bytes", most_bytes,
                      costs_.block_bytes.value());
  if (options_.turns == Turns::kLockStep) {
    std::optional<std::ptrdiff_t> expected;
    for (std::size_t rank = 0; rank < program_.rows.size(); ++rank) {
      const Row& row = program_.rows[rank];
      const auto turns =
          std::count_if(row.begin(), row.end(), [](const Instr& i) { return std::holds_alternative<Turn>(i); });
      if (expected && *expected != turns)
        return make_error(ErrorCode::kInvalidSchedule, "sim.turns",
                          "rank {} has {} turns, rank 0 has {}; lock step needs the same on all", rank, turns,
                          *expected);
      expected = turns;
    }
  }
  return {};
}

Result<SimResult> Replay::run() {
  PLAIT_TRY_VOID(check_limits());
  lanes_.resize(num_ranks_);
  for (std::size_t rank = 0; rank < num_ranks_; ++rank) {
    const Row& row = program_.rows[rank];
    const auto found =
        std::find_if(row.begin(), row.end(), [](const Instr& i) { return std::holds_alternative<Validate>(i); });
    if (found != row.end()) lanes_[rank].trial_end = static_cast<std::size_t>(found - row.begin());
  }
  into_.resize(layout_.stages.size());
  out_of_.resize(layout_.stages.size());
  for (std::size_t e = 0; e < layout_.edges.size(); ++e) {
    into_[layout_.edges[e].consumer.index()].push_back(static_cast<std::int32_t>(e));
    out_of_[layout_.edges[e].producer.index()].push_back(static_cast<std::int32_t>(e));
  }
  activations_.resize(layout_.edges.size() * num_microbatches_ * num_slices_);
  if (layout_.mode == Mode::kTrain) gradients_.resize(activations_.size());
  ops_.resize(layout_.stages.size() * num_microbatches_ * num_slices_);
  groups_.resize(layout_.groups.size() * num_ranks_);
  set_free_.resize(layout_.rank_sets.size());
  place_static_bytes();
  needs_weights_.resize(layout_.stages.size() * num_ranks_, 1);
  for (std::size_t s = 0; s < layout_.stages.size(); ++s) {
    const Stage& stage = layout_.stages[s];
    for (std::size_t rank = 0; rank < num_ranks_; ++rank) {
      const bool here = std::all_of(stage.groups.begin(), stage.groups.end(),
                                    [&](GroupId g) { return groups_[g.index() * num_ranks_ + rank].present; });
      needs_weights_[s * num_ranks_ + rank] = here ? 0 : 1;
    }
  }
  if (options_.transfers == TransferMode::kBounded) channels_.resize(num_ranks_ * num_ranks_);
  if (ordered_) {
    const auto num_nodes = num_ranks_ * static_cast<std::size_t>(costs_.cluster->outer_ports);
    inner_out_.resize(num_ranks_);
    inner_in_.resize(num_ranks_);
    outer_out_.resize(num_nodes);
    outer_in_.resize(num_nodes);
  }
  if (options_.transfers == TransferMode::kBounded || options_.transfers == TransferMode::kRendezvous ||
      options_.transfers == TransferMode::kBlocking)
    make_batches();
  if (timeline_) {
    times_.resize(num_ranks_);
    held_.resize(num_ranks_);
    for (std::size_t rank = 0; rank < num_ranks_; ++rank) {
      times_[rank].resize(program_.rows[rank].size());
      held_[rank].resize(program_.rows[rank].size());
    }
  }
  for (std::size_t rank = 0; rank < num_ranks_; ++rank) push(static_cast<std::int32_t>(rank), 0);
  PLAIT_TRY_VOID(drain());
  for (std::size_t rank = 0; rank < num_ranks_; ++rank)
    if (lanes_[rank].next < program_.rows[rank].size()) return stuck();
  return figures();
}

void Replay::push(std::int32_t rank, std::int64_t key) {
  Lane& lane = lanes_[static_cast<std::size_t>(rank)];
  if (lane.queued) return;
  lane.queued = true;
  if (ordered_) {
    heap_.emplace(std::max(key, lane.clock), rank);
  } else {
    ready_.push_back(rank);
  }
}

void Replay::wake(std::int32_t& waiter, std::int64_t key) {
  if (waiter == kNobody) return;
  push(waiter, key);
  waiter = kNobody;
}

void Replay::wait_on(std::int32_t& waiter, std::size_t rank) {
  const auto here = static_cast<std::int32_t>(rank);
  if (waiter == kNobody || waiter == here) {
    waiter = here;
  } else {
    shared_waiters_.push_back(here);
  }
}

Result<> Replay::drain() {
  std::uint64_t events_at_retry = ~std::uint64_t{0};
  for (;;) {
    std::size_t rank = 0;
    if (ordered_ && !heap_.empty()) {
      rank = static_cast<std::size_t>(heap_.top().second);
      heap_.pop();
    } else if (ready_head_ < ready_.size()) {
      rank = static_cast<std::size_t>(ready_[ready_head_++]);
      if (ready_head_ == ready_.size()) {
        ready_.clear();
        ready_head_ = 0;
      }
    } else {
      if (shared_waiters_.empty() || events_ == events_at_retry) return {};
      events_at_retry = events_;
      const auto again = std::move(shared_waiters_);
      shared_waiters_.clear();
      for (const std::int32_t waiter : again) push(waiter, 0);
      continue;
    }
    lanes_[rank].queued = false;
    if (advance(rank) == Progress::kFailed) return *error_;
  }
}

Replay::Progress Replay::advance(std::size_t rank) {
  const Row& row = program_.rows[rank];
  Lane& lane = lanes_[rank];
  while (lane.next < row.size()) {
    // With shared links a rank that runs ahead of another, one that it has just woken too, would take the wire before it.
    if (ordered_ && !heap_.empty() && lane.clock > heap_.top().first) {
      push(static_cast<std::int32_t>(rank), lane.clock);
      return Progress::kDone;
    }
    const std::int64_t start = lane.clock;
    const std::size_t position = lane.next;
    const Progress progress = step(rank, row[position]);
    if (progress != Progress::kDone) return progress;
    if (timeline_) {
      if (!std::holds_alternative<Op>(row[position]) && !std::holds_alternative<Pair>(row[position]))
        times_[rank][position] = InstrTime{.start = start, .end = lane.clock};
      held_[rank][position] = Held{.bytes = lane.bytes, .stashes = lane.stashes};
    }
    ++events_;
    ++lane.next;
  }
  return Progress::kDone;
}

Replay::Progress Replay::step(std::size_t rank, const Instr& instr) {
  static_assert(std::variant_size_v<Instr> == 14, "a new instruction needs a time");
  switch (instr.index()) {
    case 0:
      return lanes_[rank].next < lanes_[rank].pair_done_until ? Progress::kDone
                                                              : run_op(rank, *std::get_if<Op>(&instr));
    case 1: return options_.pair_factor ? run_pair(rank) : Progress::kDone;
    case 2: return Progress::kDone;
    case 3: return options_.turns == Turns::kLockStep ? end_turn(rank) : Progress::kDone;
    case 4: return send(rank, *std::get_if<Send>(&instr));
    case 5:
      return lanes_[rank].next < lanes_[rank].pair_done_until ? Progress::kDone
                                                              : recv(rank, *std::get_if<Recv>(&instr));
    case 6: return wait_send(rank, *std::get_if<WaitSend>(&instr));
    case 7: return enter(rank, *std::get_if<Collective>(&instr));
    case 8: return wait_collective(rank, *std::get_if<WaitCollective>(&instr));
    case 9: return free_weight(rank, *std::get_if<Free>(&instr));
    case 10: return add(rank, *std::get_if<Add>(&instr));
    case 11: return optimizer_step(rank, *std::get_if<Step>(&instr));
    case 13: return validate(rank);
    default: return Progress::kDone;  // a batch: its transfers know
  }
}

Replay::Progress Replay::inputs_of(std::size_t rank, const Op& op, std::int64_t& ready, std::int64_t& left) {
  const auto here = static_cast<std::int32_t>(rank);
  if (op.stage.index() >= layout_.stages.size() || op.microbatch.index() >= num_microbatches_ ||
      op.slice.index() >= num_slices_)
    return fail(rank, "sim.unverified", "stage, micro-batch or slice is out of range");
  const auto await = [&](std::int64_t ready_at, std::int64_t left_at) {
    if (ready_at > ready) {
      ready = ready_at;
      left = left_at;
    }
  };
  const auto await_edge = [&](EdgeCell& cell) {
    if (cell.holder != here) {
      wait_on(cell.waiter, rank);
      return false;
    }
    await(cell.message.arrived, cell.message.left);
    return true;
  };
  // Slices: keys and values of the one before, gradients of the one behind.
  const auto await_slice = [&](int slice, OpStage stage) {
    OpCell& cell = ops_[edge_cell(op.stage.index(), op.microbatch, SliceId{slice})];
    if (cell.stage < stage) {
      wait_on(cell.waiter, rank);
      return false;
    }
    await(cell.ready, cell.left);
    return true;
  };
  OpCell& own = ops_[op_cell(op)];
  if (needs_weights_[op.stage.index() * num_ranks_ + rank] != 0) {
    if (const Progress progress = weights_of(rank, op, ready, left); progress != Progress::kDone) return progress;
  }
  switch (op.kind) {
    case OpKind::kForward:
      if (own.stage != OpStage::kNothing) return fail(rank, "sim.unverified", "is run twice");
      for (const std::int32_t e : into_[op.stage.index()])
        if (!await_edge(activations_[edge_cell(static_cast<std::size_t>(e), op.microbatch, op.slice)]))
          return Progress::kBlocked;
      if (op.slice.value() > 0 && !await_slice(op.slice.value() - 1, OpStage::kForwarded)) return Progress::kBlocked;
      return Progress::kDone;
    case OpKind::kBackwardInput:
    case OpKind::kBackward:
      if (layout_.mode == Mode::kForward) return fail(rank, "sim.unverified", "stands in a forward-only program");
      if (own.stage > OpStage::kForwarded) return fail(rank, "sim.unverified", "is run twice");
      if (own.stage == OpStage::kNothing || own.holder != here) {
        wait_on(own.waiter, rank);
        return Progress::kBlocked;
      }
      await(own.ready, own.left);
      for (const std::int32_t e : out_of_[op.stage.index()])
        if (!await_edge(gradients_[edge_cell(static_cast<std::size_t>(e), op.microbatch, op.slice)]))
          return Progress::kBlocked;
      if (op.slice.value() + 1 < layout_.num_slices && !await_slice(op.slice.value() + 1, OpStage::kBackwarded))
        return Progress::kBlocked;
      return Progress::kDone;
    case OpKind::kBackwardWeight:
      if (own.stage == OpStage::kWeighted) return fail(rank, "sim.unverified", "is run twice");
      if (own.stage != OpStage::kBackwarded || own.holder != here) {
        wait_on(own.waiter, rank);
        return Progress::kBlocked;
      }
      await(own.ready, own.left);
      return Progress::kDone;
    case OpKind::kRecompute:
      if (own.stage != OpStage::kForwarded || own.holder != here) {
        wait_on(own.waiter, rank);
        return Progress::kBlocked;
      }
      await(own.ready, own.left);
      // Right before its backward it is part of it: a checkpointed backward starts with its gradient.
      if (serves_next(rank, op))
        for (const std::int32_t e : out_of_[op.stage.index()])
          if (!await_edge(gradients_[edge_cell(static_cast<std::size_t>(e), op.microbatch, op.slice)]))
            return Progress::kBlocked;
      return Progress::kDone;
  }
  return Progress::kDone;
}

/// Whether the op behind a recompute in its row is its own backward.
bool Replay::serves_next(std::size_t rank, const Op& recompute) const {
  const Row& row = program_.rows[rank];
  for (std::size_t at = lanes_[rank].next + 1; at < row.size(); ++at) {
    const Op* op = std::get_if<Op>(&row[at]);
    if (op == nullptr) continue;
    return produces_gradient(op->kind) && op->stage == recompute.stage && op->microbatch == recompute.microbatch &&
           op->slice == recompute.slice;
  }
  return false;
}

void Replay::finish_op(std::size_t rank, const Op& op, std::int64_t end) {
  const auto here = static_cast<std::int32_t>(rank);
  Lane& lane = lanes_[rank];
  OpCell& own = ops_[op_cell(op)];
  const auto make = [&](EdgeCell& cell) {
    cell.holder = here;
    cell.message.arrived = end;
    cell.message.left = end;
    wake(cell.waiter, end);
  };
  const auto consume = [&](EdgeCell& cell) { cell.holder = kNobody; };
  const auto edge = [&](std::int32_t e) { return edge_cell(static_cast<std::size_t>(e), op.microbatch, op.slice); };
  if (op.kind == OpKind::kForward) {
    for (const std::int32_t e : into_[op.stage.index()]) consume(activations_[edge(e)]);
    for (const std::int32_t e : out_of_[op.stage.index()]) make(activations_[edge(e)]);
    own.stage = OpStage::kForwarded;
    if (layout_.mode == Mode::kTrain) lane.peak_stashes = std::max(lane.peak_stashes, ++lane.stashes);
  } else if (produces_gradient(op.kind)) {
    for (const std::int32_t e : out_of_[op.stage.index()]) consume(gradients_[edge(e)]);
    for (const std::int32_t e : into_[op.stage.index()]) make(gradients_[edge(e)]);
    own.stage = op.kind == OpKind::kBackward ? OpStage::kWeighted : OpStage::kBackwarded;
  } else if (op.kind == OpKind::kBackwardWeight) {
    own.stage = OpStage::kWeighted;
  }
  const bool adds_gradient = op.kind == OpKind::kBackward || op.kind == OpKind::kBackwardWeight;
  if (adds_gradient) {
    --lane.stashes;
    for (const GroupId g : layout_.stages[op.stage.index()].groups) {
      GroupCell& cell = groups_[g.index() * num_ranks_ + rank];
      if (cell.partial) continue;
      cell.partial = true;
      hold_bytes(rank, buffer_bytes(Value::weight_grad(g)));
    }
  }
  own.holder = here;
  own.ready = end;
  own.left = end;
  wake(own.waiter, end);
}

void Replay::account_op(std::size_t rank, const Op& op, std::int64_t start, std::int64_t end) {
  Lane& lane = lanes_[rank];
  if (!lane.started) {
    lane.started = true;
    lane.first_start = start;
  }
  lane.busy += end - start;
  lane.op_busy += end - start;
  lane.exposed += lane.exposed_since_op;
  lane.exposed_since_op = 0;
  lane.clock = end;
  lane.last_end = end;
  lane.last_busy_end = end;
  const OpCost& cost = costs_.op(op.kind, op.stage, op.slice);
  if (costs_.messages == MessageBytes::kInFlight) lane.bytes += taken_over(op);
  lane.bytes += cost.alloc;
  if (lane.bytes + cost.transient > lane.peak_bytes) {
    lane.peak_bytes = lane.bytes + cost.transient;
    lane.peak_position = static_cast<int>(lane.next);
  }
  lane.bytes -= cost.freed;
}

/// Bytes that an op takes from messages that were in flight.
std::int64_t Replay::taken_over(const Op& op) const {
  std::int64_t bytes = 0;
  const auto take = [&](const std::vector<std::int32_t>& edges, const std::vector<EdgeCell>& cells) {
    for (const std::int32_t e : edges) {
      const std::size_t edge = static_cast<std::size_t>(e);
      if (cells[edge_cell(edge, op.microbatch, op.slice)].message.from == kNobody) continue;
      bytes += costs_.edge_bytes[costs_.cell(edge, op.slice)].value();
    }
  };
  if (op.kind == OpKind::kForward) take(into_[op.stage.index()], activations_);
  if (produces_gradient(op.kind)) take(out_of_[op.stage.index()], gradients_);
  return bytes;
}

Replay::Progress Replay::run_op(std::size_t rank, const Op& op) {
  Lane& lane = lanes_[rank];
  std::int64_t ready = lane.clock;
  std::int64_t left = lane.clock;
  if (const Progress progress = inputs_of(rank, op, ready, left); progress != Progress::kDone) return progress;
  if (ready > lane.clock) lane.exposed_since_op += ready - std::max(lane.clock, left);
  const std::int64_t end = ready + costs_.op(op.kind, op.stage, op.slice).ticks;
  account_op(rank, op, ready, end);
  if (timeline_) times_[rank][lane.next] = InstrTime{.start = ready, .end = end};
  finish_op(rank, op, end);
  return Progress::kDone;
}

Replay::Progress Replay::run_pair(std::size_t rank) {
  const Row& row = program_.rows[rank];
  Lane& lane = lanes_[rank];
  std::size_t second = lane.next + 2;
  while (second < row.size() &&
         (std::holds_alternative<Send>(row[second]) || std::holds_alternative<Recv>(row[second])))
    ++second;
  const Op* a = lane.next + 1 < row.size() ? std::get_if<Op>(&row[lane.next + 1]) : nullptr;
  const Op* b = second < row.size() ? std::get_if<Op>(&row[second]) : nullptr;
  if (a == nullptr || b == nullptr) return fail(rank, "sim.unverified", "is not followed by two ops");
  // Receives between the two are posted before the unit starts; sends leave when it has ended.
  const std::size_t at = lane.next;
  if (lane.pair_done_until <= at) {
    for (std::size_t i = at + 2; i < second; ++i) {
      const Recv* posted = std::get_if<Recv>(&row[i]);
      if (posted == nullptr) continue;
      lane.next = i;
      const Progress progress = recv(rank, *posted);
      lane.next = at;
      if (progress != Progress::kDone) return progress;
    }
    lane.pair_done_until = second + 1;
  }
  std::int64_t ready = lane.clock;
  std::int64_t left = lane.clock;
  for (const Op* op : {a, b})
    if (const Progress progress = inputs_of(rank, *op, ready, left); progress != Progress::kDone) return progress;
  if (ready > lane.clock) lane.exposed_since_op += ready - std::max(lane.clock, left);
  const auto scaled = [&](std::int64_t ticks) {
    return static_cast<std::int64_t>(std::llround(*options_.pair_factor * static_cast<double>(ticks)));
  };
  const std::int64_t first_ticks = costs_.op(a->kind, a->stage, a->slice).ticks;
  const std::int64_t middle = ready + scaled(first_ticks);
  const std::int64_t end = ready + scaled(first_ticks + costs_.op(b->kind, b->stage, b->slice).ticks);
  account_op(rank, *a, ready, middle);
  account_op(rank, *b, middle, end);
  if (timeline_) {
    times_[rank][at] = InstrTime{.start = ready, .end = end};
    times_[rank][at + 1] = InstrTime{.start = ready, .end = middle};
    times_[rank][second] = InstrTime{.start = middle, .end = end};
  }
  finish_op(rank, *a, end);
  finish_op(rank, *b, end);
  return Progress::kDone;
}

Replay::Progress Replay::fail(std::size_t rank, std::string_view rule, std::string_view text) {
  const std::size_t at = lanes_[rank].next;
  error_ = make_error(ErrorCode::kInvalidSchedule, rule, "rank {}, position {}, {}: {}; check the program first", rank,
                      at, describe(program_.rows[rank][at]), text);
  return Progress::kFailed;
}

Error Replay::stuck() const {
  constexpr int kMostListed = 8;
  std::string list;
  int listed = 0;
  for (std::size_t rank = 0; rank < num_ranks_; ++rank) {
    const std::size_t at = lanes_[rank].next;
    if (at >= program_.rows[rank].size()) continue;
    if (++listed > kMostListed) {
      list += "; ...";
      break;
    }
    list += fmt::format("{}rank {}, position {}, {}", list.empty() ? "" : "; ", rank, at,
                        describe(program_.rows[rank][at]));
  }
  return make_error(ErrorCode::kInvalidSchedule, "sim.deadlock",
                    "nothing can go on; waiting: {}; check the program first", list);
}

SimResult Replay::figures() {
  SimResult result{.ticks_per_unit = costs_.ticks_per_unit};
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  std::int64_t last = 0;
  std::int64_t longest_span = 0;
  std::int64_t longest_with_steps = 0;
  bool all_validate = true;
  double busy = 0;
  double op_busy = 0;
  for (const Lane& lane : lanes_) {
    const std::int64_t span = lane.last_end - lane.first_start;
    result.ranks.push_back(RankFigures{.busy = lane.busy,
                                       .idle = span - lane.op_busy,
                                       .exposed_transfer = lane.exposed,
                                       .first_start = lane.first_start,
                                       .last_end = lane.last_end,
                                       .peak_stashes = lane.peak_stashes,
                                       .peak_bytes = lane.peak_bytes,
                                       .peak_position = lane.peak_position});
    if (lane.started) {
      first = std::min(first, lane.first_start);
      longest_with_steps = std::max(longest_with_steps, lane.last_busy_end - lane.first_start);
    }
    all_validate = all_validate && lane.trial_end > 0;
    last = std::max({last, lane.last_busy_end, lane.validated});
    longest_span = std::max(longest_span, span);
    result.bubble_max = std::max(result.bubble_max, span - lane.op_busy);
    busy += static_cast<double>(lane.busy) / static_cast<double>(num_ranks_);
    op_busy += static_cast<double>(lane.op_busy) / static_cast<double>(num_ranks_);
    transfers_.exposed += lane.exposed;
  }
  result.makespan = std::max<std::int64_t>(0, last - std::min(first, last));
  result.period = all_validate ? longest_with_steps : result.makespan;
  if (result.makespan > 0)
    result.bubble_ratio = (static_cast<double>(result.makespan) - busy) / static_cast<double>(result.makespan);
  if (longest_span > 0)
    result.bubble_c = (static_cast<double>(longest_span) - op_busy) / static_cast<double>(longest_span);
  result.transfers = transfers_;
  std::int64_t before = 0;
  for (const CollectiveState& turn : turns_) {
    result.turns.push_back(turn.start - before);
    before = turn.start;
  }
  result.times = std::move(times_);
  result.held = std::move(held_);
  take_known_memory(result);
  result.messages = std::move(messages_);
  return result;
}

}  // namespace plait::sim_detail
