#pragma once

#include "plait/run/model/config.h"

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <vector>

namespace plait::kernels {

/// Angular frequency of each pair of a rotary head, [H/2], with the scaling of Llama 3.1 if the model has it.
/// \source Su et al. 2021, arXiv:2104.09864, eq. 15; transformers, modeling_rope_utils (the llama3 rule)
std::vector<double> rotary_frequencies(const ModelConfig& config);

/// cos and sin of position times frequency, as far as positions have been asked for.
class RotaryTable {
 public:
  RotaryTable(const ModelConfig& config, at::ScalarType type, at::Device device = at::kCPU);

  struct Rows {
    at::Tensor cos;  ///< [T,H/2] of the statistics type
    at::Tensor sin;
  };
  /// Rows [first, first + count), views of the table.
  Rows rows(std::int64_t first, std::int64_t count);

 private:
  void grow(std::int64_t positions);
  std::vector<double> frequencies_;
  at::ScalarType type_;
  at::Device device_;
  at::Tensor cos_;
  at::Tensor sin_;
};

/// Rotates the pairs (i, i + H/2) of heads by their angles.
///
/// \param heads  [B,T,heads,H], any strides with dense heads
/// \param out    as heads; may be heads itself
void rotate(const at::Tensor& out, const at::Tensor& heads, const RotaryTable::Rows& rows);
/// Rotates back: the gradient of rotate.
void rotate_back(const at::Tensor& out, const at::Tensor& heads, const RotaryTable::Rows& rows);

}  // namespace plait::kernels
