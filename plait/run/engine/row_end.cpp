// The end of a row whose device is given its work ahead of time.

#include "plait/run/engine/row_runner.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <thread>

namespace plait {

bool RowRunner::end_row() {
  const Clock::time_point deadline = Clock::now() + context_.timeout;
  position_ = row_.instrs.size() - 1;
  try {
    switch (transport_.end_row(worker_.rank_, deadline)) {
      case WaitStatus::kReady: break;
      case WaitStatus::kTimedOut:
        return fail(ErrorCode::kTimeout, "engine.timeout", "others did not enter a collective that this rank is in");
      case WaitStatus::kStopped:
        return fail(ErrorCode::kInterrupted, "engine.stopped", "stopped because another rank failed");
    }
    if (!await_device()) return false;
    read_late_totals();
  } catch (const InternalError&) {
    throw;
  } catch (const c10::Error& error) {
    return fail(ErrorCode::kTransport, "engine.op_failed", error.what_without_backtrace());
  } catch (const std::exception& error) {
    return fail(ErrorCode::kTransport, "engine.op_failed", error.what());
  }
  return true;
}

/// By looking now and then, not by the driver's own wait: that one ends with its kernels alone, and a kernel that waits for
/// a dead peer does not end.
bool RowRunner::await_device() {
  constexpr std::chrono::microseconds kRest{20};
  const Clock::time_point begin = Clock::now();
  while (!worker_.device_.is_idle()) {
    if (transport_.look() == WaitStatus::kStopped)
      return fail(ErrorCode::kInterrupted, "engine.stopped", "stopped because another rank failed");
    if (Clock::now() - begin > context_.timeout)
      return fail(
          ErrorCode::kTimeout, "engine.device_timeout",
          fmt::format("the device has been busy for {:.3f} s since it was given the whole step (limit {:.3f} s); "
                      "a peer's transfer is missing, or allow more time",
                      std::chrono::duration<double>(Clock::now() - begin).count(),
                      std::chrono::duration<double>(context_.timeout).count()));
    std::this_thread::sleep_for(kRest);
  }
  return true;
}

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
