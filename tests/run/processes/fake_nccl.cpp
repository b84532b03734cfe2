#include "fake_nccl.h"

#include "plait/base/check.h"
#include "plait/run/engine/segments.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace plait::testing {
namespace {

/// A thread that does one thing after another.
class FakeQueue final : public DeviceQueue {
 public:
  FakeQueue() : state_(std::make_shared<State>()), thread_([state = state_] { run(*state); }) {}
  ~FakeQueue() override {
    {
      const std::lock_guard lock(state_->mutex);
      state_->quit = true;
    }
    state_->changed.notify_all();
    thread_.join();
  }
  FakeQueue(const FakeQueue&) = delete;
  FakeQueue& operator=(const FakeQueue&) = delete;

  void give(std::function<void()> work) {
    {
      const std::lock_guard lock(state_->mutex);
      state_->work.push_back(std::move(work));
      ++state_->num_given;
    }
    state_->changed.notify_all();
  }

  void follow_caller() override {}  // what runs on the host is over when it was given
  void inside(const std::function<void()>& work) override { work(); }
  void keep(const at::Tensor& tensor) override {
    give([tensor] {});
  }
  void lend(const at::Tensor& /*tensor*/) override {}
  std::shared_ptr<QueueMark> mark() override {
    const std::lock_guard lock(state_->mutex);
    return std::make_shared<Mark>(state_, state_->num_given);
  }
  [[nodiscard]] void* native() const override { return nullptr; }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> work;
    std::size_t num_given = 0;
    std::size_t num_done = 0;
    bool quit = false;
  };
  class Mark final : public QueueMark {
   public:
    Mark(std::shared_ptr<State> state, std::size_t place) : state_(std::move(state)), place_(place) {}
    [[nodiscard]] bool is_passed() const override {
      const std::lock_guard lock(state_->mutex);
      return state_->num_done >= place_;
    }
    /// A stream would wait in the background; the host computes itself, so it is the one that waits.
    void caller_follows() override {
      std::unique_lock lock(state_->mutex);
      state_->changed.wait(lock, [&] { return state_->num_done >= place_; });
    }

   private:
    std::shared_ptr<State> state_;
    std::size_t place_;
  };

  static void run(State& state) {
    for (;;) {
      std::function<void()> next;
      {
        std::unique_lock lock(state.mutex);
        state.changed.wait(lock, [&] { return state.quit || !state.work.empty(); });
        if (state.work.empty()) return;
        next = std::move(state.work.front());
        state.work.pop_front();
      }
      next();
      next = nullptr;
      {
        const std::lock_guard lock(state.mutex);
        ++state.num_done;
      }
      state.changed.notify_all();
    }
  }

  std::shared_ptr<State> state_;
  std::thread thread_;
};

class Ended : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

void write_all(int socket, const void* data, std::size_t size) {
  const auto* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = ::send(socket, at, size, MSG_NOSIGNAL);
    if (written <= 0) throw Ended("the other end is gone");
    at += written;
    size -= static_cast<std::size_t>(written);
  }
}

void read_all(int socket, void* data, std::size_t size) {
  auto* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t read = ::recv(socket, at, size, 0);
    if (read <= 0) throw Ended("the other end is gone");
    at += read;
    size -= static_cast<std::size_t>(read);
  }
}

sockaddr_un address_of(const NcclId& id, socklen_t& size) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // Abstract: its name begins with a zero, and nothing of it stays.
  const std::size_t length = std::strlen(id.data());
  std::memcpy(address.sun_path + 1, id.data(), length);
  size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return address;
}

/// What must be the same at all members of a call, or fit.
struct Header {
  NcclCall::Kind kind = NcclCall::Kind::kSend;
  at::ScalarType type = at::kByte;
  int peer = 0;
  std::size_t count = 0;
  friend bool operator==(const Header&, const Header&) = default;
};

/// The faults of one process.
struct Trouble {
  FakeNcclFaults faults;
  std::atomic<int> num_calls = 0;
};

class FakeCommunicator final : public NcclCommunicator {
 public:
  FakeCommunicator(int place, int size, std::shared_ptr<Trouble> trouble)
      : place_(place), size_(size), trouble_(std::move(trouble)), sockets_(static_cast<std::size_t>(size), -1) {}
  ~FakeCommunicator() override {
    abort();
    if (opener_.joinable()) opener_.join();
    while (num_under_way_.load() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (const int socket : sockets_)
      if (socket >= 0) ::close(socket);
    if (listener_ >= 0) ::close(listener_);
  }
  FakeCommunicator(const FakeCommunicator&) = delete;
  FakeCommunicator& operator=(const FakeCommunicator&) = delete;

  /// \param listener  of the first member
  void begin_to_open(const NcclId& id, int listener) {
    listener_ = listener;
    opener_ = std::thread([this, id] { open(id); });
  }

  [[nodiscard]] NcclState state() override {
    if (closes_.load() && num_under_way_.load() > 0) return NcclState::kInProgress;
    return state_.load();
  }
  [[nodiscard]] std::string words() override {
    const std::lock_guard lock(mutex_);
    return words_;
  }

  void issue(std::span<const NcclCall> calls, DeviceQueue& queue) override {
    PLAIT_CHECK(state_.load() == NcclState::kReady, "calls on a communicator that is not ready");
    bool hangs = false;
    if (is_open_for_use_) {
      const int call = ++trouble_->num_calls;
      const bool now = call == trouble_->faults.calls;
      if (now && trouble_->faults.kind == FakeNcclFaults::Kind::kRefuses) throw std::runtime_error("made up: refused");
      if (now && trouble_->faults.kind == FakeNcclFaults::Kind::kFails) return fail("made up: unhandled system error");
      if (now && trouble_->faults.kind == FakeNcclFaults::Kind::kDies) ::raise(SIGKILL);
      hangs = now && trouble_->faults.kind == FakeNcclFaults::Kind::kHangs;
    }
    is_open_for_use_ = true;  // the first call tries the line out
    ++num_under_way_;
    dynamic_cast<FakeQueue&>(queue).give([this, hangs, all = std::vector(calls.begin(), calls.end())] {
      while (hangs && !aborted_.load()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      try {
        for (const NcclCall& call : all) run(call);
      } catch (const Ended& end) {
        // As on a device: nothing ends by itself, whoever has died.
        while (!aborted_.load()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      } catch (const std::exception& error) {
        fail(error.what());
      }
      --num_under_way_;
    });
  }
  void close() override { closes_.store(true); }
  void abort() override {
    aborted_.store(true);
    const std::lock_guard lock(mutex_);
    for (const int socket : sockets_)
      if (socket >= 0) ::shutdown(socket, SHUT_RDWR);
    if (listener_ >= 0) ::shutdown(listener_, SHUT_RDWR);
  }

 private:
  void fail(const std::string& words) {
    const std::lock_guard lock(mutex_);
    words_ = words;
    state_.store(NcclState::kFailed);
  }

  /// A star around the first member.
  void open(const NcclId& id) {
    try {
      if (place_ == 0) {
        for (int i = 1; i < size_; ++i) {
          const int socket = ::accept(listener_, nullptr, nullptr);
          if (socket < 0) throw Ended("nobody came");
          int place = 0;
          read_all(socket, &place, sizeof place);
          keep_socket(place, socket);
        }
        for (int i = 1; i < size_; ++i) write_all(sockets_[static_cast<std::size_t>(i)], "!", 1);
      } else {
        const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        keep_socket(0, socket);
        socklen_t size = 0;
        const sockaddr_un address = address_of(id, size);
        if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), size) != 0) throw Ended("nobody listens");
        write_all(socket, &place_, sizeof place_);
        char all_here = 0;
        read_all(socket, &all_here, 1);
      }
      state_.store(NcclState::kReady);
    } catch (const std::exception& error) {
      fail(error.what());
    }
  }

  void keep_socket(int place, int socket) {
    const std::lock_guard lock(mutex_);
    sockets_[static_cast<std::size_t>(place)] = socket;
    if (aborted_.load()) ::shutdown(socket, SHUT_RDWR);
  }

  [[nodiscard]] static std::size_t bytes(const NcclCall& call) { return call.count * c10::elementSize(call.type); }

  void run(const NcclCall& call) {
    if (call.kind == NcclCall::Kind::kSend || call.kind == NcclCall::Kind::kReceive) return run_message(call);
    const Header header{.kind = call.kind, .type = call.type, .peer = call.peer, .count = call.count};
    if (place_ == 0) return run_as_centre(call, header);
    const int centre = sockets_[0];
    write_all(centre, &header, sizeof header);
    write_all(centre, call.from, bytes_in(call));
    if (gets_result(call, place_)) read_all(centre, call.into, bytes_out(call));
  }

  /// A send is over when the other end has asked for it and has it.
  void run_message(const NcclCall& call) {
    const int peer = sockets_[place_ == 0 ? static_cast<std::size_t>(1) : 0];
    Header header{.kind = NcclCall::Kind::kSend, .type = call.type, .peer = 0, .count = call.count};
    if (call.kind == NcclCall::Kind::kReceive) {
      write_all(peer, &header, sizeof header);
      read_all(peer, call.into, bytes(call));
      return;
    }
    Header asked;
    read_all(peer, &asked, sizeof asked);
    if (!(asked == header))
      throw std::runtime_error(fmt::format("made up: {} bytes are sent, {} are asked for", header.count, asked.count));
    write_all(peer, call.from, bytes(call));
  }

  [[nodiscard]] std::size_t bytes_in(const NcclCall& call) const {
    return call.kind == NcclCall::Kind::kReduceScatter ? bytes(call) * static_cast<std::size_t>(size_) : bytes(call);
  }
  [[nodiscard]] std::size_t bytes_out(const NcclCall& call) const {
    return call.kind == NcclCall::Kind::kAllGather ? bytes(call) * static_cast<std::size_t>(size_) : bytes(call);
  }
  [[nodiscard]] static bool gets_result(const NcclCall& call, int place) {
    return call.kind != NcclCall::Kind::kReduce || place == call.peer;
  }

  void run_as_centre(const NcclCall& call, const Header& header) {
    const auto width = static_cast<std::int64_t>(c10::elementSize(call.type));
    const std::int64_t in = static_cast<std::int64_t>(bytes_in(call)) / width;
    std::vector<at::Tensor> given;
    for (int place = 0; place < size_; ++place) {
      given.push_back(at::empty({in}, at::TensorOptions().dtype(call.type)));
      if (place == 0) {
        std::memcpy(given.back().mutable_data_ptr(), call.from, bytes_in(call));
        continue;
      }
      const int member = sockets_[static_cast<std::size_t>(place)];
      Header theirs;
      read_all(member, &theirs, sizeof theirs);
      if (!(theirs == header)) throw std::runtime_error("made up: members make different calls");
      read_all(member, given.back().mutable_data_ptr(), bytes_in(call));
    }
    const at::Tensor result = result_of(call, given);
    for (int place = 0; place < size_; ++place) {
      if (!gets_result(call, place)) continue;
      const bool cut = call.kind == NcclCall::Kind::kReduceScatter;
      const char* from =
          static_cast<const char*>(result.const_data_ptr()) + (cut ? static_cast<std::size_t>(place) * bytes(call) : 0);
      if (place == 0)
        std::memcpy(call.into, from, bytes_out(call));
      else
        write_all(sockets_[static_cast<std::size_t>(place)], from, bytes_out(call));
    }
  }

  static at::Tensor result_of(const NcclCall& call, const std::vector<at::Tensor>& given) {
    if (call.kind == NcclCall::Kind::kBroadcast) return given[static_cast<std::size_t>(call.peer)];
    if (call.kind == NcclCall::Kind::kAllGather) {
      const std::int64_t share = given.front().numel();
      at::Tensor whole = at::empty({share * static_cast<std::int64_t>(given.size())}, given.front().options());
      for (std::size_t i = 0; i < given.size(); ++i)
        whole.slice(0, static_cast<std::int64_t>(i) * share, static_cast<std::int64_t>(i + 1) * share).copy_(given[i]);
      return whole;
    }
    at::Tensor sum = at::empty({given.front().numel()}, given.front().options());
    sum_in_order({&sum, 1}, given);
    return sum;
  }

  const int place_;
  const int size_;
  std::shared_ptr<Trouble> trouble_;
  std::vector<int> sockets_;  ///< by place; those that are not the first member's know it alone
  int listener_ = -1;
  std::thread opener_;
  std::atomic<NcclState> state_ = NcclState::kInProgress;
  std::atomic<bool> aborted_ = false;
  std::atomic<bool> closes_ = false;
  std::atomic<int> num_under_way_ = 0;  ///< calls that no queue is through with
  bool is_open_for_use_ = false;
  std::mutex mutex_;
  std::string words_;
};

class FakeNccl final : public Nccl {
 public:
  explicit FakeNccl(const FakeNcclFaults& faults) : trouble_(std::make_shared<Trouble>()) { trouble_->faults = faults; }

  Result<NcclId> make_id() override {
    static std::atomic<int> next = 0;
    NcclId id{};
    const std::string name = fmt::format("plait-fake-nccl-{}-{}", ::getpid(), ++next);
    std::memcpy(id.data(), name.data(), name.size());
    socklen_t size = 0;
    const sockaddr_un address = address_of(id, size);
    const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (::bind(listener, reinterpret_cast<const sockaddr*>(&address), size) != 0 || ::listen(listener, 64) != 0)
      return make_error(ErrorCode::kTransport, "nccl.open", "{} cannot listen: {}", name, std::strerror(errno));
    listeners_[name] = listener;
    return id;
  }

  Result<std::vector<std::unique_ptr<NcclCommunicator>>> open(const NcclId& id, int size,
                                                              std::span<const NcclMember> here,
                                                              int /*most_blocks*/) override {
    std::vector<std::unique_ptr<NcclCommunicator>> opened;
    for (const NcclMember& member : here) {
      auto communicator = std::make_unique<FakeCommunicator>(member.place, size, trouble_);
      const auto listener = listeners_.find(id.data());
      const bool first = member.place == 0;
      PLAIT_CHECK(!first || listener != listeners_.end(), "the first member did not make the id");
      if (trouble_->faults.kind != FakeNcclFaults::Kind::kNeverOpens)
        communicator->begin_to_open(id, first ? listener->second : -1);
      opened.push_back(std::move(communicator));
    }
    return opened;
  }

  std::unique_ptr<DeviceQueue> make_queue(c10::Device /*device*/) override { return std::make_unique<FakeQueue>(); }
  [[nodiscard]] int most_queues() const override { return trouble_->faults.most_queues; }
  Result<std::string> name_of(c10::Device /*device*/) override {
    static std::atomic<int> num_gpus = 0;
    return trouble_->faults.one_gpu ? std::string("fake") : fmt::format("fake {} {}", ::getpid(), ++num_gpus);
  }

 private:
  std::shared_ptr<Trouble> trouble_;
  std::map<std::string, int> listeners_;
};

}  // namespace

std::shared_ptr<Nccl> make_fake_nccl(const FakeNcclFaults& faults) {
  return std::make_shared<FakeNccl>(faults);
}

}  // namespace plait::testing
