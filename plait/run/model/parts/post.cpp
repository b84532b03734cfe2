#include "plait/run/model/kernels/activation.h"
#include "plait/run/model/parts/layers.h"
#include "plait/run/model/parts/part.h"

#include <ATen/core/Tensor.h>

namespace plait {
namespace {

struct PostNames {
  std::string projection;
  std::string norm;
  std::string up;  ///< first tensor of the GEMM in front of the activation
  std::string down;
};

PostNames names_of(const ModelConfig& config) {
  if (config.family == ModelFamily::kGpt2)
    return {.projection = "attn.c_proj", .norm = "ln_2", .up = "mlp.c_fc", .down = "mlp.c_proj"};
  return {.projection = "self_attn.o_proj",
          .norm = "post_attention_layernorm",
          .up = "mlp.gate_proj",
          .down = "mlp.down_proj"};
}

LinearLayer make_linear(const StageShared& stage, const std::string& name) {
  return {stage, name + ".weight", stage.config.family == ModelFamily::kGpt2 ? name + ".bias" : ""};
}

/// {o, x} to {y}:  h = x + projection(o);  y = h + down(activation(up(norm(h)))).
/// R rows, F wide inside; the pre-activation is [R,2F] where it is gated.
class Post final : public PartModule {
 public:
  Post(const StageShared& stage, int layer) : Post(stage, layer_prefix(stage.config, layer), names_of(stage.config)) {}

  ForwardResult forward(const ForwardContext& context, Payload input) override {
    const at::Tensor x = std::move(input[1]);
    const at::Tensor o = as_rows(input[0]);
    const at::Tensor h = projection_.forward_plus(as_rows(x), o);
    NormLayer::Output normed = norm_.forward(h);
    const at::Tensor inner = up_.forward(normed.y);
    normed.y.reset();
    const at::Tensor act = is_gated_ ? kernels::swiglu(inner) : kernels::gelu_tanh(inner);
    const at::Tensor y = down_.forward_plus(h, act);
    if (context.stash != nullptr) {
      *context.stash = std::move(normed.statistics);
      for (const at::Tensor& kept : {o, h, inner}) context.stash->push_back(kept);
    }
    return {.output = {as_sequences(y, x)}, .loss = {}, .logits = {}};
  }

  Payload backward_input(BackwardContext context, Payload output_grad) override {
    std::vector<at::Tensor> statistics = std::move(context.stash);
    at::Tensor inner = take_last(statistics);
    const at::Tensor h = take_last(statistics);
    const at::Tensor o = take_last(statistics);
    const at::Tensor like = output_grad[0];
    const at::Tensor dy = as_rows(output_grad[0]);
    at::Tensor dact = down_.input_grad(dy);
    const kernels::ActivationGrad inside = is_gated_ ? kernels::swiglu_grad(std::move(dact), std::move(inner))
                                                     : kernels::gelu_tanh_grad(std::move(dact), std::move(inner));
    const at::Tensor dnormed = up_.input_grad(inside.input_grad);
    const at::Tensor dh = norm_.input_grad(dnormed, h, statistics, dy);
    const at::Tensor d_o = projection_.input_grad(dh);
    if (context.weight_stash != nullptr) {
      for (const at::Tensor& kept : {o, h, dnormed, dh, inside.input_grad, inside.output, dy})
        statistics.push_back(kept);
      norm_.keep_weights(statistics);
      *context.weight_stash = std::move(statistics);
    }
    return {as_sequences(d_o, like), as_sequences(dh, like)};
  }

  void backward_weight(std::vector<at::Tensor> weight_stash) override {
    std::vector<at::Tensor> statistics = std::move(weight_stash);
    const std::vector<at::Tensor> norm_weights = norm_.take_weights(statistics);
    const at::Tensor dy = take_last(statistics);
    const at::Tensor act = take_last(statistics);
    const at::Tensor dinner = take_last(statistics);
    const at::Tensor dh = take_last(statistics);
    const at::Tensor dnormed = take_last(statistics);
    const at::Tensor h = take_last(statistics);
    const at::Tensor o = take_last(statistics);
    down_.accumulate(act, dy);
    up_.accumulate(norm_.apply(h, statistics, norm_weights), dinner);
    norm_.accumulate(dnormed, h, statistics);
    projection_.accumulate(o, dh);
  }

 private:
  Post(const StageShared& stage, const std::string& at, const PostNames& names)
      : projection_(make_linear(stage, at + names.projection)),
        norm_(stage, at + names.norm),
        up_(make_linear(stage, at + names.up)),
        down_(make_linear(stage, at + names.down)),
        is_gated_(stage.config.family != ModelFamily::kGpt2) {}

  static at::Tensor take_last(std::vector<at::Tensor>& tensors) {
    at::Tensor last = std::move(tensors.back());
    tensors.pop_back();
    return last;
  }

  LinearLayer projection_;
  NormLayer norm_;
  LinearLayer up_;
  LinearLayer down_;
  bool is_gated_;
};

}  // namespace

std::unique_ptr<PartModule> make_post(const StageShared& stage, int layer) {
  return std::make_unique<Post>(stage, layer);
}

}  // namespace plait
