#include "plait/run/generate/generate.h"

#include "plait/ir/parts.h"
#include "plait/run/data/random.h"
#include "plait/run/data/token_rows.h"
#include "plait/run/model/stage_module.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace plait {
namespace {

Result<> check_request(const ModelConfig& config, std::span<const TokenId> prompt, const GenerateOptions& options) {
  if (prompt.empty())
    return make_error(ErrorCode::kInvalidArgument, "generate.empty_prompt",
                      "the prompt is empty; give at least one token");
  if (options.max_new_tokens < 0 || options.top_k < 0 || !(options.temperature >= 0))
    return make_error(ErrorCode::kInvalidArgument, "generate.temperature",
                      "the number of tokens, top-k and temperature must not be negative");
  const auto length = static_cast<std::int64_t>(prompt.size());
  if (length + options.max_new_tokens > config.max_positions)
    return make_error(
        ErrorCode::kInvalidArgument, "generate.positions",
        "a prompt of {} tokens and {} new ones need {} positions, the model has {}; at most {} new tokens fit{}",
        length, options.max_new_tokens, length + options.max_new_tokens, config.max_positions,
        std::max<std::int64_t>(0, config.max_positions - length),
        length > config.max_positions ? ", and the prompt alone is too long" : "");
  return check_vocabulary(prompt, config.vocab_size, "prompt");
}

/// One tensor per list instead of one per token: the next step then reads whole rows.
void merge_slices(std::vector<std::vector<at::Tensor>>& lists) {
  constexpr std::int64_t kTokenDim = 2;  // [B, G, T, H]
  for (auto& slices : lists)
    if (slices.size() > 1) slices = {at::cat(slices, kTokenDim)};
}

SliceData as_slice(std::span<const TokenId> ids, std::int64_t first_position) {
  SliceData data{.tokens = at::empty({1, static_cast<std::int64_t>(ids.size())}, at::kLong),
                 .first_position = first_position};
  std::copy(ids.begin(), ids.end(), data.tokens.data_ptr<std::int64_t>());
  data.targets = at::full_like(data.tokens, kIgnoredTarget);
  return data;
}

std::vector<double> last_logits(const at::Tensor& logits) {
  const at::Tensor row = logits.select(1, logits.size(1) - 1).select(0, 0).to(at::kCPU, at::kDouble).contiguous();
  const double* values = row.const_data_ptr<double>();
  return {values, values + row.numel()};
}

}  // namespace

Result<ParameterSet> load_parameters(const ModelConfig& config, const std::map<std::string, at::Tensor>& tensors,
                                     ComputeType type) {
  std::vector<int> parts(static_cast<std::size_t>(num_parts(config.num_layers)));
  std::iota(parts.begin(), parts.end(), 0);
  ParameterSet parameters = ParameterSet::create(config, parts, type);
  for (auto& [name, parameter] : parameters.by_name()) {
    const auto found = tensors.find(name);
    if (found == tensors.end())
      return make_error(ErrorCode::kIo, "checkpoint.missing_tensor", "the weights lack {}", name);
    parameter.master.copy_(found->second);
  }
  parameters.refresh_compute();
  return parameters;
}

TokenId choose_token(std::span<const double> logits, const GenerateOptions& options, double uniform) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (options.temperature == 0) return static_cast<TokenId>(best - logits.begin());
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const std::size_t count =
      options.top_k > 0 ? std::min(order.size(), static_cast<std::size_t>(options.top_k)) : order.size();
  std::partial_sort(
      order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
      [&](std::size_t a, std::size_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  std::vector<double> weights(count);
  for (std::size_t i = 0; i < count; ++i) weights[i] = std::exp((logits[order[i]] - *best) / options.temperature);
  double left = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (std::size_t i = 0; i + 1 < count; ++i) {
    left -= weights[i];
    if (left < 0) return static_cast<TokenId>(order[i]);
  }
  return static_cast<TokenId>(order[count - 1]);
}

Result<std::vector<TokenId>> generate(const ModelConfig& config, ParameterSet& parameters,
                                      std::span<const TokenId> prompt, const GenerateOptions& options,
                                      const std::function<void(TokenId)>& on_token) {
  PLAIT_TRY_VOID(check_request(config, prompt, options));
  StageModule module(config, PartRange{.begin = 0, .end = num_parts(config.num_layers)}, parameters);
  KvCache cache;
  std::vector<TokenId> made;
  std::vector<TokenId> next(prompt.begin(), prompt.end());
  std::int64_t position = 0;
  while (static_cast<std::int64_t>(made.size()) < options.max_new_tokens) {
    const ForwardResult result = module.forward(as_slice(next, position), {}, nullptr, &cache, KeepLogits::kYes);
    merge_slices(cache.keys);
    merge_slices(cache.values);
    position += static_cast<std::int64_t>(next.size());
    const TokenId token = choose_token(last_logits(result.logits), options, uniform_at(options.seed, made.size()));
    made.push_back(token);
    if (on_token) on_token(token);
    next.assign(1, token);
  }
  return made;
}

}  // namespace plait
