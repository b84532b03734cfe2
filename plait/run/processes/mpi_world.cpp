#include "plait/run/processes/mpi_world.h"

#include "plait/base/check.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <exception>
#include <stdexcept>
#include <utility>

namespace plait {

void check_mpi(int status, const char* call) {
  if (status == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> words{};
  int length = 0;
  MPI_Error_string(status, words.data(), &length);
  throw std::runtime_error(
      fmt::format("{}: {}", call, std::string_view(words.data(), static_cast<std::size_t>(length))));
}

Result<> MpiWorld::start() {
  int level = 0;
  int is_started = 0;
  MPI_Initialized(&is_started);
  if (is_started != 0) {
    MPI_Query_thread(&level);
  } else if (const int status = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
             status != MPI_SUCCESS) {
    return make_error(ErrorCode::kTransport, "mpi.start", "MPI does not start (code {})", status);
  }
  if (level < MPI_THREAD_SERIALIZED)
    return make_error(ErrorCode::kTransport, "mpi.start", "this MPI cannot be called by several threads in turn");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  return {};
}

MpiWorld::MpiWorld() {
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &index_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
  thread_ = std::thread([this] { loop(); });
}

MpiWorld::~MpiWorld() {
  stop_polling();
}

void MpiWorld::stop_polling() {
  {
    const std::lock_guard lock(sleep_mutex_);
    quit_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void MpiWorld::add(MpiUser& user) {
  {
    const auto lock = hold();
    users_.push_back(&user);
  }
  expect();
}

void MpiWorld::remove(MpiUser& user) {
  const auto lock = hold();
  std::erase(users_, &user);
}

void MpiWorld::defer(std::function<void()> work, std::function<void()> done) {
  deferred_.push_back({.work = std::move(work), .done = std::move(done)});
}

void MpiWorld::expect() {
  if (expects_.exchange(true)) return;
  const std::lock_guard lock(sleep_mutex_);
  wake_.notify_all();
}

bool MpiWorld::poll_holding(std::unique_lock<std::mutex>& lock) {
  last_poll_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  bool moved = false;
  bool expects = false;
  for (MpiUser* user : users_) {
    moved |= user->progress();
    expects |= user->expects();
  }
  expects_.store(expects, std::memory_order_relaxed);
  if (deferred_.empty()) return moved;
  const Deferred next = std::move(deferred_.front());
  deferred_.erase(deferred_.begin());
  lock.unlock();
  next.work();
  lock.lock();
  next.done();
  return true;
}

bool MpiWorld::poll() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  return lock.owns_lock() && poll_holding(lock);
}

bool MpiWorld::wait(const std::function<bool()>& ready, const std::function<bool()>& stopped,
                    Clock::time_point deadline) {
  Patience patience;
  for (;;) {
    bool moved = false;
    {
      auto lock = hold();
      if (ready()) return true;
      moved = poll_holding(lock);
      if (ready()) return true;
    }
    if (stopped() || Clock::now() >= deadline) return false;
    if (const auto rest = patience.next(moved); rest > Clock::duration::zero()) std::this_thread::sleep_for(rest);
  }
}

void MpiWorld::loop() {
  constexpr std::chrono::microseconds kRest{100};  // between looks while something may be under way
  constexpr std::chrono::milliseconds kQuiet{1};   // and where nothing was for a while
  constexpr std::chrono::milliseconds kIdle{20};   // while nothing may be: a core is better left to a rank
  constexpr std::chrono::milliseconds kAWhile{50};
  pthread_setname_np(pthread_self(), "plait-mpi");
  prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; sleeps of 100 us would otherwise last half as long again
  Clock::time_point moved_at = Clock::now();
  std::unique_lock lock(sleep_mutex_);
  while (!quit_) {
    lock.unlock();
    bool moved = false;
    const Clock::duration unseen =
        Clock::now().time_since_epoch() - Clock::duration(last_poll_.load(std::memory_order_relaxed));
    try {
      if (unseen >= kRest / 2) moved = poll();
    } catch (const std::exception& error) {
      if (failed_) failed_(error.what());
      return;
    }
    if (moved) moved_at = Clock::now();
    lock.lock();
    if (moved || quit_) continue;
    if (!expects_.load(std::memory_order_relaxed))
      wake_.wait_for(lock, kIdle, [this] { return quit_ || expects_.load(std::memory_order_relaxed); });
    else
      wake_.wait_for(lock, Clock::now() - moved_at < kAWhile ? Clock::duration(kRest) : kQuiet);
  }
}

}  // namespace plait
