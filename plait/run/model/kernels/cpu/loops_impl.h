#pragma once

#include "plait/run/model/kernels/cpu/attention_impl.h"
#include "plait/run/model/kernels/cpu/loops.h"
#include "plait/run/model/kernels/cpu/norm_impl.h"
#include "plait/run/model/kernels/cpu/vectors.h"

namespace plait::kernels::cpu::PLAIT_ISA {

PLAIT_INLINE float natural_log(float x) {
  return __builtin_logf(x);
}
PLAIT_INLINE double natural_log(double x) {
  return __builtin_log(x);
}

template <class T>
struct LoopCode {
  using V = Vector<T>;
  using Wide = typename WideOf<T>::Type;

  /// 1 / (1 + e^-x), without overflow.
  PLAIT_INLINE static V sigmoid(V x) {
    const auto negative = x < V{};
    const V e = exp(negative ? x : -x);
    return (negative ? e : V{} + Wide{1}) / (Wide{1} + e);
  }

  static void swiglu(const T* gate_up, T* y, std::int64_t rows, std::int64_t f) {
    for (std::int64_t r = 0; r < rows; ++r, gate_up += 2 * f, y += f)
      for_lanes<T>(f, [&](std::int64_t i, std::int64_t n) {
        const V gate = load(gate_up + i, n);
        store(y + i, gate * sigmoid(gate) * load(gate_up + f + i, n), n);
      });
  }

  static void swiglu_grad(T* gate_up, T* dy, std::int64_t rows, std::int64_t f) {
    for (std::int64_t r = 0; r < rows; ++r, gate_up += 2 * f, dy += f)
      for_lanes<T>(f, [&](std::int64_t i, std::int64_t n) {
        const V gate = load(gate_up + i, n);
        const V up = load(gate_up + f + i, n);
        const V slope = load(dy + i, n);
        const V s = sigmoid(gate);
        const V silu = gate * s;
        store(gate_up + i, slope * up * (s + silu * (Wide{1} - s)), n);
        store(gate_up + f + i, slope * silu, n);
        store(dy + i, silu * up, n);
      });
  }

  /// Twice the argument of the hyperbolic tangent, and its slope.
  struct GeluInner {
    V value;
    V slope;
  };
  PLAIT_INLINE static GeluInner gelu_inner(V x) {
    constexpr Wide kFactor = static_cast<Wide>(1.5957691216057307117597842397375);  // 2 sqrt(2/pi)
    constexpr Wide kCube = static_cast<Wide>(0.044715);
    const V square = x * x;
    return {.value = kFactor * x * (Wide{1} + kCube * square), .slope = kFactor * (Wide{1} + Wide{3} * kCube * square)};
  }

  static void gelu_tanh(const T* x, T* y, std::int64_t n) {
    for_lanes<T>(n, [&](std::int64_t i, std::int64_t lanes) {
      const V v = load(x + i, lanes);
      store(y + i, v * sigmoid(gelu_inner(v).value), lanes);
    });
  }

  static void gelu_tanh_grad(T* x, T* dy, std::int64_t n) {
    for_lanes<T>(n, [&](std::int64_t i, std::int64_t lanes) {
      const V v = load(x + i, lanes);
      const GeluInner inner = gelu_inner(v);
      const V s = sigmoid(inner.value);
      store(x + i, load(dy + i, lanes) * (s + v * s * (Wide{1} - s) * inner.slope), lanes);
      store(dy + i, v * s, lanes);
    });
  }

  static void rotate(T* out, HeadStrides out_strides, const T* heads, HeadStrides strides, HeadShape shape,
                     const Wide* cos, const Wide* sin, Wide direction) {
    const std::int64_t half = shape.size / 2;
    for (std::int64_t b = 0; b < shape.batch; ++b)
      for (std::int64_t t = 0; t < shape.tokens; ++t)
        for (std::int64_t head = 0; head < shape.heads; ++head) {
          const T* from = heads + b * strides.batch + t * strides.token + head * strides.head;
          T* to = out + b * out_strides.batch + t * out_strides.token + head * out_strides.head;
          for_lanes<T>(half, [&](std::int64_t i, std::int64_t n) {
            const V low = load(from + i, n);
            const V high = load(from + half + i, n);
            const V c = load(cos + t * half + i, n);
            const V s = load(sin + t * half + i, n) * direction;
            store(to + i, low * c - high * s, n);
            store(to + half + i, high * c + low * s, n);
          });
        }
  }

  static double cross_entropy(const T* logits, const std::int64_t* targets, Wide* lse, std::int64_t rows,
                              std::int64_t d) {
    double total = 0;
    for (std::int64_t r = 0; r < rows; ++r, logits += d) {
      V largest = V{} - static_cast<Wide>(__builtin_inff());
      for_lanes<T>(d, [&](std::int64_t i, std::int64_t n) {
        const V x = n == kLanes<T> ? load(logits + i) : padded(logits + i, n);
        largest = x > largest ? x : largest;
      });
      const Wide top = lane_max(largest);
      V sum{};
      for_lanes<T>(d, [&](std::int64_t i, std::int64_t n) {
        sum += exp((n == kLanes<T> ? load(logits + i) : padded(logits + i, n)) - top);
      });
      lse[r] = top + natural_log(lane_sum(sum));
      if (targets[r] >= 0) total += static_cast<double>(lse[r]) - static_cast<double>(load(logits + targets[r], 1)[0]);
    }
    return total;
  }

  static void cross_entropy_grad(T* logits, const Wide* lse, const std::int64_t* targets, Wide scale, std::int64_t rows,
                                 std::int64_t d) {
    for (std::int64_t r = 0; r < rows; ++r, logits += d) {
      if (targets[r] < 0) {
        for_lanes<T>(d, [&](std::int64_t i, std::int64_t n) { store(logits + i, V{}, n); });
        continue;
      }
      // The target's slope before it is rounded to T.
      const Wide p = exp(load(logits + targets[r], 1) - lse[r])[0];
      for_lanes<T>(
          d, [&](std::int64_t i, std::int64_t n) { store(logits + i, exp(load(logits + i, n) - lse[r]) * scale, n); });
      store(logits + targets[r], V{} + (p - Wide{1}) * scale, 1);
    }
  }

  static void accumulate_rows(Wide* table, const std::int64_t* ids, const T* x, std::int64_t rows, std::int64_t d) {
    for (std::int64_t r = 0; r < rows; ++r, x += d) {
      Wide* to = table + ids[r] * d;
      for_lanes<T>(d, [&](std::int64_t i, std::int64_t n) { store(to + i, load(to + i, n) + load(x + i, n), n); });
    }
  }

  /// Lanes behind `count` hold minus infinity.
  PLAIT_INLINE static V padded(const T* from, std::int64_t count) {
    V x = load(from, count);
    for (std::int64_t i = count; i < kLanes<T>; ++i) x[i] = static_cast<Wide>(-__builtin_inff());
    return x;
  }

  static Loops<T> table() {
    Loops<T> loops = table_without_attention();
    if constexpr (sizeof(T) <= sizeof(float)) {
      loops.attention = AttentionCode<T>::attention;
      loops.attention_grad = AttentionCode<T>::attention_grad;
    }
    return loops;
  }

 private:
  static Loops<T> table_without_attention() {
    return {.rms_norm = NormCode<T>::rms_norm,
            .rms_norm_apply = NormCode<T>::rms_norm_apply,
            .rms_norm_input_grad = NormCode<T>::rms_norm_input_grad,
            .rms_norm_weight_grad = NormCode<T>::rms_norm_weight_grad,
            .layer_norm = NormCode<T>::layer_norm,
            .layer_norm_apply = NormCode<T>::layer_norm_apply,
            .layer_norm_input_grad = NormCode<T>::layer_norm_input_grad,
            .layer_norm_weight_grad = NormCode<T>::layer_norm_weight_grad,
            .swiglu = swiglu,
            .swiglu_grad = swiglu_grad,
            .gelu_tanh = gelu_tanh,
            .gelu_tanh_grad = gelu_tanh_grad,
            .rotate = rotate,
            .attention = nullptr,
            .attention_grad = nullptr,
            .cross_entropy = cross_entropy,
            .cross_entropy_grad = cross_entropy_grad,
            .accumulate_rows = accumulate_rows};
  }
};

LoopTables tables() {
  return {.f32 = LoopCode<float>::table(), .f64 = LoopCode<double>::table(), .bf16 = LoopCode<Bf16>::table()};
}

}  // namespace plait::kernels::cpu::PLAIT_ISA
