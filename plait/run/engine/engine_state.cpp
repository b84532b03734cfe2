#include "plait/run/engine/engine_state.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
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

/// The elements of a whole tensor that the rank holds.
at::Tensor held_part(const at::Tensor& whole, const Parameter& parameter) {
  return whole.reshape(-1).narrow(0, parameter.begin, parameter.master.numel()).view(parameter.master.sizes());
}

/// Writes what the rank holds into the whole, which is made where it is not there yet.
void put_part(at::Tensor& whole, const Parameter& parameter, const at::Tensor& part) {
  if (!whole.defined()) whole = at::empty(parameter.shape, part.options());
  held_part(whole, parameter).copy_(part);
}

bool is_whole(const Parameter& parameter) {
  return parameter.master.numel() == whole_size(parameter);
}

}  // namespace

std::int64_t whole_size(const Parameter& parameter) {
  std::int64_t size = 1;
  for (const std::int64_t extent : parameter.shape) size *= extent;
  return size;
}

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
    parameter.master.copy_(held_part(from.master, parameter));
    if (worker.optimizer() == nullptr || from.moments.empty()) continue;
    const Moments moments = worker.optimizer()->moments(parameter);
    if (!moments.exp_avg.defined()) continue;
    moments.exp_avg.copy_(held_part(from.moments.at(kExpAvg), parameter));
    moments.exp_avg_sq.copy_(held_part(from.moments.at(kExpAvgSq), parameter));
  }
  worker.parameters().refresh_compute();
}

void save_rank(const RankWorker& worker, std::map<std::string, ParameterState>& state) {
  for (const auto& [name, parameter] : worker.parameters().by_name()) {
    const auto [at, is_new] = state.try_emplace(name);
    if (!is_new && is_whole(parameter)) continue;
    put_part(at->second.master, parameter, parameter.master);
    if (worker.optimizer() == nullptr) continue;
    const Moments moments = worker.optimizer()->moments(parameter);
    if (!moments.exp_avg.defined()) continue;
    put_part(at->second.moments[kExpAvg], parameter, moments.exp_avg);
    put_part(at->second.moments[kExpAvgSq], parameter, moments.exp_avg_sq);
  }
}

void save_gradients(const RankWorker& worker, std::map<std::string, at::Tensor>& gradients) {
  for (const auto& [name, parameter] : worker.parameters().by_name()) {
    const auto [at, is_new] = gradients.try_emplace(name);
    if (!is_new && is_whole(parameter)) continue;
    put_part(at->second, parameter, parameter.grads.front());
    if (worker.clip_factor() < 1) held_part(at->second, parameter).div_(worker.clip_factor());
  }
}

}  // namespace plait
