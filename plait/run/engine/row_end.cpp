// The end of a row of which losses and norms are still on the rank's device.

#include "plait/run/engine/row_runner.h"

#include <ATen/core/Tensor.h>

#include <cmath>

namespace plait {

/// Returns when the device has done all that the row gave it. What fails there is told here, of whatever op it was.
bool RowRunner::end_row() {
  try {
    read_late_totals();
  } catch (const c10::Error& error) {
    return fail(ErrorCode::kTransport, "engine.op_failed", error.what_without_backtrace());
  }
  return true;
}

/// Copies to the host wait for the rank's stream, which is behind everything that other ranks did with its tensors.
void RowRunner::read_late_totals() {
  const LateTotals& late = *run_.late;
  const at::Tensor losses = late.losses.cpu();
  const auto* loss = losses.const_data_ptr<double>();
  run_.losses.assign(loss, loss + losses.numel());
  const at::Tensor squares = late.squares.cpu();
  const auto* square = squares.const_data_ptr<double>();
  for (const RankGroup& group : worker_.groups_)
    for (const auto& [place, parameter] : group.counted())
      if (!std::isfinite(square[place])) run_.not_finite.push_back(place);
  run_.grad_norm = late.norm.item<double>();
  if (std::isfinite(run_.grad_norm)) worker_.clip_factor_ = late.clip.item<double>();
}

}  // namespace plait
