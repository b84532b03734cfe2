#pragma once

// Small matrix products in registers, for loops that need products between steps of their own.

#include "plait/run/model/kernels/cpu/vectors.h"

namespace plait::kernels::cpu::PLAIT_ISA {

PLAIT_INLINE std::int64_t least(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
PLAIT_INLINE std::int64_t largest(std::int64_t a, std::int64_t b) {
  return a > b ? a : b;
}

/// fp32 numbers in rows that are `stride` apart.
struct Matrix {
  float* data;
  std::int64_t stride;
};

// As many sums as registers hold beside the operands.
inline constexpr std::int64_t kTileRows = 6;
#ifdef __AVX512F__
inline constexpr unsigned kTileVectors = 4;
#else
inline constexpr unsigned kTileVectors = 1;
#endif

/// C (+)= A B over `depth`. A's elements lie a.stride apart along the rows of C and a_step along the depth, so that it may be
/// the transpose of what is stored.
template <unsigned Rows, unsigned Vectors>
void multiply_tile(Matrix a, std::int64_t a_step, Matrix b, Matrix c, std::int64_t depth, bool adds) {
  constexpr std::int64_t kWidth = kLanes<float>;
  F32 sums[Rows][Vectors];
#pragma GCC unroll 8
  for (unsigned row = 0; row < Rows; ++row) {
#pragma GCC unroll 8
    for (unsigned v = 0; v < Vectors; ++v) sums[row][v] = adds ? load(c.data + row * c.stride + v * kWidth) : F32{};
  }
  const float* left = a.data;
  const float* right = b.data;
  for (std::int64_t k = 0; k < depth; ++k, left += a_step, right += b.stride) {
    F32 columns[Vectors];
#pragma GCC unroll 8
    for (unsigned v = 0; v < Vectors; ++v) columns[v] = load(right + v * kWidth);
#pragma GCC unroll 8
    for (unsigned row = 0; row < Rows; ++row) {
      const F32 factor = splat(left[row * a.stride], F32{});
#pragma GCC unroll 8
      for (unsigned v = 0; v < Vectors; ++v) sums[row][v] += factor * columns[v];
    }
  }
#pragma GCC unroll 8
  for (unsigned row = 0; row < Rows; ++row) {
#pragma GCC unroll 8
    for (unsigned v = 0; v < Vectors; ++v) store(c.data + row * c.stride + v * kWidth, sums[row][v]);
  }
}

template <unsigned Vectors>
PLAIT_INLINE void multiply_rows(Matrix a, std::int64_t a_step, Matrix b, Matrix c, std::int64_t rows,
                                std::int64_t depth, bool adds) {
  static_assert(kTileRows == 6);
  switch (rows) {
    case 6: return multiply_tile<6, Vectors>(a, a_step, b, c, depth, adds);
    case 5: return multiply_tile<5, Vectors>(a, a_step, b, c, depth, adds);
    case 4: return multiply_tile<4, Vectors>(a, a_step, b, c, depth, adds);
    case 3: return multiply_tile<3, Vectors>(a, a_step, b, c, depth, adds);
    case 2: return multiply_tile<2, Vectors>(a, a_step, b, c, depth, adds);
    default: return multiply_tile<1, Vectors>(a, a_step, b, c, depth, adds);
  }
}

/// The same for up to kTileRows rows and any number of whole vectors.
inline void multiply(Matrix a, std::int64_t a_step, Matrix b, Matrix c, std::int64_t rows, std::int64_t columns,
                     std::int64_t depth, bool adds) {
  constexpr std::int64_t kTileColumns = kTileVectors * kLanes<float>;
  std::int64_t at = 0;
  for (; at + kTileColumns <= columns; at += kTileColumns)
    multiply_rows<kTileVectors>(a, a_step, {b.data + at, b.stride}, {c.data + at, c.stride}, rows, depth, adds);
  for (; at < columns; at += kLanes<float>)
    multiply_rows<1>(a, a_step, {b.data + at, b.stride}, {c.data + at, c.stride}, rows, depth, adds);
}

/// One step of `transpose`: swaps lanes Distance apart between rows as far apart.
template <int Distance, int... Lanes>
PLAIT_INLINE void exchange(F32* rows, LaneList<Lanes...> /*lanes*/) {
#pragma GCC unroll 16
  for (int row = 0; row < 16; ++row) {
    if ((row & Distance) != 0) continue;
    const F32 a = rows[row];
    const F32 b = rows[row + Distance];
    rows[row] = __builtin_shufflevector(a, b, ((Lanes & Distance) == 0 ? Lanes : 16 + Lanes - Distance)...);
    rows[row + Distance] = __builtin_shufflevector(a, b, ((Lanes & Distance) == 0 ? Lanes + Distance : 16 + Lanes)...);
  }
}

/// A square of 16 by 16.
PLAIT_INLINE void transpose(F32* rows) {
  exchange<1>(rows, LanesOfF32{});
  exchange<2>(rows, LanesOfF32{});
  exchange<4>(rows, LanesOfF32{});
  exchange<8>(rows, LanesOfF32{});
}

}  // namespace plait::kernels::cpu::PLAIT_ISA
