#include "plait/run/model/kernels/activation.h"
#include "plait/run/model/parts/layers.h"
#include "plait/run/model/parts/part.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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
/// R rows, F wide inside; the pre-activation is [R,2F] where it is gated. In chunks, nothing of that width is kept: each
/// pass makes the pre-activation of a chunk again.
class Post final : public PartModule {
 public:
  Post(const StageShared& stage, int layer) : Post(stage, layer_prefix(stage.config, layer), names_of(stage.config)) {}

  ForwardResult forward(const ForwardContext& context, Payload input) override {
    const at::Tensor x = std::move(input[1]);
    const at::Tensor o = as_rows(input[0]);
    const at::Tensor h = projection_.forward_plus(as_rows(x), o);
    const bool wants_output = context.want == Want::kOutput;
    NormLayer::Output normed = norm_.forward(h);
    at::Tensor inner;
    at::Tensor y;
    if (is_chunked(h)) {
      if (wants_output) {
        y = at::empty_like(h);
        for_chunks(h.size(0), *chunk_, [&](std::int64_t first, std::int64_t count) {
          const at::Tensor act = activation(up_.forward(normed.y.narrow(0, first, count)));
          down_.forward_plus_into(y.narrow(0, first, count), h.narrow(0, first, count), act);
        });
      }
    } else {
      inner = up_.forward(normed.y);
      normed.y.reset();
      if (wants_output) y = down_.forward_plus(h, activation(inner));
    }
    if (context.stash != nullptr) {
      *context.stash = std::move(normed.statistics);
      for (const at::Tensor& kept : {o, h, inner}) context.stash->push_back(kept);
    }
    if (!wants_output) return {};
    return {.output = {as_sequences(y, x)}, .loss = {}, .logits = {}};
  }

  Payload backward_input(BackwardContext context, Payload output_grad) override {
    Kept kept = take(std::move(context.stash));
    const at::Tensor like = output_grad[0];
    const at::Tensor dy = as_rows(output_grad[0]);
    at::Tensor dnormed;
    kernels::ActivationGrad inside;
    if (is_chunked(kept.h)) {
      const at::Tensor normed = norm_.apply(kept.h, kept.statistics);
      dnormed = at::empty_like(kept.h);
      for_chunks(dy.size(0), *chunk_, [&](std::int64_t first, std::int64_t count) {
        up_.input_grad_into(dnormed.narrow(0, first, count), inside_of(normed, dy, first, count).input_grad);
      });
    } else {
      inside = activation_grad(down_.input_grad(dy), std::move(kept.inner));
      dnormed = up_.input_grad(inside.input_grad);
    }
    const at::Tensor dh = norm_.input_grad(dnormed, kept.h, kept.statistics, dy);
    const at::Tensor d_o = projection_.input_grad(dh);
    if (context.weight_stash != nullptr) {
      std::vector<at::Tensor> weight_stash = std::move(kept.statistics);
      for (const at::Tensor& needed : {kept.o, kept.h, dnormed, dh, inside.input_grad, inside.output, dy})
        weight_stash.push_back(needed);
      norm_.keep_weights(weight_stash);
      *context.weight_stash = std::move(weight_stash);
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
    const at::Tensor normed = norm_.apply(h, statistics, norm_weights);
    if (is_chunked(h)) {
      for_chunks(dy.size(0), *chunk_, [&](std::int64_t first, std::int64_t count) {
        accumulate_inside(inside_of(normed, dy, first, count), normed, dy, first, count);
      });
    } else {
      down_.accumulate(act, dy);
      up_.accumulate(normed, dinner);
    }
    norm_.accumulate(dnormed, h, statistics);
    projection_.accumulate(o, dh);
  }

  Payload backward(BackwardContext context, Payload output_grad) override {
    const at::Tensor dy = as_rows(output_grad[0]);
    if (!is_chunked(dy)) return PartModule::backward(std::move(context), std::move(output_grad));
    const Kept kept = take(std::move(context.stash));
    const at::Tensor normed = norm_.apply(kept.h, kept.statistics);
    const at::Tensor dnormed = at::empty_like(kept.h);
    for_chunks(dy.size(0), *chunk_, [&](std::int64_t first, std::int64_t count) {
      const kernels::ActivationGrad inside = inside_of(normed, dy, first, count);
      up_.input_grad_into(dnormed.narrow(0, first, count), inside.input_grad);
      accumulate_inside(inside, normed, dy, first, count);
    });
    const at::Tensor dh = norm_.input_grad(dnormed, kept.h, kept.statistics, dy);
    norm_.accumulate(dnormed, kept.h, kept.statistics);
    projection_.accumulate(kept.o, dh);
    return {as_sequences(projection_.input_grad(dh), output_grad[0]), as_sequences(dh, output_grad[0])};
  }

 private:
  struct Kept {
    std::vector<at::Tensor> statistics;
    at::Tensor o;
    at::Tensor h;
    at::Tensor inner;  ///< undefined in chunks
  };

  static Kept take(std::vector<at::Tensor> stash) {
    Kept kept{.statistics = std::move(stash), .o = {}, .h = {}, .inner = {}};
    kept.inner = take_last(kept.statistics);
    kept.h = take_last(kept.statistics);
    kept.o = take_last(kept.statistics);
    return kept;
  }

  /// Decided by the number of rows alone, so that every pass over a micro-batch decides alike.
  [[nodiscard]] bool is_chunked(const at::Tensor& rows) const { return chunk_ && rows.size(0) > *chunk_; }

  [[nodiscard]] at::Tensor activation(const at::Tensor& inner) const {
    return is_gated_ ? kernels::swiglu(inner) : kernels::gelu_tanh(inner);
  }
  [[nodiscard]] kernels::ActivationGrad activation_grad(at::Tensor dact, at::Tensor inner) const {
    return is_gated_ ? kernels::swiglu_grad(std::move(dact), std::move(inner))
                     : kernels::gelu_tanh_grad(std::move(dact), std::move(inner));
  }

  /// The activation of a chunk of rows and the gradient in front of it.
  [[nodiscard]] kernels::ActivationGrad inside_of(const at::Tensor& normed, const at::Tensor& dy, std::int64_t first,
                                                  std::int64_t count) const {
    return activation_grad(down_.input_grad(dy.narrow(0, first, count)), up_.forward(normed.narrow(0, first, count)));
  }
  void accumulate_inside(const kernels::ActivationGrad& inside, const at::Tensor& normed, const at::Tensor& dy,
                         std::int64_t first, std::int64_t count) const {
    down_.accumulate(inside.output, dy.narrow(0, first, count));
    up_.accumulate(normed.narrow(0, first, count), inside.input_grad);
  }

  Post(const StageShared& stage, const std::string& at, const PostNames& names)
      : projection_(make_linear(stage, at + names.projection)),
        norm_(stage, at + names.norm),
        up_(make_linear(stage, at + names.up)),
        down_(make_linear(stage, at + names.down)),
        is_gated_(stage.config.family != ModelFamily::kGpt2),
        chunk_(stage.options.mlp_chunk) {}

  LinearLayer projection_;
  NormLayer norm_;
  LinearLayer up_;
  LinearLayer down_;
  bool is_gated_;
  std::optional<std::int64_t> chunk_;
};

}  // namespace

std::unique_ptr<PartModule> make_post(const StageShared& stage, int layer) {
  return std::make_unique<Post>(stage, layer);
}

}  // namespace plait
