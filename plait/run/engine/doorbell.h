#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>

namespace plait {

using Clock = std::chrono::steady_clock;

/// Where one thread waits for others: it spins briefly, then sleeps, so that two ranks on one core still progress.
///
/// No wake-up is lost: a ringer publishes its data, then rings; the waiter reads the number of rings before it looks at
/// the data, and the kernel lets it sleep only while that number is unchanged.
///
/// \tparam Flag  FUTEX_PRIVATE_FLAG among threads; none in memory that processes share
template <int Flag>
class alignas(64) BasicDoorbell {
 public:
  /// Call after publishing what the waiter looks for.
  void ring() {
    rings_.fetch_add(1, std::memory_order_seq_cst);
    if (sleeping_.load(std::memory_order_seq_cst))
      syscall(SYS_futex, address(), FUTEX_WAKE | Flag, 1, nullptr, nullptr, 0);
  }

  /// Returns true once ready() does, false at the deadline. One thread at a time.
  template <class Ready>
  bool wait(const Ready& ready, Clock::time_point deadline) {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (ready()) return true;
      __builtin_ia32_pause();
    }
    for (;;) {
      const std::uint32_t heard = rings_.load(std::memory_order_seq_cst);
      if (ready()) return true;
      const auto left = deadline - Clock::now();
      if (left <= Clock::duration::zero()) return false;
      sleeping_.store(true, std::memory_order_seq_cst);
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
      const timespec timeout{.tv_sec = seconds.count(), .tv_nsec = std::chrono::nanoseconds(left - seconds).count()};
      syscall(SYS_futex, address(), FUTEX_WAIT | Flag, heard, &timeout, nullptr, 0);
      sleeping_.store(false, std::memory_order_seq_cst);
    }
  }

 private:
  static constexpr int kSpins = 64;  // about 3 us of pauses on current x86: near the cost of one sleep and wake-up
  std::uint32_t* address() { return reinterpret_cast<std::uint32_t*>(&rings_); }
  static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));
  std::atomic<std::uint32_t> rings_ = 0;
  std::atomic<bool> sleeping_ = false;
};
using Doorbell = BasicDoorbell<FUTEX_PRIVATE_FLAG>;
using SharedDoorbell = BasicDoorbell<0>;  ///< between processes, in zeroed memory that they share

}  // namespace plait
