#pragma once

#include "plait/run/model/config.h"
#include "plait/run/model/parameters.h"
#include "plait/run/train/breakdown.h"

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <vector>

namespace plait::bench {

/// The weight products of a step again, alone: what the matrix products of this library reach on this machine at the
/// sizes of the step. Each rank's products run on a thread of their own, all ranks at once, one size after the other:
/// on operands that stay the same, so that caches serve them as well as they can, and once with all operands in memory
/// and none in the caches. What a step finds in the caches lies between.
class GemmReplay {
 public:
  /// \param ranks  the products of each rank of a step
  GemmReplay(const std::vector<Breakdown>& ranks, const ModelConfig& config, ComputeType type);

  /// Times every size once more.
  void pass();

  enum class Operands { kInCaches, kInMemory };
  /// Floating-point operations per second over all ranks, of each pass: a rank's operations over the time of its
  /// products, each as often as in the step.
  [[nodiscard]] const std::vector<double>& rates(Operands where = Operands::kInCaches) const {
    return where == Operands::kInCaches ? rates_ : rates_in_memory_;
  }
  /// Operations of the step's weight products over all ranks.
  [[nodiscard]] double flops() const { return flops_; }

  /// Seconds of one product, in each pass, with the rank that has it.
  struct Product {
    std::size_t rank = 0;
    Breakdown::GemmTotal step;  ///< what it was in the step
    std::vector<double> seconds;
    std::vector<double> seconds_in_memory;
  };
  [[nodiscard]] const std::vector<Product>& products() const { return products_; }

 private:
  struct Tensors {
    at::Tensor x;
    at::Tensor dy;
    at::Tensor weight;
    at::Tensor grad;
  };
  void run_product(std::size_t index) const;
  void time_product(std::size_t index, const at::Tensor& eviction);
  [[nodiscard]] double rate_of(std::size_t rank, Operands where) const;

  std::vector<Product> products_;
  std::vector<Tensors> tensors_;  ///< of each product
  std::vector<bool> conv1d_;      ///< of each product: the weight is [in, out]
  std::vector<double> rates_;
  std::vector<double> rates_in_memory_;
  double flops_ = 0;
};

/// Operations per second of one large square product of the compute type, the best of a few.
double square_gemm_rate(ComputeType type);

/// Bytes per second of copies that move `bytes` in all, half of them read and half written; the best of a few. Small ones
/// stay in the caches.
double copy_bandwidth(std::int64_t bytes);

}  // namespace plait::bench
