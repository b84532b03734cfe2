#include "plait/run/engine/engine_state.h"

#include "plait/base/check.h"
#include "plait/run/engine/byte_stream.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
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

std::int64_t product(const std::vector<std::int64_t>& shape) {
  std::int64_t size = 1;
  for (const std::int64_t extent : shape) size *= extent;
  return size;
}

/// Writes a part into the whole, which is made where it is not there yet. A whole that is there stays.
void put_part(at::Tensor& whole, const HeldPart& held) {
  if (whole.defined() && held.part.numel() == product(held.shape)) return;
  if (!whole.defined()) whole = at::empty(held.shape, held.part.options());
  whole.view(-1).narrow(0, held.begin, held.part.numel()).copy_(held.part.reshape(-1));
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
    parameter.master.copy_(held_part(from.master, parameter));
    if (worker.optimizer() == nullptr || from.moments.empty()) continue;
    const Moments moments = worker.optimizer()->moments(parameter);
    if (!moments.exp_avg.defined()) continue;
    moments.exp_avg.copy_(held_part(from.moments.at(kExpAvg), parameter));
    moments.exp_avg_sq.copy_(held_part(from.moments.at(kExpAvgSq), parameter));
  }
  worker.parameters().refresh_compute();
}

std::vector<HeldPart> held_state(const RankWorker& worker) {
  std::vector<HeldPart> parts;
  const auto add = [&](const std::string& name, const char* what, const Parameter& whole, const at::Tensor& part) {
    parts.push_back({.name = name, .what = what, .shape = whole.shape, .begin = whole.begin, .part = part.cpu()});
  };
  for (const auto& [name, parameter] : worker.parameters().by_name()) {
    add(name, "", parameter, parameter.master);
    if (worker.optimizer() == nullptr) continue;
    const Moments moments = worker.optimizer()->moments(parameter);
    if (!moments.exp_avg.defined()) continue;
    add(name, kExpAvg, parameter, moments.exp_avg);
    add(name, kExpAvgSq, parameter, moments.exp_avg_sq);
  }
  return parts;
}

void copy_share(const RankWorker& worker, std::vector<HeldPart>& share) {
  std::size_t next = 0;
  const auto add = [&](const Parameter& whole, const char* what, const at::Tensor& part) {
    if (part.numel() == 0) return;
    if (next == share.size())
      share.push_back({.name = whole.name,
                       .what = what,
                       .shape = whole.shape,
                       .begin = whole.begin,
                       .part = at::empty_like(part, part.options().device(at::kCPU), at::MemoryFormat::Contiguous)});
    share[next++].part.copy_(part);
  };
  for (const Parameter* parameter : worker.counted()) {
    add(*parameter, "", parameter->master);
    if (worker.optimizer() == nullptr) continue;
    const Moments moments = worker.optimizer()->moments(*parameter);
    if (!moments.exp_avg.defined()) continue;
    add(*parameter, kExpAvg, moments.exp_avg);
    add(*parameter, kExpAvgSq, moments.exp_avg_sq);
  }
}

std::vector<HeldPart> held_gradients(const RankWorker& worker) {
  std::vector<HeldPart> parts;
  for (const auto& [name, parameter] : worker.parameters().by_name()) {
    at::Tensor gradient = parameter.grads.front();
    if (worker.clip_factor() < 1) gradient = gradient.div(worker.clip_factor());
    gradient = gradient.cpu();
    parts.push_back({.name = name, .what = {}, .shape = parameter.shape, .begin = parameter.begin, .part = gradient});
  }
  return parts;
}

std::string encode(const std::vector<HeldPart>& parts) {
  ByteWriter out;
  out.put(parts.size());
  for (const HeldPart& held : parts) {
    const at::Tensor part = held.part.contiguous();
    out.put_bytes(held.name).put_bytes(held.what).put_list(held.shape).put(held.begin).put(part.scalar_type());
    out.put_list(part.sizes().vec()).put_bytes({static_cast<const char*>(part.const_data_ptr()), part.nbytes()});
  }
  return out.take();
}

void decode(std::string_view bytes, std::vector<HeldPart>& parts) {
  ByteReader in(bytes);
  for (auto left = in.get<std::size_t>(); left > 0; --left) {
    HeldPart& held = parts.emplace_back();
    held.name = in.get_bytes();
    held.what = in.get_bytes();
    held.shape = in.get_list<std::int64_t>();
    held.begin = in.get<std::int64_t>();
    const auto type = in.get<at::ScalarType>();
    held.part = at::empty(in.get_list<std::int64_t>(), at::TensorOptions().dtype(type));
    const std::string_view data = in.get_bytes();
    PLAIT_CHECK(data.size() == held.part.nbytes(), "{}: {} bytes", held.name, data.size());
    if (!data.empty()) std::memcpy(held.part.mutable_data_ptr(), data.data(), data.size());
  }
}

std::string encode(const std::map<std::string, ParameterState>& state) {
  std::vector<HeldPart> parts;
  const auto add = [&](const std::string& name, const std::string& what, const at::Tensor& whole) {
    parts.push_back({.name = name, .what = what, .shape = whole.sizes().vec(), .begin = 0, .part = whole});
  };
  for (const auto& [name, parameter] : state) {
    add(name, "", parameter.master);
    for (const auto& [what, moment] : parameter.moments) add(name, what, moment);
  }
  return encode(parts);
}

std::map<std::string, ParameterState> decode_state(std::string_view bytes) {
  std::vector<HeldPart> parts;
  decode(bytes, parts);
  return merge_state(parts);
}

std::map<std::string, ParameterState> merge_state(const std::vector<HeldPart>& parts) {
  std::map<std::string, ParameterState> state;
  for (const HeldPart& held : parts) {
    ParameterState& parameter = state[held.name];
    put_part(held.what.empty() ? parameter.master : parameter.moments[held.what], held);
  }
  return state;
}

std::map<std::string, at::Tensor> merge_gradients(const std::vector<HeldPart>& parts) {
  std::map<std::string, at::Tensor> gradients;
  for (const HeldPart& held : parts) put_part(gradients[held.name], held);
  return gradients;
}

std::vector<std::string> diverged(const std::vector<HeldPart>& parts) {
  std::vector<std::string> names;
  std::map<std::string, at::Tensor> first;
  for (const HeldPart& held : parts) {
    if (!held.what.empty() || held.part.numel() != product(held.shape)) continue;  // a shard has no copies
    const auto [at, is_new] = first.try_emplace(held.name, held.part);
    if (!is_new && !at::equal(at->second, held.part)) names.push_back(held.name);
  }
  return names;
}

}  // namespace plait
