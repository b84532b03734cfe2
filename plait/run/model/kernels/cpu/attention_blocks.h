#pragma once

#include "plait/run/model/kernels/cpu/attention_heads.h"
#include "plait/run/model/kernels/cpu/loops.h"
#include "plait/run/model/kernels/cpu/tiles.h"
#include "plait/run/model/kernels/cpu/vectors.h"

namespace plait::kernels::cpu::PLAIT_ISA {

// Blocks of kQueries queries against panels of kKeys keys: the scores of a block and a panel stay in the first cache, what is packed of a
// span of kSpan keys in the second. All arithmetic is fp32.
inline constexpr std::int64_t kQueries = 16 * kTileRows;
inline constexpr std::int64_t kKeys = 64;

/// Where the parts of a thread's scratch lie.
struct AttentionScratch {
  explicit AttentionScratch(float* memory) : next_(memory) {}
  float* take(std::int64_t rows, std::int64_t width) {
    float* taken = next_;
    next_ += rows * width;
    return taken;
  }

 private:
  float* next_;
};
static_assert(4 * kSpan + 5 * kSpan * kLargestHead + 2 * kQueries * (kKeys + 2 * kLargestHead) <= kAttentionScratch);

/// `count` rows as fp32, one behind the other.
template <class T>
void pack(HeadRows<const T> from, std::int64_t count, std::int64_t size, float* to) {
  for (std::int64_t row = 0; row < count; ++row)
    for (std::int64_t i = 0; i < size; i += kLanes<float>) store(to + row * size + i, load(from.row(row) + i));
}

/// Rows times `scale` as panels of kKeys columns: element h of key j of panel p at (p size + h) kKeys + j; zeros behind the last key.
template <class T>
void pack_transposed(HeadRows<const T> from, std::int64_t count, std::int64_t size, float scale, float* to) {
  constexpr unsigned kSide = kLanes<float>;
  for (std::int64_t key = 0; key < (count + kKeys - 1) / kKeys * kKeys; key += kSide)
    for (std::int64_t h = 0; h < size; h += kSide) {
      F32 square[kSide];
      for (unsigned j = 0; j < kSide; ++j) square[j] = key + j < count ? load(from.row(key + j) + h) * scale : F32{};
      transpose(square);
      float* corner = to + (key / kKeys * size + h) * kKeys + key % kKeys;
      for (unsigned i = 0; i < kSide; ++i) store(corner + i * kKeys, square[i]);
    }
}

/// Keys of a panel that begins with key `first` and holds `count`, as far as the query sees them.
PLAIT_INLINE std::int64_t seen(const AttentionShape& shape, std::int64_t query, std::int64_t first,
                               std::int64_t count) {
  return shape.causal ? largest(0, least(count, query + 1 - first)) : count;
}

/// x where the lane's key is seen, `other` behind.
PLAIT_INLINE F32 where_seen(F32 x, std::int64_t at, std::int64_t seen, float other) {
  if (at + kLanes<float> <= seen) return x;
  const I32 lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return lane < static_cast<std::int32_t>(seen - at) ? x : splat(other, x);
}

}  // namespace plait::kernels::cpu::PLAIT_ISA
