#include "plait/run/engine/rank_worker.h"

#include "plait/run/engine/row_runner.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

namespace plait {
namespace {

/// Parts of all stages that have a home here, ascending.
std::vector<int> parts_on(RankId rank, const Layout& layout) {
  std::vector<int> parts;
  for (const Stage& stage : layout.stages) {
    if (!std::binary_search(stage.homes.begin(), stage.homes.end(), rank)) continue;
    for (int part = stage.parts.begin; part < stage.parts.end; ++part) parts.push_back(part);
  }
  std::sort(parts.begin(), parts.end());
  return parts;
}

/// Does the rank hold the tensor? A rank with the head of a tied model holds the token table, whatever else of `embed`.
bool holds(RankId rank, const Layout& layout, const ParameterSpec& spec, bool is_token_table) {
  const std::vector<int> parts = parts_on(rank, layout);
  const int head = num_parts(layout.num_layers) - 1;
  if (std::binary_search(parts.begin(), parts.end(), spec.part)) return true;
  return is_token_table && layout.tying == HeadTying::kTied && std::binary_search(parts.begin(), parts.end(), head);
}

}  // namespace

MemoryAccount& in_flight_account() {
  static MemoryAccount& account = make_memory_account();
  return account;
}

RankRun::RankRun(const BoundRow& bound_row, std::size_t num_data, std::int64_t num_parameters)
    : row(&bound_row),
      payloads(static_cast<std::size_t>(bound_row.num_payloads)),
      stashes(static_cast<std::size_t>(bound_row.num_stashes)),
      weight_stashes(static_cast<std::size_t>(bound_row.num_weight_stashes)),
      caches(static_cast<std::size_t>(bound_row.num_caches)),
      trace(bound_row.instrs.size()),
      losses(num_data),
      squares(at::zeros({num_parameters}, at::kDouble)) {}

RankWorker::RankWorker(RankId rank, const Layout& layout, const ModelConfig& config, const EngineOptions& options,
                       const KernelFactory& kernels, const std::vector<std::string>& parameter_order)
    : rank_(rank), account_(make_memory_account()) {
  const AccountScope scope(account_);
  parameters_ = ParameterSet::create(config, parts_on(rank, layout), options.type);
  kernels_.resize(layout.stages.size());
  for (std::size_t s = 0; s < layout.stages.size(); ++s) {
    const Stage& stage = layout.stages[s];
    // A stage without weights has no home: its ops may stand on any rank.
    if (stage.groups.empty() || std::binary_search(stage.homes.begin(), stage.homes.end(), rank))
      kernels_[s] = kernels(config, stage.parts, parameters_);
  }
  const std::vector<ParameterSpec> specs = parameter_specs(config);
  std::vector<std::vector<Parameter*>> stepped;
  for (const ParamGroup& group : layout.groups) {
    Group here;
    std::vector<Parameter*>& step = stepped.emplace_back();
    for (const ParameterSpec& spec : specs) {
      if (!std::binary_search(group.parts.begin(), group.parts.end(), spec.part)) continue;
      const bool is_home = std::binary_search(group.homes.begin(), group.homes.end(), rank);
      const auto found = is_home ? parameters_.by_name().find(spec.name) : parameters_.by_name().end();
      Parameter* parameter = found == parameters_.by_name().end() ? nullptr : &found->second;
      here.parameters.push_back(parameter);
      here.grads.push_back(parameter == nullptr ? at::Tensor() : parameter->grads.front());
      if (parameter == nullptr) continue;
      step.push_back(parameter);
      const bool is_token_table = spec.name == token_table_name(config);
      const auto first_home = std::find_if(group.homes.begin(), group.homes.end(),
                                           [&](RankId home) { return holds(home, layout, spec, is_token_table); });
      if (*first_home != rank) continue;
      const auto place =
          std::lower_bound(parameter_order.begin(), parameter_order.end(), spec.name) - parameter_order.begin();
      here.counted.emplace_back(place, parameter);
    }
    groups_.push_back(std::move(here));
  }
  if (layout.mode == Mode::kTrain) optimizer_.emplace(options.optimizer, stepped);
}

void RankWorker::begin_training_step() {
  parameters_.zero_grads();
  for (Group& group : groups_) group.folded = false;
  clip_factor_ = 1;
  optimizer_->begin_step();
}

Result<> RankWorker::run(RankRun& run, const StepContext& context) {
  return RowRunner(*this, run, context).run();
}

}  // namespace plait
