#pragma once

#include "plait/base/result.h"
#include "plait/run/engine/doorbell.h"

#include <mpi.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace plait {

/// Throws std::runtime_error with MPI's own words for a call that failed.
void check_mpi(int status, const char* call);

/// Something that has MPI requests under way. Its functions run while the world is held.
class MpiUser {
 public:
  virtual ~MpiUser() = default;
  /// Looks what has arrived or is through; whether anything was.
  virtual bool progress() = 0;
  /// May something move while nobody waits for it?
  [[nodiscard]] virtual bool expects() const = 0;
};

/// One process's hold on MPI. MPI is entered by one thread at a time; who waits for something looks for all, and a thread
/// of its own looks now and then while nobody waits, so that transfers go on while the ranks compute.
class MpiWorld {
 public:
  /// Starts MPI, unless it was. \errors kTransport "mpi.start"
  static Result<> start();
  MpiWorld();
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  [[nodiscard]] int index() const { return index_; }
  [[nodiscard]] int size() const { return size_; }

  /// Held while calling MPI.
  [[nodiscard]] std::unique_lock<std::mutex> hold() { return std::unique_lock(mutex_); }
  void add(MpiUser& user);
  void remove(MpiUser& user);

  /// Lets all users look; false where nothing happened, or another thread is looking.
  bool poll();
  /// Work that needs no MPI, to be done by a later poll() without holding the world; then `done`, while holding it. Call
  /// while holding it.
  void defer(std::function<void()> work, std::function<void()> done);

  /// Something may move from now on while nobody waits: the thread in the background looks more often.
  void expect();

  /// Polls until `ready` (called while holding the world) says yes. False at the deadline, or once `stopped` does.
  bool wait(const std::function<bool()>& ready, const std::function<bool()>& stopped, Clock::time_point deadline);

  /// Called once, from any thread, with what an MPI call said that no rank waits for.
  void on_failure(std::function<void(const std::string&)> handler) { failed_ = std::move(handler); }
  /// Makes no further call of MPI but those of its owner.
  void stop_polling();

 private:
  struct Deferred {
    std::function<void()> work;
    std::function<void()> done;
  };
  void loop();
  bool poll_holding(std::unique_lock<std::mutex>& lock);

  int index_ = 0;
  int size_ = 1;
  std::mutex mutex_;
  std::vector<MpiUser*> users_;
  std::vector<Deferred> deferred_;
  std::function<void(const std::string&)> failed_;
  std::atomic<std::int64_t> last_poll_ = 0;  ///< Clock ticks
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
  bool quit_ = false;  ///< guarded by sleep_mutex_
  std::atomic<bool> expects_ = false;
  std::thread thread_;
};

/// How long to rest between two looks: nothing while something moves, then more and more.
class Patience {
 public:
  /// The next rest; zero: look again at once.
  Clock::duration next(bool moved) {
    const Clock::time_point now = Clock::now();
    if (moved) moved_at_ = now;
    const Clock::duration idle = now - moved_at_;
    if (idle < kHot) return Clock::duration::zero();
    return std::min<Clock::duration>(kLeast + idle / 8, kMost);
  }

 private:
  static constexpr std::chrono::microseconds kHot{50};    // a hand-over of 64 KiB takes less
  static constexpr std::chrono::microseconds kLeast{20};  // below, a sleep costs more than it saves
  static constexpr std::chrono::microseconds kMost{200};
  Clock::time_point moved_at_ = Clock::now();
};

}  // namespace plait
