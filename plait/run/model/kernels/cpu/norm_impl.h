#pragma once

#include "plait/run/model/kernels/cpu/loops.h"
#include "plait/run/model/kernels/cpu/vectors.h"

namespace plait::kernels::cpu::PLAIT_ISA {

PLAIT_INLINE float square_root(float x) {
  return __builtin_sqrtf(x);
}
PLAIT_INLINE double square_root(double x) {
  return __builtin_sqrt(x);
}

/// RMS norm and layer norm; see loops.h.
template <class T>
struct NormCode {
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
};

}  // namespace plait::kernels::cpu::PLAIT_ISA
