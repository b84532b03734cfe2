#include "plait/run/model/parts/layers.h"
#include "plait/run/model/parts/part.h"

#include <ATen/core/Tensor.h>

namespace plait {
namespace {

LinearLayer make_projection(const StageShared& stage, int layer) {
  const std::string at = layer_prefix(stage.config, layer);
  if (stage.config.family == ModelFamily::kGpt2) return {stage, at + "attn.c_attn.weight", at + "attn.c_attn.bias"};
  return {stage, at + "self_attn.q_proj.weight", stage.config.attention_bias ? at + "self_attn.q_proj.bias" : ""};
}

/// {normed, x} to {qkv, x}: q, k and v by one GEMM.
class Qkv final : public PartModule {
 public:
  Qkv(const StageShared& stage, int layer) : projection_(make_projection(stage, layer)) {}

  ForwardResult forward(const ForwardContext& context, Payload input) override {
    const at::Tensor normed = std::move(input[0]);
    at::Tensor x = std::move(input[1]);
    if (context.stash != nullptr) *context.stash = {normed};
    if (context.want == Want::kStashOnly) return {};
    at::Tensor qkv = as_sequences(projection_.forward(as_rows(normed)), normed);
    return {.output = {std::move(qkv), std::move(x)}, .loss = {}, .logits = {}};
  }

  Payload backward_input(BackwardContext context, Payload output_grad) override {
    const at::Tensor normed = std::move(context.stash[0]);
    const at::Tensor dqkv = as_rows(output_grad[0]);
    at::Tensor dnormed = as_sequences(projection_.input_grad(dqkv), normed);
    if (context.weight_stash != nullptr) *context.weight_stash = {as_rows(normed), dqkv};
    return {std::move(dnormed), std::move(output_grad[1])};
  }

  void backward_weight(std::vector<at::Tensor> weight_stash) override {
    projection_.accumulate(weight_stash[0], weight_stash[1]);
  }

 private:
  LinearLayer projection_;
};

}  // namespace

std::unique_ptr<PartModule> make_qkv(const StageShared& stage, int layer) {
  return std::make_unique<Qkv>(stage, layer);
}

}  // namespace plait
