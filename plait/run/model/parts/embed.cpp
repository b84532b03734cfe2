#include "plait/run/model/kernels/embedding.h"
#include "plait/run/model/kernels/timing.h"
#include "plait/run/model/parts/part.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>

namespace plait {
namespace {

/// [B,T]: of each token in its document.
at::Tensor positions_in(const SliceData& data) {
  at::Tensor positions = at::empty_like(data.tokens);
  for (const Document& document : data.documents)
    positions.select(0, document.row)
        .narrow(0, document.begin, document.length)
        .copy_(at::arange(document.length, positions.options()));
  return positions;
}

/// x = token_table[tokens] (+ position_table[positions]).
class Embed final : public PartModule {
 public:
  explicit Embed(const StageShared& stage)
      : tokens_(&stage.parameters.storage(token_table_name(stage.config))),
        positions_(stage.config.family == ModelFamily::kGpt2 ? &stage.parameters.storage("transformer.wpe.weight")
                                                             : nullptr) {}

  ForwardResult forward(const ForwardContext& context, Payload /*input*/) override {
    const SliceData& data = context.data;
    at::Tensor x = kernels::gather_rows(tokens_->compute, data.tokens);
    if (positions_ != nullptr) {
      const KernelScope timed(KernelKind::kEmbedding);
      if (data.documents.empty())
        x.add_(positions_->compute.narrow(0, data.first_position, data.tokens.size(1)));
      else
        x.add_(kernels::gather_rows(positions_->compute, positions_in(data)));
    }
    return {.output = {std::move(x)}, .loss = {}, .logits = {}};
  }

  Payload backward_input(BackwardContext context, Payload output_grad) override {
    if (context.weight_stash != nullptr)
      *context.weight_stash = {context.data.tokens, std::move(output_grad[0]),
                               context.data.documents.empty()
                                   ? at::scalar_tensor(context.data.first_position, at::kLong)
                                   : positions_in(context.data)};
    return {};
  }

  void backward_weight(std::vector<at::Tensor> weight_stash) override {
    const at::Tensor& tokens = weight_stash[0];
    const at::Tensor& dx = weight_stash[1];
    kernels::accumulate_rows(tokens_->grads.front(), tokens, dx);
    if (positions_ != nullptr) {
      const at::Tensor& positions = weight_stash[2];  // of each token, or the first one of all rows
      if (positions.dim() > 0) {
        kernels::accumulate_rows(positions_->grads.front(), positions, dx);
      } else {
        const std::int64_t first = *positions.const_data_ptr<std::int64_t>();
        kernels::accumulate_batch_sum(positions_->grads.front().narrow(0, first, tokens.size(1)), dx);
      }
    }
  }

 private:
  const ParameterStorage* tokens_;
  const ParameterStorage* positions_;
};

}  // namespace

std::unique_ptr<PartModule> make_embed(const StageShared& stage) {
  return std::make_unique<Embed>(stage);
}

}  // namespace plait
