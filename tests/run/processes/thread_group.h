#pragma once

#include "plait/run/engine/process_group.h"

#include "tests/run/engine/forwarding_transport.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// Threads that take themselves for processes: what runs over several can be tried without MPI, and under sanitizers.
namespace plait::testing {

class ThreadHub {
 public:
  explicit ThreadHub(int size) : size_(size), given_(static_cast<std::size_t>(size)) {}

  /// Everyone's bytes, for all.
  Result<std::vector<std::string>> exchange(int index, std::string bytes) {
    std::unique_lock lock(mutex_);
    const std::uint64_t round = round_;
    given_[static_cast<std::size_t>(index)] = std::move(bytes);
    if (++num_in_ == size_) {
      num_in_ = 0;
      told_ = given_;
      ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round || failure_.has_value(); });
    if (failure_) return *failure_;
    return told_;
  }
  void report(const Error& error) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = error;
    changed_.notify_all();
  }
  std::optional<Error> failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  [[nodiscard]] int size() const { return size_; }

 private:
  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> given_;
  std::vector<std::string> told_;
  std::uint64_t round_ = 0;
  int num_in_ = 0;
  std::optional<Error> failure_;
};

class ThreadGroup final : public ProcessGroup {
 public:
  ThreadGroup(std::shared_ptr<ThreadHub> hub, int index) : hub_(std::move(hub)), index_(index) {}
  [[nodiscard]] int index() const override { return index_; }
  [[nodiscard]] int size() const override { return hub_->size(); }
  Result<std::unique_ptr<Transport>> open(Routes /*routes*/, RankRange /*here*/) override {
    return make_error(ErrorCode::kUnsupported, "test", "threads share a transport");
  }
  Result<> meet() override {
    PLAIT_TRY_VOID(hub_->exchange(index_, {}));
    return {};
  }
  Result<std::vector<std::string>> gather(std::string bytes) override {
    PLAIT_TRY(auto all, hub_->exchange(index_, std::move(bytes)));
    if (index_ != 0) all.clear();
    return all;
  }
  Result<std::string> broadcast(std::string bytes) override {
    PLAIT_TRY(auto all, hub_->exchange(index_, std::move(bytes)));
    return std::move(all.front());
  }
  Result<bool> any(bool mine) override {
    PLAIT_TRY(const auto all, hub_->exchange(index_, mine ? "yes" : ""));
    return std::any_of(all.begin(), all.end(), [](const std::string& says) { return !says.empty(); });
  }
  Result<std::shared_ptr<std::byte>> share(std::size_t /*size*/) override {
    return make_error(ErrorCode::kUnsupported, "processes.share", "threads share everything");
  }
  void lay_out(WaitTable& /*waits*/) override {}
  std::vector<bool> hear_all() override { return std::vector<bool>(static_cast<std::size_t>(hub_->size())); }
  void give_up(int /*process*/) override {}
  void show(std::shared_ptr<RankBoard> /*board*/) override {}
  void hide() override {}
  void report(const Error& error) override { hub_->report(error); }
  [[nodiscard]] std::optional<Error> failure() const override { return hub_->failure(); }

 private:
  std::shared_ptr<ThreadHub> hub_;
  int index_;
};

/// One thread's view of a transport that all have in common.
class CommonTransport final : public ForwardingTransport {
 public:
  CommonTransport(std::shared_ptr<Transport> common, ProcessGroup& group)
      : ForwardingTransport(std::move(common)), group_(group) {}
  /// Once all are through with the step before, as each process is with its own.
  void begin_step() override {
    if (group_.meet() && group_.index() == 0) inner().begin_step();
  }

 private:
  ProcessGroup& group_;
};

}  // namespace plait::testing
