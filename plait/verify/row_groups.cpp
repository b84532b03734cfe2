#include "plait/verify/notation.h"
#include "plait/verify/row_tracer.h"

#include <algorithm>

namespace plait::verifying {

void RowTracer::run(const Collective& collective) {
  const RunId run = collectives_.run_of_entry[rank_][num_entries_++];
  switch (collective.value.kind()) {
    case ValueKind::kWeight: enter_gather(collective, run); return;
    case ValueKind::kWeightGrad: enter_reduction(collective, run); return;
    default:
      if (run != kNoRun) emit(EventKind::kEnter, run);
      norm_run_ = run;
      enter_norm(collective);
  }
}

void RowTracer::enter_gather(const Collective& collective, RunId run) {
  const GroupId id = collective.value.group();
  const ParamGroup& param = param_group(id);
  const std::vector<RankId>& members = space_.layout().rank_sets[collective.ranks.index()];
  GroupState& state = group(id);
  if (state.stepped) {
    gradient_fault(Rule::kStepTooEarly, id, state, [&] {
      return fmt::format("gathers the weights of group {} behind their step at position {}; move the step to the end",
                         param.name, state.stepped_at);
    });
  } else if (collective.kind == CollectiveKind::kBroadcast && collective.root == here()) {
    if (!state.weight_ready())
      weight_fault(Rule::kWeightsNotHere, id, state, [&] {
        return fmt::format("the root does not hold the weights of group {}; name a root that does", param.name);
      });
    else
      await_weight(state);
  } else if (collective.kind == CollectiveKind::kAllGather &&
             (param.residency != Residency::kSharded || members != param.homes)) {
    weight_fault(Rule::kGatherMembers, id, state, [&] {
      return param.residency == Residency::kSharded
                 ? fmt::format(
                       "the shards of group {} are on its {} homes, but the set has {} members; gather over the homes",
                       param.name, param.homes.size(), members.size())
                 : fmt::format("group {} is not sharded; there is nothing to gather", param.name);
    });
  } else if (state.weight_ready()) {
    weight_fault(Rule::kHeldTwice, id, state, [&] {
      return fmt::format("the weights of group {} are here already; free them first, or remove this", param.name);
    });
  } else {
    state.copies.push_back(
        WeightCopy{.gathering = quiet(space_.weight(id)) ? kNoRun : run, .position = static_cast<std::uint32_t>(at_)});
  }
  if (run != kNoRun) emit(EventKind::kEnter, run);
}

void RowTracer::enter_reduction(const Collective& collective, RunId run) {
  const GroupId id = collective.value.group();
  const ParamGroup& param = param_group(id);
  GroupState& state = group(id);
  const bool home = state.base != GroupState::Base::kNone;
  if (state.stepped) {
    gradient_fault(Rule::kStepTooEarly, id, state, [&] {
      return fmt::format("reduces the gradient of group {} behind its step at position {}; move the step to the end",
                         param.name, state.stepped_at);
    });
  } else if (state.reduced) {
    gradient_fault(Rule::kReduceTwice, id, state, [&] {
      return fmt::format("the gradient of group {} is reduced at position {} already; remove one", param.name,
                         state.reduced_at);
    });
  } else if (!state.waited) {
    gradient_fault(Rule::kGradientUnderWay, id, state, [&] {
      return fmt::format("the reduction of group {} at position {} is still under way; wait for it first", param.name,
                         state.reduced_at);
    });
  } else if (!state.received.empty() && collective.kind == CollectiveKind::kAllReduce) {
    gradient_fault(Rule::kMissingAdd, id, state, [&] {
      return fmt::format("a received partial gradient of group {} is not added yet; add it first", param.name);
    });
  } else if (!state.holds && state.reductions > 0) {
    gradient_fault(Rule::kReduceTwice, id, state, [&] {
      return fmt::format("nothing was added to the gradient of group {} since its reduction at position {}; remove one",
                         param.name, state.reduced_at);
    });
  } else if (!home && !state.holds) {
    gradient_fault(Rule::kForeignContribution, id, state, [&] {
      return fmt::format("this rank is no home of group {} and holds no gradient of it; leave it out of the set",
                         param.name);
    });
  }
  if (norm_ != Norm::kNone) norm_is_late(id, state);
  if (!state.reduced && state.waited) {
    // An all-reduced sum is on all members and so final; a reduced one is on one of them and goes on as its partial.
    state.reduced = collective.kind == CollectiveKind::kAllReduce;
    state.waited = false;
    ++state.reductions;
    state.reduced_at = static_cast<std::uint32_t>(at_);
    state.reduction = collective.kind;
    state.run = run;
    state.keeps_sum = collective.kind != CollectiveKind::kReduce || collective.root == here();
    if (run != kNoRun) grad_action(GradAction::Kind::kReduce, id, state, run);
  }
  state.holds = false;
  if (run != kNoRun) emit(EventKind::kEnter, run);
}

void RowTracer::enter_norm(const Collective& collective) {
  const auto fault = [&](Rule rule, const auto& body) {
    if (!norm_fault_ && !quiet(space_.norm())) report_.at(rule, rank_, at_, body);
    norm_fault_ = true;
  };
  const std::vector<RankId>& members = space_.layout().rank_sets[collective.ranks.index()];
  if (norm_ != Norm::kNone) {
    fault(Rule::kReduceTwice,
          [&] { return fmt::format("the norm is taken at position {} already; remove one", norm_at_); });
  } else if (num_steps_ > 0 && !on_trial()) {
    fault(Rule::kStepBeforeNorm,
          [] { return std::string("a step stands before it, which needs the norm; move the norm before all steps"); });
  } else {
    for (const ParamGroup& param : space_.layout().groups) {
      const auto left_out = std::find_if(param.homes.begin(), param.homes.end(), [&](RankId home) {
        return !std::binary_search(members.begin(), members.end(), home);
      });
      if (left_out == param.homes.end()) continue;
      fault(Rule::kNormMembers, [&] {
        return fmt::format(
            "rank {} holds the gradient of group {} and is no member of the set; take the norm over all ranks",
            left_out->value(), param.name);
      });
      break;
    }
  }
  norm_ = Norm::kEntered;
  norm_at_ = at_;
}

void RowTracer::norm_is_late(GroupId id, const GroupState& state) {
  if (norm_fault_ || quiet(space_.norm()) || state.base == GroupState::Base::kNone || state.gradient_fault ||
      quiet(space_.weight_grad(id)))
    return;
  norm_fault_ = true;
  report_.at(Rule::kNormBeforeGradients, rank_, at_, [&] {
    return fmt::format(
        "the norm is taken before the gradient of group {} is complete; move the norm behind all reductions and their "
        "waits",
        param_group(id).name);
  });
}

void RowTracer::run(const WaitCollective& wait) {
  const auto stray = [&](Cell cell) {
    if (quiet(cell)) return false;
    report_.at(Rule::kWaitWithoutCollective, rank_, at_, [] {
      return std::string("no such collective is under way on this rank; move the wait behind it, or remove it");
    });
    return true;
  };
  if (wait.value.kind() == ValueKind::kNorm) {
    if (norm_ != Norm::kEntered) {
      if (!norm_fault_) norm_fault_ = stray(space_.norm());
      return;
    }
    norm_ = Norm::kComplete;
    if (norm_run_ != kNoRun) emit(EventKind::kAwaitRun, norm_run_);
    return;
  }
  const GroupId id = wait.value.group();
  GroupState& state = group(id);
  if (wait.value.kind() == ValueKind::kWeight) {
    const bool gathers = wait.kind == CollectiveKind::kAllGather || wait.kind == CollectiveKind::kBroadcast;
    if (gathers && !state.copies.empty())
      wait_for_copy(state.copies.front());
    else if (!(gathers && state.base == GroupState::Base::kHome) && !state.weight_fault)
      state.weight_fault = stray(space_.weight(id));
    return;
  }
  if (state.waited || state.reduction != wait.kind) {
    if (!state.gradient_fault && stray(space_.weight_grad(id))) {
      state.gradient_fault = true;
      faulty_gradients_.push_back(space_.weight_grad(id));
    }
    return;
  }
  state.waited = true;
  if (state.keeps_sum && state.reduction != CollectiveKind::kReduceScatter) state.holds = true;
  if (norm_ != Norm::kNone) norm_is_late(id, state);
  if (state.run == kNoRun) return;
  emit(EventKind::kAwaitRun, state.run);
  if (state.keeps_sum) grad_action(GradAction::Kind::kResult, id, state, state.run);
}

void RowTracer::run(const Free& free) {
  const GroupId id = free.value.group();
  GroupState& state = group(id);
  if (state.copies.empty()) {
    if (state.base == GroupState::Base::kHome)
      weight_fault(Rule::kFreeOfHome, id, state, [&] {
        return fmt::format("this rank is a home of group {}; only copies are freed", param_group(id).name);
      });
    else
      weight_fault(Rule::kWeightsNotHere, id, state, [&] {
        return fmt::format("there is no copy of group {} to free; gather it first, or remove this",
                           param_group(id).name);
      });
    return;
  }
  if (unwaited_[space_.weight(id)] != 0)
    weight_fault(Rule::kFreedBeforeSent, id, state, [&] {
      return fmt::format("a send of the weights of group {} is under way; wait for it first", param_group(id).name);
    });
  wait_for_copy(state.copies.front());
  state.copies.erase(state.copies.begin());
}

void RowTracer::run(const Add& add) {
  GroupState& state = group(add.group);
  if (norm_ != Norm::kNone) norm_is_late(add.group, state);
  if (state.received.empty()) {
    gradient_fault(Rule::kAddWithoutReceive, add.group, state, [&] {
      return fmt::format("no received partial gradient of group {} is here; move it behind the receive, or remove it",
                         param_group(add.group).name);
    });
    return;
  }
  if (state.stepped)
    gradient_fault(Rule::kStepTooEarly, add.group, state, [&] {
      return fmt::format("adds to the gradient of group {} behind its step at position {}; move the step to the end",
                         param_group(add.group).name, state.stepped_at);
    });
  else if (state.reduced)
    gradient_fault(Rule::kReduceBeforeBackward, add.group, state, [&] {
      return fmt::format("adds to the gradient of group {} behind its reduction at position {}; add first",
                         param_group(add.group).name, state.reduced_at);
    });
  else if (!state.waited)
    gradient_fault(Rule::kGradientUnderWay, add.group, state, [&] {
      return fmt::format(
          "adds to the gradient of group {} while its reduction at position {} is under way; wait for it first",
          param_group(add.group).name, state.reduced_at);
    });
  const MessageId message = state.received.front();
  state.received.erase(state.received.begin());
  state.holds = true;
  emit(EventKind::kAwaitArrival, message);
  grad_action(GradAction::Kind::kTake, add.group, state, message);
}

void RowTracer::run(const Step& step) {
  const GroupId id = step.group;
  const ParamGroup& param = param_group(id);
  GroupState& state = group(id);
  ++num_steps_;
  if (state.base == GroupState::Base::kNone) {
    gradient_fault(Rule::kStepOffHome, id, state, [&] {
      return fmt::format("this rank is no home of group {}; its first home is rank {}", param.name,
                         param.homes.front().value());
    });
    return;
  }
  if (state.stepped) {
    gradient_fault(Rule::kDuplicateStep, id, state, [&] {
      return fmt::format("group {} is stepped at position {} already; remove one", param.name, state.stepped_at);
    });
    return;
  }
  state.stepped = true;
  state.stepped_at = static_cast<std::uint32_t>(at_);
  if (!state.received.empty())
    gradient_fault(Rule::kMissingAdd, id, state, [&] {
      return fmt::format("a received partial gradient of group {} is not added; add it before the step", param.name);
    });
  else if (!state.waited)
    gradient_fault(Rule::kMissingWaitCollective, id, state, [&] {
      return fmt::format("the reduction at position {} is not waited for; add its wait before the step",
                         state.reduced_at);
    });
  else if (state.reductions == 0 && param.residency == Residency::kSharded)
    gradient_fault(Rule::kMissingReduce, id, state, [&] {
      return fmt::format(
          "the gradient of the sharded group {} is never reduced; reduce it over its homes before the step",
          param.name);
    });
  else if (state.own > 0 && state.reductions > 0 && param.residency == Residency::kSharded)
    reduced_too_early(id, state);
  if (norm_ == Norm::kEntered && !on_trial() && !norm_fault_ && !quiet(space_.norm())) {
    norm_fault_ = true;
    report_.at(Rule::kStepBeforeNorm, rank_, at_, [&] {
      return fmt::format(
          "the norm at position {} is not waited for; add its wait before the steps, or validate them behind it",
          norm_at_);
    });
  }
  grad_action(GradAction::Kind::kStep, id, state, 0);
}

void RowTracer::run(const Validate& /*of all steps before it*/) {
  if (norm_ == Norm::kEntered) {
    norm_ = Norm::kComplete;
    if (norm_run_ != kNoRun) emit(EventKind::kAwaitRun, norm_run_);
    return;
  }
  if (norm_fault_ || quiet(space_.norm())) return;
  norm_fault_ = true;
  report_.at(Rule::kWaitWithoutCollective, rank_, at_, [&] {
    return std::string(norm_ == Norm::kNone ? "no norm is under way to judge the steps by; all-reduce it before"
                                            : "the norm is waited for already; leave out that wait, or this");
  });
}

/// Contributions lie behind the last reduction where a reduction is the only way to the homes.
void RowTracer::reduced_too_early(GroupId id, GroupState& state) {
  gradient_fault(Rule::kReduceBeforeBackward, id, state, [&] {
    return fmt::format(
        "{} contributions to the gradient of group {} stand behind its last reduction at position {}; reduce behind "
        "the "
        "last backward",
        state.own, param_group(id).name, state.reduced_at);
  });
}

void RowTracer::await_weight(GroupState& state) {
  // A home reads its own, whatever copies pass by.
  if (state.base != GroupState::Base::kHome && !state.copies.empty()) wait_for_copy(state.copies.front());
}

void RowTracer::wait_for_copy(WeightCopy& copy) {
  if (copy.arriving != kNoMessage) {
    emit(EventKind::kAwaitArrival, copy.arriving);
    copy.arriving = kNoMessage;
  } else if (copy.gathering != kNoRun) {
    emit(EventKind::kAwaitRun, copy.gathering);
    copy.gathering = kNoRun;
  }
}

void RowTracer::grad_action(GradAction::Kind kind, GroupId id, GroupState& state, std::uint32_t target) {
  // Scattered sums collect in the shard; what the rank adds meanwhile is a new partial of the whole.
  const bool of_shard = param_group(id).residency == Residency::kSharded && state.reductions > 0 &&
                        state.reduction == CollectiveKind::kReduceScatter &&
                        (kind == GradAction::Kind::kStep || kind == GradAction::Kind::kResult);
  std::uint32_t& slot = of_shard ? state.shard_slot : state.slot;
  if (slot == UINT32_MAX) slot = trace_.num_slots++;
  emit(EventKind::kGrad, static_cast<std::uint32_t>(trace_.grads.size()));
  trace_.grads.push_back(GradAction{.kind = kind,
                                    .reduced = state.reductions > 0,
                                    .group = id,
                                    .slot = slot,
                                    .own = of_shard ? 0 : state.own,
                                    .id = target});
  if (!of_shard) state.own = 0;
}

}  // namespace plait::verifying
