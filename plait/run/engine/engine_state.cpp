#include "plait/run/engine/engine_state.h"

#include <ATen/ops/clone.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace plait {
namespace {

constexpr const char* kExpAvg = "exp_avg";
constexpr const char* kExpAvgSq = "exp_avg_sq";

template <class... Args>
Error bad_state(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(ErrorCode::kInvalidArgument, "engine.state", format, std::forward<Args>(args)...);
}

Result<> check_shape(const std::string& name, const char* what, const at::Tensor& tensor,
                     const std::vector<std::int64_t>& shape) {
  if (tensor.defined() && tensor.sizes() == at::IntArrayRef(shape)) return {};
  return bad_state("{}: {} has shape [{}]; the model's is [{}]", name, what,
                   tensor.defined() ? fmt::format("{}", fmt::join(tensor.sizes(), ", ")) : "none",
                   fmt::join(shape, ", "));
}

at::Tensor copy_of(const at::Tensor& tensor) {
  return at::clone(tensor, at::MemoryFormat::Contiguous);
}

}  // namespace

Result<> check_state(const std::map<std::string, ParameterState>& state, const ModelConfig& config,
                     OptimizerKind optimizer) {
  const std::vector<ParameterSpec> specs = parameter_specs(config);
  for (const ParameterSpec& spec : specs) {
    const auto found = state.find(spec.name);
    if (found == state.end())
      return bad_state("{} is missing; the state should hold all {} tensors of the model", spec.name, specs.size());
    const ParameterState& parameter = found->second;
    PLAIT_TRY_VOID(check_shape(spec.name, "the weight", parameter.master, spec.shape));
    if (optimizer != OptimizerKind::kAdamW || parameter.moments.empty()) continue;
    for (const char* moment : {kExpAvg, kExpAvgSq}) {
      const auto at = parameter.moments.find(moment);
      if (at == parameter.moments.end())
        return bad_state("{}: {} is missing; AdamW needs both moments or none", spec.name, moment);
      PLAIT_TRY_VOID(check_shape(spec.name, moment, at->second, spec.shape));
    }
  }
  if (state.size() == specs.size()) return {};
  for (const auto& entry : state) {
    if (std::none_of(specs.begin(), specs.end(), [&](const ParameterSpec& spec) { return spec.name == entry.first; }))
      return bad_state("{} is no tensor of the model", entry.first);
  }
  return {};
}

void load_rank(RankWorker& worker, const std::map<std::string, ParameterState>& state, std::int64_t steps_done) {
  if (worker.optimizer() != nullptr) {
    worker.optimizer()->reset_moments();
    worker.optimizer()->set_steps_done(steps_done);
  }
  for (auto& [name, parameter] : worker.parameters().by_name()) {
    const ParameterState& from = state.at(name);
    parameter.master.copy_(from.master);
    if (worker.optimizer() == nullptr || from.moments.empty()) continue;
    const Moments moments = worker.optimizer()->moments(parameter);
    if (!moments.exp_avg.defined()) continue;
    moments.exp_avg.copy_(from.moments.at(kExpAvg));
    moments.exp_avg_sq.copy_(from.moments.at(kExpAvgSq));
  }
  worker.parameters().refresh_compute();
}

void save_rank(const RankWorker& worker, std::map<std::string, ParameterState>& state) {
  for (const auto& [name, parameter] : worker.parameters().by_name()) {
    const auto [at, is_new] = state.try_emplace(name);
    if (!is_new) continue;
    at->second.master = copy_of(parameter.master);
    if (worker.optimizer() == nullptr) continue;
    const Moments moments = worker.optimizer()->moments(parameter);
    if (!moments.exp_avg.defined()) continue;
    at->second.moments = {{kExpAvg, copy_of(moments.exp_avg)}, {kExpAvgSq, copy_of(moments.exp_avg_sq)}};
  }
}

void save_gradients(const RankWorker& worker, std::map<std::string, at::Tensor>& gradients) {
  for (const auto& [name, parameter] : worker.parameters().by_name()) {
    const auto [at, is_new] = gradients.try_emplace(name);
    if (!is_new) continue;
    at->second = copy_of(parameter.grads.front());
    if (worker.clip_factor() < 1) at->second.div_(worker.clip_factor());
  }
}

}  // namespace plait
