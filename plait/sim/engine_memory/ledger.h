#pragma once

#include "plait/sim/rank_memory.h"

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace plait::ledger {

/// What a block is held for, as MemoryOwners names it.
enum class Use : std::uint8_t {
  kWeights,
  kGradients,
  kOptimizer,
  kStash,
  kLogits,
  kWeightStash,
  kBuffers,
  kTransient,
  kFixed,
};
inline constexpr int kNumUses = 9;

/// One rank's account: bytes that live, and what they were for when there were most.
class Ledger {
 public:
  void add(Use use, std::int64_t bytes) {
    held_[static_cast<std::size_t>(use)] += bytes;
    live_ += bytes;
    if (live_ <= highest_) return;
    highest_ = live_;
    at_highest_ = held_;
  }
  void move(Use from, Use to, std::int64_t bytes) {
    held_[static_cast<std::size_t>(from)] -= bytes;
    held_[static_cast<std::size_t>(to)] += bytes;
  }
  [[nodiscard]] std::int64_t live() const { return live_; }
  /// The highest is of what follows.
  void restart() {
    highest_ = live_;
    at_highest_ = held_;
  }
  [[nodiscard]] MemoryOwners highest() const {
    const auto at = [this](Use use) { return at_highest_[static_cast<std::size_t>(use)]; };
    return {.weights = at(Use::kWeights),
            .gradients = at(Use::kGradients),
            .optimizer = at(Use::kOptimizer),
            .stash = at(Use::kStash),
            .logits = at(Use::kLogits),
            .weight_stash = at(Use::kWeightStash),
            .buffers = at(Use::kBuffers),
            .transient = at(Use::kTransient),
            .fixed = at(Use::kFixed)};
  }

 private:
  using Sums = std::array<std::int64_t, kNumUses>;
  Sums held_{};
  Sums at_highest_{};
  std::int64_t live_ = 0;
  std::int64_t highest_ = 0;
};

/// The storage of a tensor: charged from its making to the end of its last handle.
class Block {
 public:
  Block(Ledger& ledger, std::int64_t bytes, Use use) : ledger_(ledger), bytes_(bytes), use_(use) {
    ledger_.add(use_, bytes_);
  }
  ~Block() { ledger_.add(use_, -bytes_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void use_as(Use use) {
    ledger_.move(use_, use, bytes_);
    use_ = use;
  }
  [[nodiscard]] Use use() const { return use_; }
  /// Another rank reads the same bytes: nobody may write.
  void lend() { lent_ = true; }
  [[nodiscard]] bool is_lent() const { return lent_; }

 private:
  Ledger& ledger_;
  std::int64_t bytes_;
  Use use_;
  bool lent_ = false;
};

/// A handle on a tensor's storage, as at::Tensor is one; views are handles on the same block.
using Tensor = std::shared_ptr<Block>;
using Tensors = std::vector<Tensor>;

/// The engine counts in multiples of this (plait/run/engine/memory.h). Bytes.
inline constexpr std::int64_t kRounding = 64;
inline std::int64_t counted(std::int64_t bytes) {
  return (bytes + kRounding - 1) / kRounding * kRounding;
}

inline Tensor make_block(Ledger& ledger, std::int64_t bytes, Use use = Use::kTransient) {
  return bytes == 0 ? nullptr : std::make_shared<Block>(ledger, counted(bytes), use);
}

/// plait/run/model/kernels/types.h: nobody else holds it, so it may be written into.
inline bool is_sole_owner(const Tensor& tensor) {
  return tensor.use_count() == 1 && !tensor->is_lent();
}

}  // namespace plait::ledger
