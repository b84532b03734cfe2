#include "plait/run/model/kernels/cpu/loops.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace plait::kernels::cpu {
namespace {

#if defined(__x86_64__)
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

/// Tiles of bf16 are there, and the system lets this process use them (it asks to be asked).
bool has_tiles() {
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  constexpr unsigned kLeaf = 7;
  constexpr unsigned kTileBits = (1U << 22U) | (1U << 24U);  // edx: amx-bf16, amx-tile
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid_count(kLeaf, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & kTileBits) != kTileBits) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

LoopTables choose() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (has_avx512() && __builtin_cpu_supports("avx512bf16")) {
    LoopTables tables = avx512bf16::tables();
    if (has_tiles()) amx::use_tiles(tables.bf16);
    return tables;
  }
  if (has_avx512()) return avx512::tables();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2::tables();
#endif
  return base::tables();
}

const LoopTables& chosen() {
  static const LoopTables kTables = choose();
  return kTables;
}

}  // namespace

template <>
const Loops<float>& loops<float>() {
  return chosen().f32;
}
template <>
const Loops<double>& loops<double>() {
  return chosen().f64;
}
template <>
const Loops<Bf16>& loops<Bf16>() {
  return chosen().bf16;
}

}  // namespace plait::kernels::cpu
