#include "plait/run/model/kernels/cpu/loops.h"

namespace plait::kernels::cpu {
namespace {

LoopTables choose() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return avx512::tables();
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
