#pragma once

// Vectors of 64 bytes on GCC's vector extensions: the compiler splits them where registers are narrower, so every
// instruction set computes the same lanes in the same order. Only for the files that are compiled per instruction set:
// everything here is inlined into PLAIT_ISA, nothing is shared with the rest of the program.

#include "plait/run/model/kernels/cpu/loops.h"

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#include <cstdint>

#define PLAIT_INLINE [[gnu::always_inline]] inline

namespace plait::kernels::cpu::PLAIT_ISA {

using F32 = float __attribute__((vector_size(64)));
using F64 = double __attribute__((vector_size(64)));
using I32 = std::int32_t __attribute__((vector_size(64)));
using U32 = std::uint32_t __attribute__((vector_size(64)));
using U16 = std::uint16_t __attribute__((vector_size(32)));

template <class T>
struct VectorOf {
  using Type = F32;
  using Lane = float;
  static constexpr std::int64_t kLanes = 16;
};
template <>
struct VectorOf<double> {
  using Type = F64;
  using Lane = double;
  static constexpr std::int64_t kLanes = 8;
};
template <class T>
using Vector = typename VectorOf<T>::Type;
template <class T>
inline constexpr std::int64_t kLanes = VectorOf<T>::kLanes;

PLAIT_INLINE F32 splat(float x, F32 /*like*/) {
  return x - F32{};
}
PLAIT_INLINE F64 splat(double x, F64 /*like*/) {
  return x - F64{};
}

PLAIT_INLINE F32 widen(U16 bits) {
  return reinterpret_cast<F32>(__builtin_convertvector(bits, U32) << 16U);
}
/// Round to nearest, ties to even; NaN stays NaN.
PLAIT_INLINE U16 narrow(F32 x) {
#ifdef __AVX512BF16__
  const auto packed =
      _mm512_cvtneps_pbh(reinterpret_cast<__m512>(x));  // what is smaller than a normal number becomes zero
  U16 bits;
  __builtin_memcpy(&bits, &packed, sizeof(bits));
  return bits;
#else
  const U32 bits = reinterpret_cast<U32>(x);
  const U32 rounded = (bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U;
  const U32 quiet_nan = (bits >> 16U) | 0x40U;
  return __builtin_convertvector(x == x ? rounded : quiet_nan, U16);
#endif
}

/// The first `count` lanes from memory, zeros behind.
template <class T>
PLAIT_INLINE Vector<T> load(const T* from, std::int64_t count = kLanes<T>) {
  if constexpr (sizeof(T) == sizeof(Bf16)) {
    U16 bits{};
    __builtin_memcpy(&bits, from, static_cast<unsigned long>(count) * sizeof(T));
    return widen(bits);
  } else {
    Vector<T> x{};
    __builtin_memcpy(&x, from, static_cast<unsigned long>(count) * sizeof(T));
    return x;
  }
}
template <class T>
PLAIT_INLINE void store(T* to, Vector<T> x, std::int64_t count = kLanes<T>) {
  if constexpr (sizeof(T) == sizeof(Bf16)) {
    const U16 bits = narrow(x);
    __builtin_memcpy(to, &bits, static_cast<unsigned long>(count) * sizeof(T));
  } else {
    __builtin_memcpy(to, &x, static_cast<unsigned long>(count) * sizeof(T));
  }
}

/// Calls body(first, lanes) over [0, n): whole vectors with a constant lane count, then the rest.
template <class T, class Body>
PLAIT_INLINE void for_lanes(std::int64_t n, Body body) {
  constexpr std::int64_t kWhole = kLanes<T>;
  std::int64_t i = 0;
  for (; i + kWhole <= n; i += kWhole) body(i, kWhole);
  if (i < n) body(i, n - i);
}

template <int... Lanes>
struct LaneList {};
using LanesOfF32 = LaneList<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15>;
using LanesOfF64 = LaneList<0, 1, 2, 3, 4, 5, 6, 7>;
PLAIT_INLINE LanesOfF32 lanes_of(F32 /*x*/) {
  return {};
}
PLAIT_INLINE LanesOfF64 lanes_of(F64 /*x*/) {
  return {};
}

/// The lanes Distance further on, round the end.
template <int Distance, class V, int... Lanes>
PLAIT_INLINE V rotated(V x, LaneList<Lanes...> /*lanes*/) {
  return __builtin_shufflevector(x, x, ((Lanes + Distance) % static_cast<int>(sizeof...(Lanes)))...);
}
template <int Distance, class V>
PLAIT_INLINE V rotated(V x) {
  return rotated<Distance>(x, lanes_of(x));
}

/// Sum of the lanes, pairwise.
template <class V>
PLAIT_INLINE auto lane_sum(V x) {
  if constexpr (sizeof(x[0]) == sizeof(float)) x += rotated<8>(x);
  x += rotated<4>(x);
  x += rotated<2>(x);
  x += rotated<1>(x);
  return x[0];
}
template <class V>
PLAIT_INLINE V lanewise_max(V a, V b) {
  return b > a ? b : a;
}
template <class V>
PLAIT_INLINE auto lane_max(V x) {
  if constexpr (sizeof(x[0]) == sizeof(float)) x = lanewise_max(x, rotated<8>(x));
  x = lanewise_max(x, rotated<4>(x));
  x = lanewise_max(x, rotated<2>(x));
  x = lanewise_max(x, rotated<1>(x));
  return x[0];
}

/// e^x to about one unit in the last place, for x <= 88; 0 below -87.
/// \source Cephes (Moshier 1992): reduction by ln 2 in two parts; coefficients of expf
PLAIT_INLINE F32 exp(F32 x) {
  constexpr float kLog2E = 1.44269504088896341F;
  constexpr float kLn2High = 0.693359375F;
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kMagic = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const F32 lowest = splat(-87.0F, x);
  const I32 is_tiny = x < lowest;
  const F32 clamped = is_tiny ? lowest : x;
  const F32 n = (clamped * kLog2E + kMagic) - kMagic;
  const F32 r = clamped - n * kLn2High - n * kLn2Low;
  F32 p = splat(1.9875691500e-4F, x);
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  const F32 mantissa = p * r * r + r + 1.0F;
  const I32 power = (__builtin_convertvector(n, I32) + 127) << 23;
  const F32 result = mantissa * reinterpret_cast<F32>(power);
  return is_tiny ? F32{} : result;
}
PLAIT_INLINE F64 exp(F64 x) {
  for (int i = 0; i < 8; ++i) x[i] = __builtin_exp(x[i]);
  return x;
}

}  // namespace plait::kernels::cpu::PLAIT_ISA
