#include "plait/run/engine/stage_kernels.h"

#include <utility>

namespace plait {
namespace {

class ModuleKernels final : public StageKernels {
 public:
  ModuleKernels(const ModelConfig& config, PartRange parts, ParameterSet& parameters, const StageOptions& options)
      : module_(config, parts, parameters, options),
        input_widths_(payload_widths(config, parts.begin)),
        output_widths_(payload_widths(config, parts.end)) {}

  ForwardResult forward(const SliceData& data, Payload input, Stash* stash, KvCache* cache, StashRule rule) override {
    return module_.forward(data, std::move(input), stash, cache, KeepLogits::kNo, rule);
  }
  Stash recompute(const SliceData& data, Stash kept, KvCache* cache, int slice_idx, StashRule rule) override {
    return module_.recompute(data, std::move(kept), cache, slice_idx, rule);
  }
  BackwardResult backward_input(const SliceData& data, Payload output_grad, Stash stash, WeightStash* weight_stash,
                                KvCache* cache, int slice_idx) override {
    return module_.backward_input(data, std::move(output_grad), std::move(stash), weight_stash, cache, slice_idx);
  }
  void backward_weight(WeightStash weight_stash) override { module_.backward_weight(std::move(weight_stash)); }
  BackwardResult backward(const SliceData& data, Payload output_grad, Stash stash, KvCache* cache,
                          int slice_idx) override {
    return module_.backward(data, std::move(output_grad), std::move(stash), cache, slice_idx);
  }
  [[nodiscard]] KernelCounts counts() const override { return module_.counts(); }
  [[nodiscard]] std::vector<std::int64_t> input_widths() const override { return input_widths_; }
  [[nodiscard]] std::vector<std::int64_t> output_widths() const override { return output_widths_; }

 private:
  StageModule module_;
  std::vector<std::int64_t> input_widths_;
  std::vector<std::int64_t> output_widths_;
};

}  // namespace

BackwardResult StageKernels::backward(const SliceData& data, Payload output_grad, Stash stash, KvCache* cache,
                                      int slice_idx) {
  WeightStash weight_stash;
  BackwardResult result =
      backward_input(data, std::move(output_grad), std::move(stash), &weight_stash, cache, slice_idx);
  backward_weight(std::move(weight_stash));
  return result;
}

std::unique_ptr<StageKernels> make_module_kernels(const ModelConfig& config, PartRange parts, ParameterSet& parameters,
                                                  const StageOptions& options) {
  return std::make_unique<ModuleKernels>(config, parts, parameters, options);
}

std::vector<std::int64_t> payload_widths(const ModelConfig& config, int part_idx) {
  if (part_idx <= 0 || part_idx >= num_parts(config.num_layers)) return {};
  const std::int64_t heads = config.num_heads * config.head_dim;
  switch (part_at(config.num_layers, part_idx).kind) {
    case PartKind::kEmbed: return {};
    case PartKind::kNorm:
    case PartKind::kHead: return {config.hidden_size};
    case PartKind::kQkv: return {config.hidden_size, config.hidden_size};
    case PartKind::kAttn: return {heads + 2 * config.num_kv_heads * config.head_dim, config.hidden_size};
    case PartKind::kPost: return {heads, config.hidden_size};
  }
  return {};
}

}  // namespace plait
