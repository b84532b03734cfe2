#include "tools/validate/fit.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace plait::validate {
namespace {

constexpr std::size_t kNumConstants = 7;
constexpr double kPenalty = 0.002;
/// Errors far above it count by their size, not their square: single odd measurements shall not bend the constants.
constexpr double kSquareBelow = 0.02;
constexpr int kSteps = 220;
/// A simplex that has shrunk too early starts again around its best point.
constexpr int kRounds = 4;

using Point = std::array<double, kNumConstants>;  // logs

Calibration at(const Point& p) {
  return {.gemm_efficiency = std::exp(p[0]),
          .gemm_half_width = std::exp(p[6]),
          .gemm_seconds = std::exp(p[1]),
          .attention_efficiency = std::exp(p[2]),
          .memory_efficiency = std::exp(p[3]),
          .link_efficiency = std::exp(p[4]),
          .network_bytes_per_second = std::exp(p[5])};
}

Point logs(const Calibration& c) {
  return {std::log(c.gemm_efficiency),   std::log(c.gemm_seconds),    std::log(c.attention_efficiency),
          std::log(c.memory_efficiency), std::log(c.link_efficiency), std::log(c.network_bytes_per_second),
          std::log(c.gemm_half_width)};
}

}  // namespace

Result<Calibration> fit(const std::vector<const PreparedRow*>& rows) {
  const Point start = logs(Calibration{});
  std::optional<Error> error;
  const auto loss = [&](const Point& p) {
    double sum = 0;
    for (const PreparedRow* row : rows) {
      auto seconds = predict(*row, at(p));
      if (!seconds) {
        error = seconds.error();
        return 1e9;
      }
      const double off = std::log(*seconds / row->row.seconds);
      sum += std::sqrt(off * off + kSquareBelow * kSquareBelow) / static_cast<double>(rows.size());
    }
    for (std::size_t i = 0; i < kNumConstants; ++i) sum += kPenalty * (p[i] - start[i]) * (p[i] - start[i]);
    return sum;
  };
  Point best = start;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::pair<double, Point>> simplex;
    simplex.emplace_back(loss(best), best);
    for (std::size_t i = 0; i < kNumConstants; ++i) {
      Point p = best;
      p[i] += round % 2 == 0 ? 0.4 : -0.3;
      simplex.emplace_back(loss(p), p);
    }
    const auto mix = [](const Point& a, const Point& b, double t) {
      Point p;
      for (std::size_t i = 0; i < kNumConstants; ++i) p[i] = a[i] + t * (b[i] - a[i]);
      return p;
    };
    for (int step = 0; step < kSteps && !error; ++step) {
      std::sort(simplex.begin(), simplex.end());
      Point center{};
      for (std::size_t k = 0; k < kNumConstants; ++k)
        for (std::size_t i = 0; i < kNumConstants; ++i)
          center[i] += simplex[k].second[i] / static_cast<double>(kNumConstants);
      auto& worst = simplex.back();
      const auto attempt = [&](double t) {
        const Point p = mix(center, worst.second, t);
        return std::pair(loss(p), p);
      };
      const auto reflected = attempt(-1);
      if (reflected.first < simplex.front().first) {
        worst = std::min(reflected, attempt(-2));
      } else if (reflected.first < simplex[kNumConstants - 1].first) {
        worst = reflected;
      } else if (const auto contracted = attempt(0.5); contracted.first < worst.first) {
        worst = contracted;
      } else {
        for (std::size_t k = 1; k < simplex.size(); ++k) {
          const Point p = mix(simplex[0].second, simplex[k].second, 0.5);
          simplex[k] = {loss(p), p};
        }
      }
    }
    std::sort(simplex.begin(), simplex.end());
    best = simplex.front().second;
  }
  if (error) return *error;
  return at(best);
}

}  // namespace plait::validate
