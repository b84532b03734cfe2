#include "plait/run/engine/optimizer.h"

#include "plait/base/check.h"
#include "plait/run/engine/engine.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <array>

namespace plait {
namespace {

template <class T>
double square_sum_of(const T* data, std::int64_t n) {
  constexpr std::int64_t kLanes = 8;  // independent sums, so that the loop vectorises
  std::array<double, kLanes> sums = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const auto x = static_cast<double>(data[i + lane]);
      sums[static_cast<std::size_t>(lane)] += x * x;
    }
  }
  for (; i < n; ++i) sums[0] += static_cast<double>(data[i]) * static_cast<double>(data[i]);
  double sum = 0;
  for (const double lane : sums) sum += lane;
  return sum;
}

}  // namespace

double square_sum(const at::Tensor& tensor) {
  if (tensor.is_cpu() && tensor.is_contiguous()) {
    if (tensor.scalar_type() == at::kFloat) return square_sum_of(tensor.const_data_ptr<float>(), tensor.numel());
    if (tensor.scalar_type() == at::kDouble) return square_sum_of(tensor.const_data_ptr<double>(), tensor.numel());
  }
  const auto norm = at::linalg_vector_norm(tensor, 2, {}, /*keepdim=*/false, at::kDouble).item<double>();
  return norm * norm;
}

RankOptimizer::RankOptimizer(const OptimizerOptions& options, const std::vector<std::vector<Parameter*>>& groups,
                             at::Device device)
    : options_(options), steps_done_(at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(device))) {
  for (const std::vector<Parameter*>& group : groups) {
    Batch decayed{.weight_decay = options.weight_decay};
    Batch plain{.weight_decay = 0};
    for (Parameter* parameter : group) {
      const bool decays = options.decay == DecayRule::kAll || parameter->shape.size() >= 2;
      Batch& batch = decays ? decayed : plain;
      PLAIT_CHECK(!parameter->grads.empty(), "{} has no gradient", parameter->name);
      batch.parameters.push_back(parameter);
      batch.masters.push_back(parameter->master);
      batch.grads.push_back(parameter->grads.front());
      batch.steps.push_back(steps_done_);
      if (options.kind == OptimizerKind::kAdamW) {
        batch.exp_avgs.push_back(at::zeros_like(parameter->master, at::MemoryFormat::Contiguous));
        batch.exp_avg_sqs.push_back(at::zeros_like(parameter->master, at::MemoryFormat::Contiguous));
      }
    }
    std::vector<Batch>& batches = groups_.emplace_back();
    if (!decayed.parameters.empty()) batches.push_back(std::move(decayed));
    if (!plain.parameters.empty()) batches.push_back(std::move(plain));
  }
}

void RankOptimizer::begin_step() {
  steps_done_.add_(1);
}

void RankOptimizer::take_back_step() {
  steps_done_.sub_(1);
}

void RankOptimizer::take_back_step_if(const at::Tensor& not_finite) {
  steps_done_.sub_(not_finite);
}

void RankOptimizer::step(std::size_t group, double learning_rate, const std::optional<at::Tensor>& not_finite) {
  for (Batch& batch : groups_[group]) step_batch(batch, learning_rate, not_finite);
}

void RankOptimizer::step_batch(Batch& batch, double learning_rate, const std::optional<at::Tensor>& not_finite) {
  switch (options_.kind) {
    case OptimizerKind::kAdamW:
      at::_fused_adamw_(batch.masters, batch.grads, batch.exp_avgs, batch.exp_avg_sqs, /*max_exp_avg_sqs=*/{},
                        batch.steps, learning_rate, options_.beta1, options_.beta2, batch.weight_decay, options_.eps,
                        /*amsgrad=*/false, /*maximize=*/false, /*grad_scale=*/{}, not_finite);
      break;
    case OptimizerKind::kSgd:
      at::_fused_sgd_(batch.masters, batch.grads, /*momentum_buffer_list=*/{}, batch.weight_decay, /*momentum=*/0,
                      learning_rate,
                      /*dampening=*/0, /*nesterov=*/false, /*maximize=*/false, /*is_first_step=*/false,
                      /*grad_scale=*/{}, not_finite);
      break;
  }
  batch.refresh_compute();
}

std::vector<at::Tensor> RankOptimizer::Batch::state() const {
  std::vector<at::Tensor> all = masters;
  all.insert(all.end(), exp_avgs.begin(), exp_avgs.end());
  all.insert(all.end(), exp_avg_sqs.begin(), exp_avg_sqs.end());
  return all;
}

void RankOptimizer::Batch::refresh_compute() const {
  for (const Parameter* parameter : parameters)
    if (parameter->compute.defined() && !parameter->compute.is_same(parameter->master))
      parameter->compute.copy_(parameter->master);
}

void RankOptimizer::keep(std::size_t group) {
  for (Batch& batch : groups_[group]) {
    batch.kept.clear();
    for (const at::Tensor& tensor : batch.state())
      batch.kept.push_back(at::clone(tensor, at::MemoryFormat::Contiguous));
  }
}

void RankOptimizer::undo(std::size_t group, const std::optional<at::Tensor>& condition) {
  for (Batch& batch : groups_[group]) {
    const std::vector<at::Tensor> state = batch.state();
    PLAIT_CHECK(batch.kept.size() == state.size(), "nothing was kept of group {}", group);
    for (std::size_t i = 0; i < state.size(); ++i)
      state[i].copy_(condition ? at::where(*condition, batch.kept[i], state[i]) : batch.kept[i]);
    batch.refresh_compute();
  }
}

void RankOptimizer::forget(std::size_t group) {
  for (Batch& batch : groups_[group]) batch.kept.clear();
}

void RankOptimizer::set_steps_done(std::int64_t steps) {
  steps_done_.fill_(static_cast<double>(steps));
}

Moments RankOptimizer::moments(const Parameter& parameter) const {
  for (const std::vector<Batch>& group : groups_)
    for (const Batch& batch : group)
      for (std::size_t i = 0; i < batch.exp_avgs.size(); ++i)
        if (batch.parameters[i] == &parameter)
          return Moments{.exp_avg = batch.exp_avgs[i], .exp_avg_sq = batch.exp_avg_sqs[i]};
  return {};
}

void RankOptimizer::reset_moments() {
  for (std::vector<Batch>& group : groups_) {
    for (Batch& batch : group) {
      for (at::Tensor& moment : batch.exp_avgs) moment.zero_();
      for (at::Tensor& moment : batch.exp_avg_sqs) moment.zero_();
    }
  }
}

}  // namespace plait
