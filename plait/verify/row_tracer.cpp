#include "plait/verify/row_tracer.h"

#include "plait/base/check.h"
#include "plait/verify/notation.h"

#include <algorithm>

namespace plait::verifying {

RowTracer::RowTracer(const Space& space, const std::vector<Row>& rows, const Structure& structure,
                     const Messages& messages, const Collectives& collectives, Report& report, Trace& trace)
    : space_(space),
      rows_(rows),
      structure_(structure),
      messages_(messages),
      collectives_(collectives),
      report_(report),
      trace_(trace),
      held_(space.num_cells()),
      unwaited_(space.num_cells()),
      groups_(space.layout().groups.size()),
      out_lane_(rows.size() * 8, kNoMessage),
      in_lane_(rows.size() * 8, kNoMessage) {
  PLAIT_CHECK(messages.sends.size() + kFirstPending < Event::kMostIds && structure.num_collectives < Event::kMostIds,
              "{} messages", messages.sends.size());
}

void RowTracer::trace(std::size_t rank, std::optional<int> limit) {
  begin_row(rank);
  const Row& row = rows_[rank];
  for (at_ = 0; at_ < row.size(); ++at_) {
    const Instr& instr = row[at_];
    if (const Op* op = std::get_if<Op>(&instr)) {
      run(*op);
    } else if (const Send* send = std::get_if<Send>(&instr)) {
      run(*send);
    } else if (const Recv* recv = std::get_if<Recv>(&instr)) {
      run(*recv);
    } else if (const WaitSend* wait = std::get_if<WaitSend>(&instr)) {
      run(*wait);
    } else if (const Collective* collective = std::get_if<Collective>(&instr)) {
      run(*collective);
    } else if (const WaitCollective* wait_collective = std::get_if<WaitCollective>(&instr)) {
      run(*wait_collective);
    } else if (const Free* free = std::get_if<Free>(&instr)) {
      run(*free);
    } else if (const Add* add = std::get_if<Add>(&instr)) {
      run(*add);
    } else if (const Step* step = std::get_if<Step>(&instr)) {
      run(*step);
    } else if (const Validate* validate = std::get_if<Validate>(&instr)) {
      run(*validate);
    } else if (const Batch* batch = std::get_if<Batch>(&instr)) {
      run(*batch);
    }
  }
  end_row(limit);
}

void RowTracer::begin_row(std::size_t rank) {
  rank_ = rank;
  batch_end_ = 0;
  num_held_ = num_unwaited_ = num_entries_ = num_steps_ = 0;
  live_ = most_live_ = 0;
  norm_ = Norm::kNone;
  norm_fault_ = false;
  for (const GroupId id : space_.groups_on(here()))
    group(id).base =
        param_group(id).residency == Residency::kResident ? GroupState::Base::kHome : GroupState::Base::kShard;
  out_next_.clear();
  in_next_.clear();
  for (std::uint32_t lane = messages_.out_begin[rank]; lane < messages_.out_begin[rank + 1]; ++lane) {
    out_lane_[lane_slot(RankId{messages_.out[lane].to}, messages_.out[lane].kind)] = lane;
    out_next_.push_back(0);
  }
  for (std::uint32_t lane = messages_.in_begin[rank]; lane < messages_.in_begin[rank + 1]; ++lane) {
    in_lane_[lane_slot(RankId{messages_.in[lane].from}, messages_.in[lane].kind)] = lane;
    in_next_.push_back(0);
  }
}

void RowTracer::end_row(std::optional<int> limit) {
  report_misses();
  if (num_held_ != 0) clear_cells();
  if (num_unwaited_ != 0) report_unwaited_sends();
  for (const GroupId id : touched_) {
    GroupState& state = groups_[id.index()];
    end_group(id, state);
    state = GroupState{};
  }
  touched_.clear();
  wait_faults_.clear();
  if (norm_ == Norm::kEntered && !norm_fault_ && !quiet(space_.norm()))
    report_.at(Rule::kMissingWaitCollective, rank_, norm_at_,
               [] { return std::string("the norm is never waited for; add the wait behind it"); });
  if (limit && most_live_ > *limit)
    report_.at(Rule::kActivationLimit, rank_, most_live_at_, [&] {
      return fmt::format("{} stashes are held here, the limit is {}; release some earlier, or raise the limit",
                         most_live_, *limit);
    });
}

void RowTracer::report_misses() {
  const Layout& layout = space_.layout();
  for (const Miss& m : misses_) {
    if (held_[m.cell] < kFirstMissed) continue;  // came later, and was reported then
    held_[m.cell] = kAbsent;
    if (quiet(m.cell)) continue;
    report_.suspect(m.cell);
    const Value value = space_.value(m.cell);
    const std::string what = describe(layout, value);
    if (std::holds_alternative<Send>(rows_[rank_][m.position])) {
      report_.at(Rule::kSendNotHeld, rank_, m.position,
                 [&] { return fmt::format("this rank does not hold the {}; send it where it is", what); });
      continue;
    }
    const auto made_by = [&](const std::vector<Place>& places, StageId stage) {
      const Place& place =
          places[space_.op_index(Op{.stage = stage, .microbatch = value.microbatch(), .slice = value.slice()})];
      if (!place.known()) return std::string("nowhere");
      return fmt::format("rank {} by {}", place.rank,
                         report_.name(static_cast<std::size_t>(place.rank), static_cast<std::size_t>(place.position)));
    };
    const Places& places = structure_.places;
    switch (value.kind()) {
      case ValueKind::kActivation:
        report_.at(Rule::kMissingReceive, rank_, m.position, [&] {
          return fmt::format("the {} is not here; it is made on {}; add the send there and the receive before this op",
                             what, made_by(places.forward, layout.edges[value.edge().index()].producer));
        });
        break;
      case ValueKind::kGradient:
        report_.at(Rule::kMissingReceive, rank_, m.position, [&] {
          return fmt::format("the {} is not here; it is made on {}; add the send there and the receive before this op",
                             what, made_by(places.backward, layout.edges[value.edge().index()].consumer));
        });
        break;
      case ValueKind::kStash:
        report_.at(Rule::kStashNotHere, rank_, m.position, [&] {
          return fmt::format("the {} is not here; it is made on {}; put the backward there, or send the stash", what,
                             made_by(places.forward, value.stage()));
        });
        break;
      case ValueKind::kWeightStash:
        report_.at(Rule::kWeightStashNotHere, rank_, m.position, [&] {
          return fmt::format(
              "the {} is not here; it is made on {}; put the weight gradient there, or send the weight stash", what,
              made_by(places.backward, value.stage()));
        });
        break;
      default:
        report_.at(Rule::kKvNotHere, rank_, m.position, [&] {
          return fmt::format(
              "the {} are not here; they are made on {}; put the slices of a sequence on one rank, in order", what,
              made_by(places.forward, value.stage()));
        });
    }
  }
  misses_.clear();
}

void RowTracer::report_unwaited_sends() {
  for (std::size_t at = 0; at < rows_[rank_].size(); ++at) {
    const Send* send = std::get_if<Send>(&rows_[rank_][at]);
    if (send == nullptr) continue;
    const Cell cell = space_.cell(send->value);
    if (unwaited_[cell] == 0) continue;
    unwaited_[cell] = 0;
    if (!quiet(cell) && !wait_faults_.contains(cell))
      report_.at(Rule::kMissingWaitSend, rank_, at, [&] {
        return std::string("is never waited for; its buffer could be reused under way; add one wait behind it");
      });
  }
  more_unwaited_.clear();
}

void RowTracer::end_group(GroupId id, GroupState& state) {
  const ParamGroup& param = param_group(id);
  const bool home = state.base != GroupState::Base::kNone;
  if (!state.copies.empty() && !state.weight_fault && !quiet(space_.weight(id)))
    report_.at(Rule::kLeakedWeight, rank_, state.copies.front().position, [&] {
      return fmt::format("the copy of group {} is never freed; free it behind its last reader", param.name);
    });
  if (!space_.trains() || state.gradient_fault || quiet(space_.weight_grad(id))) return;
  const auto fault = [&](Rule rule, const auto& body) {
    faulty_gradients_.push_back(space_.weight_grad(id));
    report_.at(rule, rank_, state.reduced_at, body);
  };
  if (!state.received.empty()) {
    faulty_gradients_.push_back(space_.weight_grad(id));
    report_.overall(Rule::kMissingAdd, here(), [&] {
      return fmt::format(
          "a received partial gradient of group {} is never added; add it before it is reduced, sent or stepped",
          param.name);
    });
  } else if (!state.waited) {
    fault(Rule::kMissingWaitCollective, [] { return std::string("is never waited for; add one wait behind it"); });
  } else if (state.holds && state.reductions > 0 && !home) {
    fault(state.own > 0 ? Rule::kReduceBeforeBackward : Rule::kLeakedGradient, [&] {
      if (state.own > 0)
        return fmt::format(
            "contributions to the gradient of group {} stand behind its last reduction; reduce behind the "
            "last backward",
            param.name);
      return fmt::format("the sum of group {} ends on a rank that is no home of it; reduce to the homes only",
                         param.name);
    });
  } else if (home && !state.stepped) {
    faulty_gradients_.push_back(space_.weight_grad(id));
    report_.overall(Rule::kMissingStep, here(), [&] {
      return fmt::format("is a home of group {} and never steps it; add the step at the end of the row", param.name);
    });
  }
}

void RowTracer::clear_cells() {
  const auto clear = [&](ValueKind kind, std::int32_t subject, const Op& op) {
    held_[space_.cell(kind, subject, op.microbatch, op.slice)] = kAbsent;
  };
  for (const Instr& instr : rows_[rank_]) {
    if (const Op* op = std::get_if<Op>(&instr)) {
      for (const EdgeId e : space_.out_of(op->stage)) clear(ValueKind::kActivation, e.value(), *op);
      for (const EdgeId e : space_.into(op->stage)) clear(ValueKind::kGradient, e.value(), *op);
      clear(ValueKind::kStash, op->stage.value(), *op);
      clear(ValueKind::kWeightStash, op->stage.value(), *op);
      if (space_.num_slices() > 1) clear(ValueKind::kKv, op->stage.value(), *op);
    } else if (const Recv* recv = std::get_if<Recv>(&instr)) {
      held_[space_.cell(recv->value)] = kAbsent;
    }
  }
}

namespace {

/// A batch moves as a whole, so what it meets must be one batch of the peer, with nothing else in either.
void check_batches(const Trace& trace, const Messages& messages, Report& report) {
  if (trace.batches.empty()) return;
  std::vector<std::optional<std::uint32_t>> partner(trace.batches.size() + 1);  // batch + 1; 0: no batch
  std::vector<bool> faulty(trace.batches.size() + 1);
  const auto meet = [&](std::uint32_t batch, std::uint32_t other) {
    if (batch == 0 || faulty[batch]) return;
    if (!partner[batch]) partner[batch] = other;
    if (*partner[batch] == other && other != 0) return;
    faulty[batch] = true;
    if (other != 0 && faulty[other]) return;  // told already
    const TracedBatch& at = trace.batches[batch - 1];
    report.at(Rule::kBatch, at.rank, at.position, [&] {
      return std::string(other == 0 ? "what it posts meets a transfer that is in no batch; put both ends in one"
                                    : "what it posts meets several batches of the peer; post in one what they post");
    });
  };
  for (MessageId message = 0; message < messages.sends.size(); ++message) {
    if (messages.is_unmatched(message)) continue;
    const std::uint32_t send = trace.batch_of_send[message];
    const std::uint32_t receive = trace.batch_of_receive[message];
    meet(send, receive);
    meet(receive, send);
  }
}

}  // namespace

Trace trace_rows(const Space& space, const std::vector<Row>& rows, const Structure& structure, const Messages& messages,
                 const Collectives& collectives, const std::optional<std::vector<int>>& activation_limit,
                 Report& report) {
  Trace trace;
  trace.events.reserve(structure.num_sends + 2 * structure.num_receives + structure.num_waits +
                       3 * structure.num_collectives);
  if (structure.num_batches > 0) {
    trace.batch_of_send.resize(messages.sends.size());
    trace.batch_of_receive.resize(messages.sends.size());
  }
  RowTracer tracer(space, rows, structure, messages, collectives, report, trace);
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    trace.begin.push_back(trace.events.size());
    const bool limited = activation_limit && rank < activation_limit->size();
    tracer.trace(rank, limited ? std::optional((*activation_limit)[rank]) : std::nullopt);
  }
  trace.begin.push_back(trace.events.size());
  for (const Cell cell : tracer.faulty_gradients()) report.suspect(cell);
  check_batches(trace, messages, report);
  return trace;
}

}  // namespace plait::verifying
