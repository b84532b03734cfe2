#pragma once

#include <cstdint>

/// Single-pass loops over dense host memory, compiled once for every instruction set and chosen at start. Each equals the
/// plain ATen composition of the kernel that calls it. R rows, D wide; a row is dense.
namespace plait::kernels::cpu {

/// bfloat16: the upper half of a float.
struct Bf16 {
  std::uint16_t bits;
};

/// Type of sums and statistics over values of type T.
template <class T>
struct WideOf {
  using Type = float;
};
template <>
struct WideOf<double> {
  using Type = double;
};

/// Strides of [B,T,heads,H] in elements; the last dimension is dense.
struct HeadStrides {
  std::int64_t batch = 0;
  std::int64_t token = 0;
  std::int64_t head = 0;
};
struct HeadShape {
  std::int64_t batch = 0;
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t size = 0;
};

/// Heads of [B,T,heads,H].
template <class T>
struct HeadData {
  T* data = nullptr;
  HeadStrides strides;
};
struct AttentionShape {
  std::int64_t batch = 0;
  std::int64_t heads = 0;     ///< of queries
  std::int64_t kv_heads = 0;  ///< divide them
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t size = 0;  ///< H, a multiple of kHeadMultiple, at most kLargestHead
  bool causal = false;
};
inline constexpr std::int64_t kHeadMultiple = 16;
inline constexpr std::int64_t kLargestHead = 256;
/// Numbers of a thread's scratch for attention, of which heads of size H touch a share of H / kLargestHead.
inline constexpr std::int64_t kAttentionScratch = std::int64_t{1} << 20;

template <class T>
struct Loops {
  using Wide = typename WideOf<T>::Type;

  /// y = x rstd w, with rstd = 1 / sqrt(mean(x^2) + eps) kept per row.
  void (*rms_norm)(const T* x, const T* w, T* y, Wide* rstd, std::int64_t rows, std::int64_t d, double eps);
  void (*rms_norm_apply)(const T* x, const Wide* rstd, const T* w, T* y, std::int64_t rows, std::int64_t d);
  /// dx = residual + gradient of x; residual may be null.
  void (*rms_norm_input_grad)(const T* dy, const T* x, const Wide* rstd, const T* w, const T* residual, T* dx,
                              std::int64_t rows, std::int64_t d);
  /// dw += sum over rows of dy x rstd.
  void (*rms_norm_weight_grad)(Wide* dw, const T* dy, const T* x, const Wide* rstd, std::int64_t rows, std::int64_t d);

  /// y = (x - mean) rstd w + b, with mean and rstd = 1 / sqrt(variance + eps) kept per row.
  void (*layer_norm)(const T* x, const T* w, const T* b, T* y, Wide* mean, Wide* rstd, std::int64_t rows,
                     std::int64_t d, double eps);
  void (*layer_norm_apply)(const T* x, const Wide* mean, const Wide* rstd, const T* w, const T* b, T* y,
                           std::int64_t rows, std::int64_t d);
  /// dx = residual + gradient of x; residual may be null.
  void (*layer_norm_input_grad)(const T* dy, const T* x, const Wide* mean, const Wide* rstd, const T* w,
                                const T* residual, T* dx, std::int64_t rows, std::int64_t d);
  /// dw += sum over rows of dy xhat; db += sum over rows of dy.
  void (*layer_norm_weight_grad)(Wide* dw, Wide* db, const T* dy, const T* x, const Wide* mean, const Wide* rstd,
                                 std::int64_t rows, std::int64_t d);

  /// y = silu(gate) up; gate_up is [R,2F], y [R,F].
  void (*swiglu)(const T* gate_up, T* y, std::int64_t rows, std::int64_t f);
  /// gate_up becomes its gradient, dy the activation.
  void (*swiglu_grad)(T* gate_up, T* dy, std::int64_t rows, std::int64_t f);

  /// y = x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), which is 0.5 x (1 + tanh(half of that)).
  void (*gelu_tanh)(const T* x, T* y, std::int64_t n);
  /// x becomes its gradient, dy the activation.
  void (*gelu_tanh_grad)(T* x, T* dy, std::int64_t n);

  /// out = heads turned by the angles of cos and direction * sin, [T,H/2]; out may be heads.
  void (*rotate)(T* out, HeadStrides out_strides, const T* heads, HeadStrides strides, HeadShape shape, const Wide* cos,
                 const Wide* sin, Wide direction);

  /// Softmax attention, and its gradients given those of the output. lse is [B,heads,T], natural log. wide_dq holds
  /// heads / kv_heads [T,H] where T is narrower than fp32. Scratch is aligned to 64 bytes. Null where the type has none.
  void (*attention)(const AttentionShape& shape, HeadData<const T> q, HeadData<const T> k, HeadData<const T> v,
                    HeadData<T> out, float* lse, float* scratch);
  void (*attention_grad)(const AttentionShape& shape, HeadData<const T> dout, HeadData<const T> q, HeadData<const T> k,
                         HeadData<const T> v, HeadData<const T> out, const float* lse, HeadData<T> dq, HeadData<T> dk,
                         HeadData<T> dv, float* wide_dq, float* scratch);

  /// Sum over rows with 0 <= target of lse - logit of the target; lse is kept per row.
  double (*cross_entropy)(const T* logits, const std::int64_t* targets, Wide* lse, std::int64_t rows, std::int64_t d);
  /// logits become scale (softmax - one-hot); rows with a target below 0 become zero.
  void (*cross_entropy_grad)(T* logits, const Wide* lse, const std::int64_t* targets, Wide scale, std::int64_t rows,
                             std::int64_t d);

  /// table[ids[r]] += x[r], in order.
  void (*accumulate_rows)(Wide* table, const std::int64_t* ids, const T* x, std::int64_t rows, std::int64_t d);
};

/// The loops for this processor.
template <class T>
const Loops<T>& loops();

/// One instruction set's loops.
struct LoopTables {
  Loops<float> f32;
  Loops<double> f64;
  Loops<Bf16> bf16;
};
namespace base {
LoopTables tables();
}
namespace avx2 {
LoopTables tables();
}
namespace avx512 {
LoopTables tables();
}
namespace avx512bf16 {
LoopTables tables();
}
namespace amx {
/// Replaces what tile registers do faster.
void use_tiles(Loops<Bf16>& loops);
}  // namespace amx

}  // namespace plait::kernels::cpu
