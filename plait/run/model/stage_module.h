#pragma once

#include "plait/ir/parts.h"
#include "plait/run/model/config.h"
#include "plait/run/model/parameters.h"

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace plait {

/// What travels along an edge: the tensors that cross a cut of the chain, in this order. B rows, T tokens of the slice.
///   before norm, head   {x [B,T,D]}
///   before qkv          {normed [B,T,D], x [B,T,D]}
///   before attn         {qkv [B,T,(N+2G)H], x [B,T,D]}
///   before post         {o [B,T,N H], x [B,T,D]}
/// A gradient payload has the tensors of the activation it belongs to.
using Payload = std::vector<at::Tensor>;

/// One of several documents packed in a row.
struct Document {
  std::int64_t row = 0;
  std::int64_t begin = 0;  ///< token in the row
  std::int64_t length = 0;
  friend bool operator==(const Document&, const Document&) = default;
};

/// The data of one (micro-batch, slice).
struct SliceData {
  at::Tensor tokens;                ///< [B, T] int64, input ids of the slice
  at::Tensor targets;               ///< [B, T] int64, next tokens; kIgnoredTarget where masked
  std::int64_t first_position = 0;  ///< position of tokens[:, 0] in its sequence
  /// Which cover all rows, in order: attention stays within them and positions start anew. Empty = a row is a document.
  std::vector<Document> documents;
  double loss_scale =
      1.0;  ///< gradient of the step's loss with respect to this slice's summed loss: 1 / valid tokens of the step
};
inline constexpr std::int64_t kIgnoredTarget = -100;

/// What F leaves in the stash.
enum class StashRule : std::uint8_t {
  kEverything,          ///< what B needs
  kInputs,              ///< the stage's inputs; R runs the whole forward again
  kInputsAndAttention,  ///< also each attention's output and log-sum-exp; R runs all but the attention again
};

/// Kept between F and B of one (stage, micro-batch, slice): per part, the tensors its backward needs. Under the other
/// rules, until R: the stage's inputs, then per part what its attention made.
struct Stash {
  std::vector<std::vector<at::Tensor>> parts;
};
/// Kept between B and W: per part, the (input, output gradient) pairs its weight gradients need.
struct WeightStash {
  std::vector<std::vector<at::Tensor>> parts;
};

/// Keys and values of the slices of one (stage, micro-batch) so far, and their gradients collected in the backward. One
/// entry per attn part of the stage; slices append in order. Also the cache of `generate`.
struct KvCache {
  std::vector<std::vector<at::Tensor>> keys;  ///< [attn][slice] [B,G,T,H]
  std::vector<std::vector<at::Tensor>> values;
  std::vector<std::vector<at::Tensor>> key_grads;  ///< [attn][slice], undefined until a later slice contributed
  std::vector<std::vector<at::Tensor>> value_grads;
};

struct ForwardResult {
  Payload output;     ///< empty after head
  at::Tensor loss;    ///< head without a stash: summed cross entropy over valid targets, fp64 scalar; else undefined
  at::Tensor logits;  ///< head only, when asked for: [B,T,V]
};
enum class KeepLogits : std::uint8_t { kNo, kYes };

struct BackwardResult {
  Payload input_grad;  ///< gradient payload of the cut before the stage; empty for embed
  at::Tensor loss;     ///< head only: summed cross entropy over valid targets, fp64 scalar; else undefined
};

struct StageOptions {
  /// Tokens of a chunk of the MLP: nothing of its width exists for more tokens at once, and F keeps nothing of that width.
  /// None: whole micro-batches, and F keeps the pre-activation.
  std::optional<std::int64_t> mlp_chunk;
  /// Tokens of a chunk of the logits. None: chunks of a few MiB where that costs no time, which is wherever B and W are
  /// one op; else the logits are whole from B to W. Given: also there, at the cost of computing them once more in W.
  std::optional<std::int64_t> loss_chunk;
};

/// Work done so far, for tests and reports.
struct KernelCounts {
  std::int64_t attention_forwards = 0;   ///< blocks of queries against blocks of keys
  std::int64_t attention_backwards = 0;  ///< the same
  std::int64_t gemm_flops = 0;           ///< of weight products, 2 per multiply-add
  friend bool operator==(const KernelCounts&, const KernelCounts&) = default;
  KernelCounts& operator+=(const KernelCounts& other) {
    attention_forwards += other.attention_forwards;
    attention_backwards += other.attention_backwards;
    gemm_flops += other.gemm_flops;
    return *this;
  }
  friend KernelCounts operator-(const KernelCounts& a, const KernelCounts& b) {
    return {.attention_forwards = a.attention_forwards - b.attention_forwards,
            .attention_backwards = a.attention_backwards - b.attention_backwards,
            .gemm_flops = a.gemm_flops - b.gemm_flops};
  }
};

/// A run of parts with hand-ordered forward, input gradient and weight gradient: no autograd anywhere.
///
/// Where a stash is kept, head does nothing in forward and both loss and gradient at the start of the backward, so that the
/// logits of several micro-batches never exist together.
///
/// backward_input followed by backward_weight gives exactly what a full backward gives (the split is real: backward_input
/// never computes a weight gradient). Not thread-safe; each rank owns its modules.
class StageModule {
 public:
  /// `parameters` must hold the parameters of `parts` (and the token table, if tied and head is among them) and outlive
  /// the module. The module's use of the token table as head has its own accumulator.
  StageModule(const ModelConfig& config, PartRange parts, ParameterSet& parameters, const StageOptions& options = {});
  ~StageModule();
  StageModule(StageModule&&) noexcept;
  StageModule& operator=(StageModule&&) noexcept;

  /// \param input  payload of the cut before the stage; ignored by embed. It is consumed: where nobody else holds a tensor
  ///               of it, its storage may be reused
  /// \param stash  filled if not null; null in forward-only programs
  /// \param cache  null for whole sequences
  ForwardResult forward(const SliceData& data, Payload input, Stash* stash, KvCache* cache,
                        KeepLogits keep = KeepLogits::kNo, StashRule rule = StashRule::kEverything);

  /// The stash as a forward under kEverything leaves it, from one that was kept under `rule`.
  Stash recompute(const SliceData& data, Stash kept, KvCache* cache, int slice_idx, StashRule rule);

  /// \param output_grad  gradient payload of the cut behind the stage; ignored by head, whose gradient is data.loss_scale
  BackwardResult backward_input(const SliceData& data, Payload output_grad, Stash stash, WeightStash* weight_stash,
                                KvCache* cache, int slice_idx);

  /// Adds to the gradient accumulators of the parameters.
  void backward_weight(WeightStash weight_stash);

  /// Both at once, part by part: what one part's weight gradient needs is gone before the next part begins.
  BackwardResult backward(const SliceData& data, Payload output_grad, Stash stash, KvCache* cache, int slice_idx);

  [[nodiscard]] const KernelCounts& counts() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace plait
