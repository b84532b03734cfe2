#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <thread>

namespace plait {

using Clock = std::chrono::steady_clock;

/// How long each of `num_threads` that hand over to each other may spin: about what it costs to wake a sleeping core (in
/// a virtual machine 50 to 150 us, most of it on the side of the waker) while each has a core of its own, else not at all.
inline Clock::duration spin_time(int num_threads) {
  constexpr std::chrono::microseconds kWakeUp{200};
  return static_cast<unsigned>(num_threads) <= std::thread::hardware_concurrency() ? kWakeUp : Clock::duration::zero();
}

/// Where one thread waits for others: it spins a while, then sleeps. Without a spin_time() it spins for about as long as
/// the system's calls for a sleep take, so that two ranks on one core still progress.
///
/// No wake-up is lost: a ringer publishes its data, then rings; the waiter reads the number of rings before it looks at
/// the data, and the kernel lets it sleep only while that number is unchanged.
///
/// \tparam Flag  FUTEX_PRIVATE_FLAG among threads; none in memory that processes share
template <int Flag>
class alignas(64) BasicDoorbell {
 public:
  /// Before the first wait.
  void set_spin(Clock::duration spin) { spin_ = spin; }

  /// Call after publishing what the waiter looks for.
  void ring() {
    rings_.fetch_add(1, std::memory_order_seq_cst);
    if (sleeping_.load(std::memory_order_seq_cst))
      syscall(SYS_futex, address(), FUTEX_WAKE | Flag, 1, nullptr, nullptr, 0);
  }

  /// Returns true once ready() does, false at the deadline. One thread at a time.
  template <class Ready>
  bool wait(const Ready& ready, Clock::time_point deadline) {
    if (spin(ready)) return true;
    if (spin_ > Clock::duration::zero()) {
      const Clock::time_point until = Clock::now() + spin_;
      // Whoever is to ring may have been put on this very core.
      for (sched_yield(); !spin(ready); sched_yield())
        if (Clock::now() > until) break;
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
  template <class Ready>
  static bool spin(const Ready& ready) {
    for (int i = 0; i < kSpins; ++i) {
      if (ready()) return true;
      __builtin_ia32_pause();
    }
    return false;
  }

  static constexpr int kSpins = 64;  // about 3 us of pauses on current x86: near the cost of one sleep and wake-up
  std::uint32_t* address() { return reinterpret_cast<std::uint32_t*>(&rings_); }
  static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));
  std::atomic<std::uint32_t> rings_ = 0;
  std::atomic<bool> sleeping_ = false;
  Clock::duration spin_{0};
};
using Doorbell = BasicDoorbell<FUTEX_PRIVATE_FLAG>;
using SharedDoorbell = BasicDoorbell<0>;  ///< between processes, in zeroed memory that they share

}  // namespace plait
