#include "plait/run/model/kernels/cross_entropy.h"
#include "plait/run/model/parts/layers.h"
#include "plait/run/model/parts/part.h"

#include <ATen/core/Tensor.h>

#include <algorithm>

namespace plait {
namespace {

std::string head_weight_name(const ModelConfig& config) {
  return config.tied_head ? token_table_name(config) : "lm_head.weight";
}

/// {x} to the summed loss: final norm, LM head, cross entropy. R rows, V classes.
class Head final : public PartModule {
 public:
  explicit Head(const StageShared& stage)
      : norm_(stage, stage.config.family == ModelFamily::kGpt2 ? "transformer.ln_f" : "model.norm"),
        projection_(stage, head_weight_name(stage.config), ""),
        vocab_size_(stage.config.vocab_size) {}

  ForwardResult forward(const ForwardContext& context, Payload input) override {
    const at::Tensor x = as_rows(input[0]);
    const at::Tensor targets = context.data.targets.reshape({-1});
    if (context.stash == nullptr && context.keep == KeepLogits::kNo) return {{}, loss_in_chunks(x, targets), {}};
    NormLayer::Output normed = norm_.forward(x);
    const at::Tensor logits = projection_.forward(normed.y);
    kernels::CrossEntropyResult entropy = kernels::cross_entropy(logits, targets);
    ForwardResult result{.output = {}, .loss = std::move(entropy.loss), .logits = {}};
    if (context.keep == KeepLogits::kYes) {
      // The backward turns the stash's logits into their gradient in place.
      result.logits = as_sequences(context.stash == nullptr ? logits : logits.clone(), input[0]);
    }
    if (context.stash != nullptr) {
      *context.stash = std::move(normed.statistics);
      for (const at::Tensor& kept : {x, logits, entropy.lse}) context.stash->push_back(kept);
    }
    return result;
  }

  Payload backward_input(BackwardContext context, Payload /*output_grad*/) override {
    std::vector<at::Tensor> statistics = std::move(context.stash);
    const at::Tensor lse = take_last(statistics);
    at::Tensor logits = take_last(statistics);
    const at::Tensor x = take_last(statistics);
    const at::Tensor dlogits = kernels::cross_entropy_grad(std::move(logits), lse, context.data.targets.reshape({-1}),
                                                           context.data.loss_scale);
    const at::Tensor dnormed = projection_.input_grad(dlogits);
    const at::Tensor dx = norm_.input_grad(dnormed, x, statistics, {});
    if (context.weight_stash != nullptr) {
      for (const at::Tensor& kept : {x, dnormed, dlogits}) statistics.push_back(kept);
      norm_.keep_weights(statistics);
      *context.weight_stash = std::move(statistics);
    }
    return {as_sequences(dx, context.data.targets)};
  }

  void backward_weight(std::vector<at::Tensor> weight_stash) override {
    std::vector<at::Tensor> statistics = std::move(weight_stash);
    const std::vector<at::Tensor> norm_weights = norm_.take_weights(statistics);
    const at::Tensor dlogits = take_last(statistics);
    const at::Tensor dnormed = take_last(statistics);
    const at::Tensor x = take_last(statistics);
    projection_.accumulate(norm_.apply(x, statistics, norm_weights), dlogits);
    norm_.accumulate(dnormed, x, statistics);
  }

 private:
  /// Forward only: never holds more than a chunk of the logits.
  [[nodiscard]] at::Tensor loss_in_chunks(const at::Tensor& x, const at::Tensor& targets) const {
    constexpr std::int64_t kChunkElements = std::int64_t{1} << 21;  // 8 MiB of fp32 logits
    const std::int64_t rows = x.size(0);
    const std::int64_t chunk =
        std::clamp<std::int64_t>(kChunkElements / vocab_size_, 1, std::max<std::int64_t>(rows, 1));
    at::Tensor total;
    for (std::int64_t first = 0; first < rows; first += chunk) {
      const std::int64_t count = std::min(chunk, rows - first);
      const at::Tensor logits = projection_.forward(norm_.forward(x.narrow(0, first, count)).y);
      const at::Tensor loss = kernels::cross_entropy(logits, targets.narrow(0, first, count)).loss;
      if (total.defined())
        total.add_(loss);
      else
        total = loss;
    }
    return total;
  }

  static at::Tensor take_last(std::vector<at::Tensor>& tensors) {
    at::Tensor last = std::move(tensors.back());
    tensors.pop_back();
    return last;
  }

  NormLayer norm_;
  LinearLayer projection_;
  std::int64_t vocab_size_;
};

}  // namespace

std::unique_ptr<PartModule> make_head(const StageShared& stage) {
  return std::make_unique<Head>(stage);
}

}  // namespace plait
