// What a row does with parameter groups: weights that come and go, gradients that are summed, norms and steps.

#include "plait/base/check.h"
#include "plait/run/engine/messages.h"
#include "plait/run/engine/row_runner.h"

#include <ATen/ops/clone.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace plait {
namespace {

std::int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined()) bytes += static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

/// The root of the sum, in the order of the parameters.
double norm_of(const at::Tensor& squares) {
  const auto* square = squares.const_data_ptr<double>();
  double sum = 0;
  for (std::int64_t place = 0; place < squares.numel(); ++place) sum += square[place];
  return std::sqrt(sum);
}

double clip_factor_for(double norm, std::optional<double> clip) {
  return clip ? std::min(1.0, *clip / (norm + kTinyNorm)) : 1.0;
}

}  // namespace

/// Receives tensors of a group into the buffer that its receive took.
bool RowRunner::bring(TransferId transfer, RankGroup& group, std::vector<at::Tensor>& tensors) {
  const Transfer& route = transport_.routes().transfers[static_cast<std::size_t>(transfer)];
  Message message;
  if (!await_message(transfer, message)) return false;
  worker_.account_.release(route.value.kind() == ValueKind::kWeight ? group.weight_bytes() : group.gradient_bytes());
  charge_to(message, worker_.account_);
  const std::string wrong = group.check(message, route.value);
  if (!wrong.empty())
    return fail(ErrorCode::kTransport, "engine.message", fmt::format("from rank {}: {}", route.source.value(), wrong));
  tensors = std::move(message.tensors);
  return true;
}

bool RowRunner::read_weights(const FirstReads& reads) {
  for (std::int32_t at = reads.begin; at < reads.end; ++at) {
    const WeightArrival& arrival = row_.weights[static_cast<std::size_t>(at)];
    if (arrival.transfer == kAbsent) {
      if (!await_collective(arrival.collective)) return false;
      continue;
    }
    RankGroup& group = worker_.groups_[arrival.group.index()];
    std::vector<at::Tensor> weights;
    if (!bring(arrival.transfer, group, weights)) return false;
    // A home reads its own; a copy that passes by is only held.
    if (!group.is_whole()) group.bind_weights(weights);
  }
  return true;
}

bool RowRunner::send_weights(const BoundSend& send) {
  if (!read_weights(send.weights)) return false;
  const Value value = transport_.routes().transfers[static_cast<std::size_t>(send.transfer)].value;
  // Whoever holds the weights keeps them until it frees or steps them, so a copy travels.
  Message message{.value = value, .tensors = {}, .counts = {}};
  const AccountScope scope(in_flight_account());
  for (const at::Tensor& tensor : worker_.groups_[value.group().index()].weights())
    message.tensors.push_back(tensor.defined() ? at::clone(tensor, at::MemoryFormat::Contiguous) : at::Tensor());
  hand_over(send.transfer, std::move(message));
  return true;
}

bool RowRunner::send_gradient(const BoundSend& send) {
  if (!add_arrivals(send.arrivals)) return false;
  const Value value = transport_.routes().transfers[static_cast<std::size_t>(send.transfer)].value;
  const AccountScope scope(in_flight_account());
  hand_over(send.transfer,
            Message{.value = value, .tensors = worker_.groups_[value.group().index()].take_partial(), .counts = {}});
  return true;
}

bool RowRunner::execute(const BoundGather& gather) {
  if (!read_weights(gather.weights)) return false;
  const CollectiveRoute& route = route_of(gather.collective);
  RankGroup& group = worker_.groups_[gather.group.index()];
  const bool is_root = route.kind == CollectiveKind::kBroadcast && route.root == worker_.rank_;
  PLAIT_CHECK(is_root || !group.is_whole(), "weights come to a rank that holds them");
  if (!is_root) group.begin_gather();
  if (is_root && group.is_whole()) group.lent.push_back(gather.collective);
  transport_.enter(gather.collective, worker_.rank_, group.as_parameters(group.weights()));
  if (route.kind == CollectiveKind::kAllGather)
    for (const Parameter* parameter : group.parameters())
      moved_ += Bytes{parameter->master.numel() *
                      static_cast<std::int64_t>(c10::elementSize(scalar_type(worker_.parameters_.type())))};
  else if (is_root && route.members.size() > 1)
    moved_ = Bytes{bytes_of(group.weights())};
  return true;
}

bool RowRunner::execute(const BoundFree& free) {
  if (!read_weights(free.weights)) return false;
  RankGroup& group = worker_.groups_[free.group.index()];
  if (!group.is_whole()) group.drop_weights();
  return true;
}

/// What is summed in place is left alone until the sum is there.
bool RowRunner::begin_contributions(int stage) {
  for (const GroupId id : context_.program->layout.stages[static_cast<std::size_t>(stage)].groups) {
    RankGroup& group = worker_.groups_[id.index()];
    if (group.is_whole() && !group.reductions.empty()) {
      for (const RankGroup::Reduction& reduction : group.reductions)
        if (!await_collective(reduction.collective)) return false;
      group.reductions.clear();
    }
    group.begin_contribution();
  }
  return true;
}

bool RowRunner::add_arrivals(const Arrivals& arrivals) {
  for (std::int32_t at = arrivals.begin; at < arrivals.end; ++at) {
    const Arrival& arrival = row_.arrivals[static_cast<std::size_t>(at)];
    RankGroup& group = worker_.groups_[arrival.group.index()];
    std::vector<at::Tensor> partial;
    if (!bring(arrival.transfer, group, partial)) return false;
    group.add_partial(std::move(partial));
  }
  return true;
}

bool RowRunner::execute(const BoundReduceGrad& reduce) {
  const CollectiveRoute& route = route_of(reduce.collective);
  RankGroup& group = worker_.groups_[reduce.group.index()];
  const bool keeps = route.kind != CollectiveKind::kReduce || route.root == worker_.rank_;
  std::vector<at::Tensor> tensors;
  if (keeps) group.begin_contribution();
  if (keeps && group.is_whole()) {
    group.fold();
    tensors = group.partial();
  } else {
    // What leaves is counted where it was made until it is summed.
    tensors = group.take_partial();
  }
  if (keeps) group.reductions.push_back({.collective = reduce.collective, .result = tensors});
  if (route.members.size() > 1) moved_ = Bytes{bytes_of(tensors)};
  if (route.kind == CollectiveKind::kReduceScatter) tensors = group.as_parameters(tensors);
  transport_.enter(reduce.collective, worker_.rank_, tensors);
  return true;
}

bool RowRunner::execute(const BoundFinishGrad& finish) {
  if (!await_collective(finish.collective)) return false;
  RankGroup& group = worker_.groups_[finish.group.index()];
  const auto reduction =
      std::find_if(group.reductions.begin(), group.reductions.end(),
                   [&](const RankGroup::Reduction& open) { return open.collective == finish.collective; });
  if (reduction == group.reductions.end()) return true;
  std::vector<at::Tensor> result = std::move(reduction->result);
  group.reductions.erase(reduction);
  if (group.is_whole()) return true;  // summed in place
  if (route_of(finish.collective).kind == CollectiveKind::kReduceScatter)
    group.add_shards(group.as_parameters(result));
  else
    group.add_partial(std::move(result));
  return true;
}

bool RowRunner::execute(const BoundReduceNorm& reduce) {
  if (!add_arrivals(reduce.arrivals)) return false;
  if (run_.late) {
    give_squares_late();
    transport_.enter(reduce.collective, worker_.rank_, {&run_.squares, 1});
    if (route_of(reduce.collective).members.size() > 1)
      moved_ = Bytes{static_cast<std::int64_t>(run_.squares.nbytes())};
    return true;
  }
  // A whole parameter is counted by one rank, so that the sum over the ranks only adds zeros to it: it stays exact.
  run_.squares.zero_();
  auto* squares = run_.squares.data_ptr<double>();
  for (RankGroup& group : worker_.groups_) {
    if (group.is_whole()) group.fold();
    const KernelScope timed(KernelKind::kSquareSum);
    for (const auto& [place, parameter] : group.counted()) {
      squares[place] = square_sum(parameter->grads.front());
      if (!std::isfinite(squares[place])) run_.not_finite.push_back(place);
    }
  }
  // A loss may be infinite and its gradient finite: the norm carries the news to all ranks.
  const bool loss_is_finite =
      std::all_of(run_.losses.begin(), run_.losses.end(), [](double loss) { return std::isfinite(loss); });
  if (!loss_is_finite) squares[0] = std::numeric_limits<double>::quiet_NaN();
  const double own = norm_of(run_.squares);
  holds_back_ = !std::isfinite(own) || clip_factor_for(own, context_.clip) < 1;
  transport_.enter(reduce.collective, worker_.rank_, {&run_.squares, 1});
  if (route_of(reduce.collective).members.size() > 1) moved_ = Bytes{static_cast<std::int64_t>(run_.squares.nbytes())};
  return true;
}

void RowRunner::give_squares_late() {
  const KernelScope timed(KernelKind::kSquareSum);
  for (RankGroup& group : worker_.groups_) {
    if (group.is_whole()) group.fold();
    for (const auto& [place, parameter] : group.counted())
      run_.late->squares.select(0, place).copy_(square_sum_on_device(parameter->grads.front()));
  }
  run_.late->give_squares(run_.squares);
}

bool RowRunner::execute(const BoundFinishNorm& finish) {
  return finish_norm(finish.collective);
}

bool RowRunner::finish_norm(CollectiveId collective) {
  if (!await_collective(collective)) return false;
  if (run_.late) {
    run_.late->take_norm(run_.squares, context_.clip);
    worker_.optimizer_->take_back_step_if(run_.late->not_finite);
    return true;
  }
  run_.grad_norm = norm_of(run_.squares);
  if (!std::isfinite(run_.grad_norm)) {
    worker_.refuse_update();
    return true;
  }
  worker_.clip_factor_ = clip_factor_for(run_.grad_norm, context_.clip);
  return true;
}

bool RowRunner::execute(const BoundStep& step) {
  if (!add_arrivals(step.arrivals)) return false;
  RankGroup& group = worker_.groups_[step.group.index()];
  for (const CollectiveId collective : group.lent)
    if (!await_collective(collective)) return false;
  group.lent.clear();
  if (group.is_whole()) group.fold();
  PLAIT_CHECK(worker_.optimizer_.has_value(), "a step in a program without training");
  if (step.norm == BoundStep::Norm::kKnown)
    update(step.group);
  else
    try_update(step.group);
  return true;
}

/// Steps a group by the norm, unless that is not finite.
void RowRunner::update(GroupId group) {
  if (worker_.refuses_update_) return;
  const std::vector<Parameter*>& parameters = worker_.groups_[group.index()].parameters();
  if (run_.late && context_.clip) {
    const KernelScope timed(KernelKind::kClip);
    for (const Parameter* parameter : parameters) parameter->grads.front().mul_(run_.late->clip);
  } else if (worker_.clip_factor_ < 1) {
    const KernelScope timed(KernelKind::kClip);
    for (const Parameter* parameter : parameters) parameter->grads.front().mul_(worker_.clip_factor_);
  }
  const KernelScope timed(KernelKind::kOptimizer);
  worker_.optimizer_->step(group.index(), context_.learning_rate,
                           run_.late ? std::optional(run_.late->not_finite) : std::nullopt);
}

/// Steps a group as if the norm were to let its gradients be, and keeps what undoes it.
void RowRunner::try_update(GroupId group) {
  trials_.push_back(Trial{.group = group, .state = holds_back_ ? Trial::State::kHeldBack : Trial::State::kStepped});
  if (holds_back_) return;
  const KernelScope timed(KernelKind::kOptimizer);
  worker_.optimizer_->keep(group.index());
  worker_.optimizer_->step(group.index(), context_.learning_rate);
}

bool RowRunner::execute(const BoundValidate& validate) {
  if (!finish_norm(validate.collective)) return false;
  for (const Trial& trial : trials_) {
    if (run_.late)
      judge_late(trial.group);
    else
      judge(trial);
  }
  trials_.clear();
  return true;
}

void RowRunner::judge(const Trial& trial) {
  const bool has_stepped = trial.state == Trial::State::kStepped;
  if (has_stepped && !worker_.refuses_update_ && worker_.clip_factor_ == 1) {
    worker_.optimizer_->forget(trial.group.index());
    return;
  }
  if (has_stepped) {
    const KernelScope timed(KernelKind::kOptimizer);
    worker_.optimizer_->undo(trial.group.index());
    worker_.optimizer_->forget(trial.group.index());
  }
  update(trial.group);
}

/// The host does not know the norm: what it demands is done on the device, or not.
void RowRunner::judge_late(GroupId group) {
  {
    const KernelScope timed(KernelKind::kOptimizer);
    worker_.optimizer_->undo(group.index(), run_.late->undoes());
    worker_.optimizer_->forget(group.index());
  }
  if (!context_.clip) return;
  {
    const KernelScope timed(KernelKind::kClip);
    for (const Parameter* parameter : worker_.groups_[group.index()].parameters())
      parameter->grads.front().mul_(run_.late->clip);
  }
  const KernelScope timed(KernelKind::kOptimizer);
  worker_.optimizer_->step(group.index(), context_.learning_rate, run_.late->steps_once());
}

}  // namespace plait
