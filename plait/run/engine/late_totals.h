#pragma once

#include "plait/base/ids.h"
#include "plait/run/engine/rank_device.h"

#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace plait {

/// What the host reads of a step only at its end (HostReads::kAtEndOfStep): until then it stays on the rank's device, and
/// clipping, and refusing an update that is not finite, are done by what lies there.
struct LateTotals {
  LateTotals(std::size_t num_data, std::int64_t num_parameters, at::Device device);

  at::Tensor losses;      ///< [num data] fp64
  at::Tensor squares;     ///< [num parameters] fp64: of gradients that are counted on this rank
  at::Tensor norm;        ///< fp64 scalar: the global norm
  at::Tensor clip;        ///< fp64 scalar: what gradients are multiplied with
  at::Tensor not_finite;  ///< [1] fp32: 1 if nothing is to be updated, as torch's fused optimizers take it

  void begin_step();
  /// Call when `squares` is complete. What goes into the sum over the ranks: a loss that is not finite makes it NaN.
  void give_squares(const at::Tensor& summand) const;
  /// \param summed  over all ranks
  void take_norm(const at::Tensor& summed, std::optional<double> clip_norm);

  // Of steps that did not know the norm, behind take_norm.
  /// [] bool: they do not stand.
  [[nodiscard]] at::Tensor undoes() const;
  /// [1] fp32, as `not_finite`: 1 if nothing is to be stepped again.
  [[nodiscard]] at::Tensor steps_once() const;
};

/// Sum of squares in fp64 as a scalar on the tensor's device.
at::Tensor square_sum_on_device(const at::Tensor& tensor);

/// torch.nn.utils.clip_grad_norm_: keeps the scale finite for a norm of zero.
inline constexpr double kTinyNorm = 1e-6;

}  // namespace plait
