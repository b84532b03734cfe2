#pragma once

#include "plait/run/model/config.h"
#include "plait/run/model/kernels/rotary.h"
#include "plait/run/model/parameters.h"
#include "plait/run/model/stage_module.h"

#include <ATen/core/TensorBody.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace plait {

enum class Want : std::uint8_t {
  kOutput,     ///< and what the stash asks for
  kStashOnly,  ///< the output is not read: what only it needs may be left out
};
/// How keys and values of a slice enter the cache.
enum class CacheEntry : std::uint8_t {
  kShared,  ///< as views of what the stash keeps
  kCopied,  ///< as copies, because the stash keeps nothing of them
  kThere,   ///< they are in it since the first forward
};

struct ForwardContext {
  const SliceData& data;
  std::vector<at::Tensor>* stash = nullptr;  ///< null where nothing is kept
  KvCache* cache = nullptr;
  KeepLogits keep = KeepLogits::kNo;
  Want want = Want::kOutput;
  CacheEntry cache_entry = CacheEntry::kShared;
  int slice_idx = 0;              ///< where it is in the cache already
  std::vector<at::Tensor> known;  ///< attn: {out, lse}, or its whole stash, from the first forward
};

struct BackwardContext {
  const SliceData& data;
  std::vector<at::Tensor> stash;          ///< what this part's forward kept
  std::vector<at::Tensor>* weight_stash;  ///< null if no weight gradient will be asked for
  KvCache* cache;
  int slice_idx;
  at::Tensor* loss;  ///< set by head
};

/// One part of the chain on one rank: its forward, the gradient of its input, the gradients of its weights.
class PartModule {
 public:
  PartModule() = default;
  PartModule(const PartModule&) = delete;
  PartModule& operator=(const PartModule&) = delete;
  virtual ~PartModule() = default;

  /// Loss (without a stash) and logits are set by head alone.
  virtual ForwardResult forward(const ForwardContext& context, Payload input) = 0;
  /// Computes no weight gradient; leaves what they need in the weight stash.
  virtual Payload backward_input(BackwardContext context, Payload output_grad) = 0;
  virtual void backward_weight(std::vector<at::Tensor> weight_stash) = 0;
  /// Both at once.
  virtual Payload backward(BackwardContext context, Payload output_grad) {
    std::vector<at::Tensor> weight_stash;
    context.weight_stash = &weight_stash;
    Payload input_grad = backward_input(std::move(context), std::move(output_grad));
    backward_weight(std::move(weight_stash));
    return input_grad;
  }
};

/// What the parts of one stage share.
struct StageShared {
  const ModelConfig& config;
  ParameterSet& parameters;
  const StageOptions& options;
  KernelCounts* counts;
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

inline at::Tensor take_last(std::vector<at::Tensor>& tensors) {
  at::Tensor last = std::move(tensors.back());
  tensors.pop_back();
  return last;
}

/// Calls work(first, count) for rows [first, first + count) in chunks of at most `chunk`.
template <class Work>
void for_chunks(std::int64_t rows, std::int64_t chunk, const Work& work) {
  for (std::int64_t first = 0; first < rows; first += chunk) work(first, std::min(chunk, rows - first));
}

/// "model.layers.3." or "transformer.h.3."
std::string layer_prefix(const ModelConfig& config, int layer);

}  // namespace plait
