#pragma once

#include "plait/run/model/config.h"
#include "plait/run/model/kernels/rotary.h"
#include "plait/run/model/parameters.h"
#include "plait/run/model/stage_module.h"

#include <ATen/core/TensorBody.h>

#include <memory>
#include <vector>

namespace plait {

struct ForwardContext {
  const SliceData& data;
  std::vector<at::Tensor>* stash;  ///< null in forward-only programs
  KvCache* cache;
  KeepLogits keep;
};

struct BackwardContext {
  const SliceData& data;
  std::vector<at::Tensor> stash;          ///< what this part's forward kept
  std::vector<at::Tensor>* weight_stash;  ///< null if no weight gradient will be asked for
  KvCache* cache;
  int slice_idx;
};

/// One part of the chain on one rank: its forward, the gradient of its input, the gradients of its weights.
class PartModule {
 public:
  PartModule() = default;
  PartModule(const PartModule&) = delete;
  PartModule& operator=(const PartModule&) = delete;
  virtual ~PartModule() = default;

  /// Loss and logits are set by head alone.
  virtual ForwardResult forward(const ForwardContext& context, Payload input) = 0;
  /// Computes no weight gradient; leaves what they need in the weight stash.
  virtual Payload backward_input(BackwardContext context, Payload output_grad) = 0;
  virtual void backward_weight(std::vector<at::Tensor> weight_stash) = 0;
};

/// What the parts of one stage share.
struct StageShared {
  const ModelConfig& config;
  const ParameterSet& parameters;
  std::shared_ptr<kernels::RotaryTable> rotary;  ///< null for learned positions
};

std::unique_ptr<PartModule> make_embed(const StageShared& stage);
std::unique_ptr<PartModule> make_norm(const StageShared& stage, int layer);
std::unique_ptr<PartModule> make_qkv(const StageShared& stage, int layer);
/// `attn_idx` counts the attn parts of the stage: its place in a KvCache.
std::unique_ptr<PartModule> make_attn(const StageShared& stage, std::size_t attn_idx);
std::unique_ptr<PartModule> make_post(const StageShared& stage, int layer);
std::unique_ptr<PartModule> make_head(const StageShared& stage);

/// [B,T,C] to [B T,C] and back: views of dense tensors.
inline at::Tensor as_rows(const at::Tensor& x) {
  return x.view({-1, x.size(-1)});
}
inline at::Tensor as_sequences(const at::Tensor& rows, const at::Tensor& like) {
  return rows.view({like.size(0), like.size(1), rows.size(-1)});
}

/// "model.layers.3." or "transformer.h.3."
std::string layer_prefix(const ModelConfig& config, int layer);

}  // namespace plait
