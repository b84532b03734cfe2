#include "plait/run/engine/rank_worker.h"

#include "plait/run/engine/row_runner.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace plait {
namespace {

/// Per stage: it has ops or a home on the rank. One without weights has no home, and its ops may stand anywhere.
std::vector<bool> runs_on(RankId rank, const Layout& layout, const std::vector<StageId>& visited) {
  std::vector<bool> runs_here(layout.stages.size());
  for (std::size_t s = 0; s < layout.stages.size(); ++s) {
    const Stage& stage = layout.stages[s];
    runs_here[s] = stage.groups.empty() || std::binary_search(stage.homes.begin(), stage.homes.end(), rank);
  }
  for (const StageId stage : visited) runs_here[stage.index()] = true;
  return runs_here;
}

}  // namespace

MemoryAccount& in_flight_account() {
  static MemoryAccount& account = make_memory_account();
  return account;
}

RankRun::RankRun(const BoundRow& bound_row, std::size_t num_data, std::int64_t num_parameters, const RankDevice& device)
    : row(&bound_row),
      payloads(static_cast<std::size_t>(bound_row.num_payloads)),
      stashes(static_cast<std::size_t>(bound_row.num_stashes)),
      weight_stashes(static_cast<std::size_t>(bound_row.num_weight_stashes)),
      caches(static_cast<std::size_t>(bound_row.num_caches)),
      trace(bound_row.instrs.size()),
      losses(num_data),
      squares(at::zeros({num_parameters}, at::TensorOptions().dtype(at::kDouble).device(device.device()))) {
  if (device.reads() == HostReads::kAtEndOfStep) late.emplace(num_data, num_parameters, device.device());
}

RankWorker::RankWorker(RankId rank, const Layout& layout, const std::vector<StageId>& visited,
                       const ModelConfig& config, const EngineOptions& options, const KernelFactory& kernels,
                       const std::vector<std::string>& parameter_order, const RankDevice& device)
    : rank_(rank), device_(device), account_(make_memory_account()) {
  const AccountScope scope(account_);
  const std::vector<bool> runs_here = runs_on(rank, layout, visited);
  const auto holding_of = [&](const ParameterSpec& first) {
    return holding_on(rank, layout, config, runs_here, first);
  };
  parameters_ = ParameterSet::create(config, options.type, holding_of, device.device());
  kernels_.resize(layout.stages.size());
  for (std::size_t s = 0; s < layout.stages.size(); ++s)
    if (runs_here[s]) kernels_[s] = kernels(config, layout.stages[s].parts, parameters_);
  std::vector<std::vector<Parameter*>> stepped;
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    groups_.emplace_back(rank, layout, GroupId{static_cast<std::int32_t>(g)}, config, parameters_, parameter_order);
    stepped.push_back(groups_.back().parameters());
  }
  if (layout.mode == Mode::kTrain) optimizer_.emplace(options.optimizer, stepped, device.device());
}

std::vector<const Parameter*> RankWorker::counted() const {
  std::vector<const Parameter*> parameters;
  for (const RankGroup& group : groups_)
    for (const auto& [place, parameter] : group.counted()) parameters.push_back(parameter);
  return parameters;
}

KernelLog* RankWorker::begin_log(const StepContext& context) {
  log_.begin(context.start);
  return context.recording == Recording::kKernels ? &log_ : nullptr;
}

void RankWorker::begin_training_step() {
  const KernelScope timed(KernelKind::kZeroGrads);
  parameters_.empty_grads();
  for (RankGroup& group : groups_) group.begin_step();
  clip_factor_ = 1;
  refuses_update_ = false;
  optimizer_->begin_step();
}

void RankWorker::refuse_update() {
  if (refuses_update_) return;
  refuses_update_ = true;
  optimizer_->take_back_step();
}

KernelCounts RankWorker::take_counts() {
  KernelCounts total;
  for (const auto& kernels : kernels_)
    if (kernels != nullptr) total += kernels->counts();
  return total - std::exchange(taken_counts_, total);
}

Result<> RankWorker::run(RankRun& run, const StepContext& context) {
  return RowRunner(*this, run, context).run();
}

}  // namespace plait
