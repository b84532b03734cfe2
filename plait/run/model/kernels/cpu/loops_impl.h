#pragma once

#include "plait/run/model/kernels/cpu/attention_impl.h"
#include "plait/run/model/kernels/cpu/loops.h"
#include "plait/run/model/kernels/cpu/vectors.h"

namespace plait::kernels::cpu::PLAIT_ISA {

PLAIT_INLINE float square_root(float x) {
  return __builtin_sqrtf(x);
}
PLAIT_INLINE double square_root(double x) {
  return __builtin_sqrt(x);
}
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

  static void rms_norm(const T* x, const T* w, T* y, Wide* rstd, std::int64_t rows, std::int64_t d, double eps) {
    for (std::int64_t r = 0; r < rows; ++r, x += d, y += d) {
      V squares{};
      for_lanes<T>(d, [&](std::int64_t i, std::int64_t n) {
        const V v = load(x + i, n);
        squares += v * v;
      });
      const Wide mean = lane_sum(squares) / static_cast<Wide>(d);
      rstd[r] = Wide{1} / square_root(mean + static_cast<Wide>(eps));
      for_lanes<T>(d,
                   [&](std::int64_t i, std::int64_t n) { store(y + i, load(x + i, n) * rstd[r] * load(w + i, n), n); });
    }
  }

  static void rms_norm_apply(const T* x, const Wide* rstd, const T* w, T* y, std::int64_t rows, std::int64_t d) {
    for (std::int64_t r = 0; r < rows; ++r, x += d, y += d)
      for_lanes<T>(d,
                   [&](std::int64_t i, std::int64_t n) { store(y + i, load(x + i, n) * rstd[r] * load(w + i, n), n); });
  }

  static void rms_norm_input_grad(const T* dy, const T* x, const Wide* rstd, const T* w, const T* residual, T* dx,
                                  std::int64_t rows, std::int64_t d) {
    for (std::int64_t r = 0; r < rows; ++r, x += d, dy += d, dx += d) {
      V along{};
      for_lanes<T>(d,
                   [&](std::int64_t i, std::int64_t n) { along += load(dy + i, n) * load(w + i, n) * load(x + i, n); });
      // xhat = x rstd; dx = rstd (g - xhat mean(g xhat)), g = dy w
      const Wide factor = lane_sum(along) * rstd[r] * rstd[r] / static_cast<Wide>(d);
      for_lanes<T>(d, [&](std::int64_t i, std::int64_t n) {
        V grad = rstd[r] * (load(dy + i, n) * load(w + i, n) - load(x + i, n) * factor);
        if (residual != nullptr) grad += load(residual + i, n);
        store(dx + i, grad, n);
      });
      if (residual != nullptr) residual += d;
    }
  }

  static void rms_norm_weight_grad(Wide* dw, const T* dy, const T* x, const Wide* rstd, std::int64_t rows,
                                   std::int64_t d) {
    for_lanes<T>(d, [&](std::int64_t i, std::int64_t n) {
      V sum{};
      for (std::int64_t r = 0; r < rows; ++r) sum += load(dy + r * d + i, n) * load(x + r * d + i, n) * rstd[r];
      store(dw + i, load(dw + i, n) + sum, n);
    });
  }

  static void layer_norm(const T* x, const T* w, const T* b, T* y, Wide* mean, Wide* rstd, std::int64_t rows,
                         std::int64_t d, double eps) {
    for (std::int64_t r = 0; r < rows; ++r) {
      const T* row = x + r * d;
      V sum{};
      for_lanes<T>(d, [&](std::int64_t i, std::int64_t n) { sum += load(row + i, n); });
      const Wide centre = lane_sum(sum) / static_cast<Wide>(d);
      Wide squares = 0;
      V whole{};
      for_lanes<T>(d, [&](std::int64_t i, std::int64_t n) {
        const V v = load(row + i, n) - centre;
        if (n == kLanes<T>) {
          whole += v * v;
        } else {
          for (std::int64_t lane = 0; lane < n; ++lane) squares += v[lane] * v[lane];  // not the zeros behind
        }
      });
      squares += lane_sum(whole);
      mean[r] = centre;
      rstd[r] = Wide{1} / square_root(squares / static_cast<Wide>(d) + static_cast<Wide>(eps));
    }
    layer_norm_apply(x, mean, rstd, w, b, y, rows, d);
  }

  static void layer_norm_apply(const T* x, const Wide* mean, const Wide* rstd, const T* w, const T* b, T* y,
                               std::int64_t rows, std::int64_t d) {
    for (std::int64_t r = 0; r < rows; ++r, x += d, y += d)
      for_lanes<T>(d, [&](std::int64_t i, std::int64_t n) {
        store(y + i, (load(x + i, n) - mean[r]) * rstd[r] * load(w + i, n) + load(b + i, n), n);
      });
  }

  static void layer_norm_input_grad(const T* dy, const T* x, const Wide* mean, const Wide* rstd, const T* w,
                                    const T* residual, T* dx, std::int64_t rows, std::int64_t d) {
    for (std::int64_t r = 0; r < rows; ++r, x += d, dy += d, dx += d) {
      V sum{};
      V along{};
      for_lanes<T>(d, [&](std::int64_t i, std::int64_t n) {
        const V g = load(dy + i, n) * load(w + i, n);  // zero in the lanes behind
        sum += g;
        along += g * (load(x + i, n) - mean[r]);
      });
      // xhat = (x - mean) rstd; dx = rstd (g - mean(g) - xhat mean(g xhat)), g = dy w
      const Wide offset = lane_sum(sum) / static_cast<Wide>(d);
      const Wide factor = lane_sum(along) * rstd[r] * rstd[r] / static_cast<Wide>(d);
      for_lanes<T>(d, [&](std::int64_t i, std::int64_t n) {
        const V g = load(dy + i, n) * load(w + i, n);
        V grad = rstd[r] * (g - offset - (load(x + i, n) - mean[r]) * factor);
        if (residual != nullptr) grad += load(residual + i, n);
        store(dx + i, grad, n);
      });
      if (residual != nullptr) residual += d;
    }
  }

  static void layer_norm_weight_grad(Wide* dw, Wide* db, const T* dy, const T* x, const Wide* mean, const Wide* rstd,
                                     std::int64_t rows, std::int64_t d) {
    for_lanes<T>(d, [&](std::int64_t i, std::int64_t n) {
      V weight{};
      V bias{};
      for (std::int64_t r = 0; r < rows; ++r) {
        const V slope = load(dy + r * d + i, n);
        weight += slope * (load(x + r * d + i, n) - mean[r]) * rstd[r];
        bias += slope;
      }
      store(dw + i, load(dw + i, n) + weight, n);
      store(db + i, load(db + i, n) + bias, n);
    });
  }

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
    return {.rms_norm = rms_norm,
            .rms_norm_apply = rms_norm_apply,
            .rms_norm_input_grad = rms_norm_input_grad,
            .rms_norm_weight_grad = rms_norm_weight_grad,
            .layer_norm = layer_norm,
            .layer_norm_apply = layer_norm_apply,
            .layer_norm_input_grad = layer_norm_input_grad,
            .layer_norm_weight_grad = layer_norm_weight_grad,
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
