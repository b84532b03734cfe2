#pragma once

#include <cstdint>

namespace plait {

/// A counter-based generator: number `counter` of the stream `key`. Any number can be drawn without those before it.
/// \source Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators", fig. 15 (SplitMix64)
constexpr std::uint64_t random_bits(std::uint64_t key, std::uint64_t counter) {
  constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15ULL;  // 2^64 / golden ratio, odd
  std::uint64_t z = key + (counter + 1) * kGolden;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31U);
}

/// Uniform in [0, 1), 53 bits.
constexpr double uniform_at(std::uint64_t key, std::uint64_t counter) {
  return static_cast<double>(random_bits(key, counter) >> 11U) * 0x1p-53;
}

}  // namespace plait
