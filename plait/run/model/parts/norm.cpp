#include "plait/run/model/parts/layers.h"
#include "plait/run/model/parts/part.h"

#include <ATen/core/Tensor.h>

namespace plait {
namespace {

/// {x} to {norm(x), x}: the first norm of a layer.
class Norm final : public PartModule {
 public:
  Norm(const StageShared& stage, int layer)
      : norm_(stage, layer_prefix(stage.config, layer) +
                         (stage.config.family == ModelFamily::kGpt2 ? "ln_1" : "input_layernorm")) {}

  ForwardResult forward(const ForwardContext& context, Payload input) override {
    at::Tensor x = std::move(input[0]);
    NormLayer::Output normed = norm_.forward(as_rows(x));
    if (context.stash != nullptr) {
      *context.stash = std::move(normed.statistics);
      context.stash->push_back(x);
    }
    at::Tensor y = as_sequences(normed.y, x);
    return {.output = {std::move(y), std::move(x)}, .loss = {}, .logits = {}};
  }

  Payload backward_input(BackwardContext context, Payload output_grad) override {
    std::vector<at::Tensor> statistics = std::move(context.stash);
    const at::Tensor x = std::move(statistics.back());
    statistics.pop_back();
    const at::Tensor dy = as_rows(output_grad[0]);
    // None where the residual takes another way.
    const at::Tensor residual_grad = output_grad[1].defined() ? as_rows(output_grad[1]) : at::Tensor();
    const at::Tensor dx = norm_.input_grad(dy, as_rows(x), statistics, residual_grad);
    if (context.weight_stash != nullptr) {
      statistics.push_back(dy);
      statistics.push_back(as_rows(x));
      *context.weight_stash = std::move(statistics);
    }
    return {as_sequences(dx, x)};
  }

  void backward_weight(std::vector<at::Tensor> weight_stash) override {
    std::vector<at::Tensor> statistics = std::move(weight_stash);
    const at::Tensor x = std::move(statistics.back());
    statistics.pop_back();
    const at::Tensor dy = std::move(statistics.back());
    statistics.pop_back();
    norm_.accumulate(dy, x, statistics);
  }

 private:
  NormLayer norm_;
};

}  // namespace

std::unique_ptr<PartModule> make_norm(const StageShared& stage, int layer) {
  return std::make_unique<Norm>(stage, layer);
}

}  // namespace plait
