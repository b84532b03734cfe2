#include "plait/run/model/kernels/cross_entropy.h"
#include "plait/run/model/parts/layers.h"
#include "plait/run/model/parts/part.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace plait {
namespace {

std::string head_weight_name(const ModelConfig& config) {
  return config.tied_head ? token_table_name(config) : "lm_head.weight";
}

/// {x} to the summed loss: final norm, LM head, cross entropy. R rows, V classes. In training all of it is done at the start
/// of the backward. \source Zhang et al. 2025, arXiv:2507.00394 (where head and loss run)
class Head final : public PartModule {
 public:
  explicit Head(const StageShared& stage)
      : norm_(stage, stage.config.family == ModelFamily::kGpt2 ? "transformer.ln_f" : "model.norm"),
        projection_(stage, head_weight_name(stage.config), ""),
        vocab_size_(stage.config.vocab_size),
        options_(stage.options) {}

  ForwardResult forward(const ForwardContext& context, Payload input) override {
    const at::Tensor x = as_rows(input[0]);
    if (context.stash != nullptr) *context.stash = {x};
    if (context.want == Want::kStashOnly) return {};
    ForwardResult result;
    if (context.keep == KeepLogits::kYes) {
      const at::Tensor logits = projection_.forward(norm_.forward(x).y);
      if (context.stash == nullptr) result.loss = kernels::cross_entropy(logits, targets_of(context.data)).loss;
      result.logits = as_sequences(logits, input[0]);
    } else if (context.stash == nullptr) {
      result.loss = loss_in_chunks(x, targets_of(context.data));
    }
    return result;
  }

  Payload backward_input(BackwardContext context, Payload /*output_grad*/) override {
    const at::Tensor x = std::move(context.stash[0]);
    NormLayer::Output normed = norm_.forward(x);
    const Rows rows{.normed = normed.y,
                    .targets = targets_of(context.data),
                    .loss_scale = context.data.loss_scale,
                    .chunk = options_.loss_chunk.value_or(x.size(0))};
    const bool is_whole = rows.chunk >= x.size(0);
    at::Tensor whole;
    std::vector<at::Tensor> lse;
    const at::Tensor dnormed = input_grads(rows, *context.loss, [&](Chunk chunk) {
      if (is_whole) whole = std::move(chunk.dlogits);
      lse.push_back(std::move(chunk.lse));
    });
    const at::Tensor dx = norm_.input_grad(dnormed, x, normed.statistics, {});
    if (context.weight_stash != nullptr) {
      *context.weight_stash = std::move(normed.statistics);
      for (const at::Tensor& kept : {x, dnormed, whole}) context.weight_stash->push_back(kept);
      if (!is_whole) {
        // W makes the gradient of the logits again, chunk by chunk. The scale stays on the host, which reads it.
        const at::Tensor scale = at::scalar_tensor(rows.loss_scale, at::TensorOptions().dtype(at::kDouble));
        for (const at::Tensor& kept : {at::cat(lse), rows.targets.clone(), scale})
          context.weight_stash->push_back(kept);
      }
      norm_.keep_weights(*context.weight_stash);
    }
    return {as_sequences(dx, context.data.targets)};
  }

  void backward_weight(std::vector<at::Tensor> weight_stash) override {
    const std::vector<at::Tensor> norm_weights = norm_.take_weights(weight_stash);
    const std::size_t num_statistics = norm_.num_statistics();
    const std::vector<at::Tensor> statistics(weight_stash.begin(),
                                             weight_stash.begin() + static_cast<std::ptrdiff_t>(num_statistics));
    const at::Tensor& x = weight_stash[num_statistics];
    const at::Tensor& dnormed = weight_stash[num_statistics + 1];
    const at::Tensor& dlogits = weight_stash[num_statistics + 2];
    const at::Tensor normed = norm_.apply(x, statistics, norm_weights);
    if (dlogits.defined()) {
      projection_.accumulate(normed, dlogits);
    } else {
      const at::Tensor& lse = weight_stash[num_statistics + 3];
      const at::Tensor& targets = weight_stash[num_statistics + 4];
      const double scale = *weight_stash[num_statistics + 5].const_data_ptr<double>();
      for_chunks(x.size(0), *options_.loss_chunk, [&](std::int64_t first, std::int64_t count) {
        const at::Tensor rows = normed.narrow(0, first, count);
        projection_.accumulate(rows, kernels::cross_entropy_grad(projection_.forward(rows), lse.narrow(0, first, count),
                                                                 targets.narrow(0, first, count), scale));
      });
    }
    norm_.accumulate(dnormed, x, statistics);
  }

  /// Never holds more than a chunk of the logits.
  Payload backward(BackwardContext context, Payload /*output_grad*/) override {
    const at::Tensor x = std::move(context.stash[0]);
    NormLayer::Output normed = norm_.forward(x);
    const Rows rows{.normed = normed.y,
                    .targets = targets_of(context.data),
                    .loss_scale = context.data.loss_scale,
                    .chunk = options_.loss_chunk.value_or(own_chunk())};
    const at::Tensor dnormed = input_grads(rows, *context.loss, [&](const Chunk& chunk) {
      projection_.accumulate(rows.normed.narrow(0, chunk.first, chunk.dlogits.size(0)), chunk.dlogits);
    });
    norm_.accumulate(dnormed, x, normed.statistics);
    return {as_sequences(norm_.input_grad(dnormed, x, normed.statistics, {}), context.data.targets)};
  }

 private:
  struct Rows {
    at::Tensor normed;   ///< [R,D]
    at::Tensor targets;  ///< [R]
    double loss_scale;
    std::int64_t chunk;  ///< rows of logits at once
  };
  struct Chunk {
    std::int64_t first;
    at::Tensor dlogits;  ///< [count,V]
    at::Tensor lse;      ///< [count]
  };

  static at::Tensor targets_of(const SliceData& data) { return data.targets.reshape({-1}); }

  /// Rows of the logits that are made at once unless asked otherwise: of 8 MiB in fp32, but not so few that adding up the
  /// weight gradient, which costs its own size per chunk, takes long beside the products.
  [[nodiscard]] std::int64_t own_chunk() const {
    constexpr std::int64_t kElements = std::int64_t{1} << 21;
    constexpr std::int64_t kLeastRows = 256;
    return std::max(kElements / vocab_size_, kLeastRows);
  }

  /// Loss and gradient behind the norm [R,D], chunk by chunk; `use` gets what a chunk leaves.
  template <class Use>
  at::Tensor input_grads(const Rows& rows, at::Tensor& loss, const Use& use) const {
    at::Tensor dnormed = at::empty_like(rows.normed);
    loss = at::scalar_tensor(0.0, rows.normed.options().dtype(at::kDouble));
    for_chunks(rows.normed.size(0), rows.chunk, [&](std::int64_t first, std::int64_t count) {
      const at::Tensor targets = rows.targets.narrow(0, first, count);
      at::Tensor logits = projection_.forward(rows.normed.narrow(0, first, count));
      kernels::CrossEntropyResult entropy = kernels::cross_entropy(logits, targets);
      loss.add_(entropy.loss);
      Chunk chunk{.first = first,
                  .dlogits = kernels::cross_entropy_grad(std::move(logits), entropy.lse, targets, rows.loss_scale),
                  .lse = std::move(entropy.lse)};
      projection_.input_grad_into(dnormed.narrow(0, first, count), chunk.dlogits);
      use(std::move(chunk));
    });
    return dnormed;
  }

  /// Forward only: never holds more than a chunk of the logits.
  [[nodiscard]] at::Tensor loss_in_chunks(const at::Tensor& x, const at::Tensor& targets) const {
    at::Tensor total = at::scalar_tensor(0.0, x.options().dtype(at::kDouble));
    for_chunks(x.size(0), options_.loss_chunk.value_or(own_chunk()), [&](std::int64_t first, std::int64_t count) {
      const at::Tensor logits = projection_.forward(norm_.forward(x.narrow(0, first, count)).y);
      total.add_(kernels::cross_entropy(logits, targets.narrow(0, first, count)).loss);
    });
    return total;
  }

  NormLayer norm_;
  LinearLayer projection_;
  std::int64_t vocab_size_;
  StageOptions options_;
};

}  // namespace

std::unique_ptr<PartModule> make_head(const StageShared& stage) {
  return std::make_unique<Head>(stage);
}

}  // namespace plait
