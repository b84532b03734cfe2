#pragma once

#include "plait/ir/parts.h"
#include "plait/sim/engine_memory/ledger.h"
#include "plait/sim/model_shape.h"

#include <cstdint>
#include <vector>

namespace plait::ledger {

/// Per part what its forward keeps, as plait/run/model/stage_module.h has it.
using Stash = std::vector<Tensors>;

enum class StashRule : std::uint8_t { kEverything, kInputs, kInputsAndAttention };

/// [attn of the stage][slice]
struct Cache {
  std::vector<Tensors> keys;
  std::vector<Tensors> values;
  std::vector<Tensors> key_grads;
  std::vector<Tensors> value_grads;
};

/// Where a slice lies in its sequence.
struct SliceSpan {
  int index = 0;
  std::int64_t first = 0;
  std::int64_t tokens = 0;
};

/// What the machine's kernels take beside their tensors.
struct KernelScratch {
  bool bf16_products_in_place = true;  ///< weight gradients of bf16 runs are added up without a product of their own
};

/// A stage of the engine with blocks in place of tensors: makes, holds and drops them in the order in which
/// plait/run/model does. Chunks of the MLP and of the loss that a run asks for are not covered.
class Module {
 public:
  Module(const ModelShape& shape, PartRange parts, const KernelScratch& scratch, Ledger& ledger);

  Tensors forward(const SliceSpan& slice, Tensors input, Stash* stash, Cache* cache, StashRule rule);
  Stash recompute(const SliceSpan& slice, Stash kept, Cache* cache, StashRule rule);
  Tensors backward_input(const SliceSpan& slice, Tensors output_grad, Stash stash, Stash* weight_stash, Cache* cache);
  void backward_weight(const SliceSpan& slice, Stash weight_stash);
  Tensors backward(const SliceSpan& slice, Tensors output_grad, Stash stash, Cache* cache);

 private:
  enum class Want : std::uint8_t { kOutput, kStashOnly };
  struct Forward {
    const SliceSpan* slice = nullptr;
    Tensors* stash = nullptr;
    Cache* cache = nullptr;
    Want want = Want::kOutput;
    enum class Entry : std::uint8_t { kShared, kCopied, kThere } entry = Entry::kShared;
    Tensors known;
    std::size_t attn_idx = 0;
  };
  struct Backward {
    const SliceSpan* slice = nullptr;
    Tensors stash;
    Tensors* weight_stash = nullptr;
    Cache* cache = nullptr;
    std::size_t attn_idx = 0;
  };
  struct Normed {
    Tensor y;
    Tensors statistics;
  };
  struct Attended {
    Tensor out;
    Tensor lse;
  };
  struct HeadGrads {
    Tensor q, k, v;
  };

  Tensors forward_part(PartKind kind, Forward context, Tensors input);
  Tensors backward_part(PartKind kind, Backward context, Tensors output_grad);
  void weight_part(PartKind kind, Tensors weight_stash);

  Tensors forward_attn(Forward& context, Tensors input);
  Tensors forward_post(Forward& context, const Tensors& input);
  Tensors backward_attn(Backward& context, const Tensors& output_grad);
  Tensors backward_post(Backward& context, const Tensors& output_grad);
  Tensors backward_head(Backward& context);
  Tensors backward_head_whole(Backward& context);
  void forward_loss();
  [[nodiscard]] std::int64_t logit_rows() const;

  Attended attend(const Forward& context, const Tensor& qkv);
  Attended attention(std::int64_t key_tokens);
  HeadGrads attention_grad(std::int64_t key_tokens);
  void add_slices(HeadGrads& grads, const Backward& context);
  Tensor rotated(Tensor qkv, const SliceSpan& slice);
  void grow_rotary(const SliceSpan& slice);

  void begin(const SliceSpan& slice);
  [[nodiscard]] Tensor elements(std::int64_t count, Use use = Use::kTransient) const;
  [[nodiscard]] Tensor wide(std::int64_t count, Use use = Use::kTransient) const;
  [[nodiscard]] Tensor scalar() const;
  [[nodiscard]] Normed norm() const;
  [[nodiscard]] Tensors statistics() const;
  void accumulate_product(std::int64_t rows, std::int64_t columns, bool biased) const;
  [[nodiscard]] std::size_t attn_before(std::size_t part) const;

  const ModelShape& shape_;
  KernelScratch scratch_;
  Ledger& ledger_;
  std::vector<PartKind> kinds_;
  bool is_gpt_;
  bool has_qkv_bias_;
  std::int64_t wide_bytes_;  ///< of a statistic
  std::int64_t rows_ = 0;    ///< B T of the slice that is worked on
  std::int64_t tokens_ = 0;  ///< T of it
  std::int64_t known_positions_ = 0;
  Tensors rotary_;  ///< cosines and sines so far
  Tensor loss_;     ///< from the head's backward to the end of the op
};

}  // namespace plait::ledger
