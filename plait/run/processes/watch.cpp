#include "plait/run/processes/watch.h"

#include "plait/run/engine/byte_stream.h"
#include "plait/run/processes/watch_connection.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <random>
#include <sstream>
#include <utility>

namespace plait {
namespace {

enum Frame : std::uint8_t {
  kHello = 1,  ///< pass word, process, where
  kBeat,       ///< states of the sender's ranks
  kAsk,        ///< to be answered with a beat
  kFailed,     ///< an error that a process reports
  kLost,       ///< the sender gave a process up
  kGoodBye,
};

/// What a beat says of one rank. Ages, since clocks differ between machines.
struct RankBeat {
  std::int64_t step = 0;
  std::int32_t rank = 0;
  std::int32_t position = 0;
  std::int32_t peer = kAbsent;
  TransferId transfer = kAbsent;
  CollectiveId collective = kAbsent;
  std::int32_t unused = 0;
  std::int64_t waited = 0;  ///< Clock ticks
};

constexpr std::chrono::milliseconds kGrace{500};  // for the process to end by itself behind a failure

constexpr std::chrono::milliseconds kForStates{200};  // for others to say how far they are, behind a loss

std::string own_name() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format("{}, pid {}", host.data(), ::getpid());
}

std::string encode(const LostProcess& lost) {
  return ByteWriter().put(lost.process).put(lost.how).put(lost.silence.count()).put_bytes(lost.where).take();
}

LostProcess decode_lost(std::string_view payload) {
  ByteReader in(payload);
  LostProcess lost{.process = in.get<int>(), .how = in.get<LostProcess::How>(), .where = {}};
  lost.silence = Clock::duration(in.get<Clock::duration::rep>());
  lost.where = in.get_bytes();
  return lost;
}

/// Where no step runs.
Error explain_between_steps(const LostProcess& lost) {
  const bool gone = lost.how == LostProcess::How::kGone;
  return make_error(gone ? ErrorCode::kTransport : ErrorCode::kTimeout,
                    gone ? "engine.peer_gone" : "engine.peer_silent", "{} {} {:.3f} s ago; no step was running here",
                    lost.where, gone ? "is gone: its connection ended, last heard of" : "is silent: last heard of",
                    std::chrono::duration<double>(lost.silence).count());
}

}  // namespace

Watch::Watch(int index, int size, Clock::duration timeout)
    : index_(index),
      size_(size),
      timeout_(timeout),
      interval_(std::clamp<Clock::duration>(timeout / 20, std::chrono::milliseconds(10), std::chrono::seconds(1))),
      patience_(std::min<Clock::duration>(timeout / 4, std::chrono::milliseconds(500))),
      where_(fmt::format("process {} ({})", index, own_name())),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      peers_(static_cast<std::size_t>(size)) {}

Watch::~Watch() {
  leave();
  if (listener_ >= 0) ::close(listener_);
  ::close(wake_);
}

Result<std::string> Watch::listen() {
  PLAIT_TRY(const Listener listener, open_listener());
  listener_ = listener.socket;
  std::random_device random;
  password_ = fmt::format("{:08x}{:08x}", random(), random());
  return fmt::format("{} {} {} {}", password_, listener.port, own_addresses(), where_);
}

Result<> Watch::connect(const std::vector<std::string>& addresses) {
  for (int process = 0; process < index_; ++process) {
    std::istringstream in(addresses[static_cast<std::size_t>(process)]);
    std::string password;
    int port = 0;
    std::string list;
    in >> password >> port >> list;
    Peer& peer = peers_[static_cast<std::size_t>(process)];
    std::getline(in >> std::ws, peer.where);
    constexpr int kPatience = 3000;  // ms for each address
    std::istringstream one_by_one(list);
    for (std::string one; !peer.connection && std::getline(one_by_one, one, ',');) {
      const int socket = connect_to(one, port, kPatience);
      if (socket < 0) continue;
      peer.connection = std::make_unique<WatchConnection>(socket);
      peer.connection->send(kHello, ByteWriter().put_bytes(password).put(index_).put_bytes(where_).take());
    }
    if (!peer.connection)
      return make_error(ErrorCode::kTransport, "watch.connect",
                        "process {}: process {} is not reached for signs of life at {} port {}", index_, process, list,
                        port);
  }
  return {};
}

Result<> Watch::start() {
  const Clock::time_point deadline = Clock::now() + std::max<Clock::duration>(timeout_, std::chrono::seconds(10));
  int missing = size_ - 1 - index_;
  while (missing > 0) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0 || !wait_readable(listener_, static_cast<int>(left.count()))) break;
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) continue;
    auto connection = std::make_unique<WatchConnection>(socket);
    int process = -1;
    std::string where;
    // One that says nothing, or the wrong word, is not of this job.
    constexpr int kHelloPatience = 1000;  // ms
    while (process < 0 && wait_readable(socket, kHelloPatience)) {
      const bool open = connection->read([&](std::uint8_t kind, std::string_view payload) {
        if (kind != kHello) return false;
        ByteReader in(payload);
        if (in.get_bytes() != password_) return false;
        process = in.get<int>();
        where = in.get_bytes();
        return false;
      });
      if (!open) break;
    }
    if (process <= index_ || process >= size_ || peers_[static_cast<std::size_t>(process)].connection) continue;
    Peer& peer = peers_[static_cast<std::size_t>(process)];
    peer.connection = std::move(connection);
    peer.where = where;
    --missing;
  }
  if (missing > 0) {
    std::vector<int> absent;
    for (int process = index_ + 1; process < size_; ++process)
      if (!peers_[static_cast<std::size_t>(process)].connection) absent.push_back(process);
    return make_error(ErrorCode::kTransport, "watch.missing", "process {}: no sign of life from process {}", index_,
                      fmt::join(absent, ", "));
  }
  for (Peer& peer : peers_) peer.heard.store(Clock::now());
  thread_ = std::thread([this] { loop(); });
  return {};
}

void Watch::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
}

void Watch::leave() {
  leaving_.store(true);
  wake();
  if (thread_.joinable()) thread_.join();
}

void Watch::show(std::shared_ptr<RankBoard> board) {
  std::function<void()> stop = board->stop;
  {
    const std::lock_guard lock(board_mutex_);
    board_ = std::move(board);
    ++step_;
    for (std::int32_t rank = board_->here.begin; rank < board_->here.end; ++rank)
      (*board_->waits)[static_cast<std::size_t>(rank)].begin(step_);
  }
  if (failure()) stop();
}

void Watch::hide() {
  const std::lock_guard lock(board_mutex_);
  board_.reset();
}

void Watch::report(const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = error;
    failed_at_ = Clock::now();
    reports_.push_back(error);
  }
  wake();
}

std::optional<Error> Watch::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Watch::set_handlers(Handlers handlers) {
  const std::lock_guard lock(mutex_);
  handlers_ = std::move(handlers);
}

std::string Watch::own_states() const {
  ByteWriter out;
  const std::lock_guard lock(board_mutex_);
  if (board_ == nullptr) return {};
  const std::int64_t now = Clock::now().time_since_epoch().count();
  for (std::int32_t rank = board_->here.begin; rank < board_->here.end; ++rank) {
    const WaitState& state = (*board_->waits)[static_cast<std::size_t>(rank)];
    RankBeat beat{.step = step_, .rank = rank, .peer = state.peer.load(std::memory_order_acquire)};
    beat.position = state.position.load(std::memory_order_relaxed);
    beat.transfer = state.transfer.load(std::memory_order_relaxed);
    beat.collective = state.collective.load(std::memory_order_relaxed);
    beat.waited = now - state.since.load(std::memory_order_relaxed);
    out.put(beat);
  }
  return out.take();
}

void Watch::take_states(std::string_view states) {
  const std::lock_guard lock(board_mutex_);
  if (board_ == nullptr) return;
  const std::int64_t now = Clock::now().time_since_epoch().count();
  for (ByteReader in(states); !in.done();) {
    const auto beat = in.get<RankBeat>();
    const bool is_known = beat.rank >= 0 && static_cast<std::size_t>(beat.rank) < board_->waits->size();
    if (!is_known || board_->here.contains(RankId{beat.rank})) continue;
    if (board_->waits->is_laid(static_cast<std::size_t>(beat.rank))) continue;  // seen at once
    WaitState& state = (*board_->waits)[static_cast<std::size_t>(beat.rank)];
    state.step.store(beat.step, std::memory_order_release);
    state.position.store(beat.position, std::memory_order_relaxed);
    state.transfer.store(beat.transfer, std::memory_order_relaxed);
    state.collective.store(beat.collective, std::memory_order_relaxed);
    state.since.store(now - beat.waited, std::memory_order_relaxed);
    state.peer.store(beat.peer, std::memory_order_release);
  }
}

void Watch::send_beats() {
  const std::string own = own_states();
  for (const Peer& peer : peers_)
    if (peer.connection) peer.connection->send_beat(kBeat, own);
}

LostProcess Watch::silent_process(int process) const {
  const Peer& peer = peers_[static_cast<std::size_t>(process)];
  return {.process = process,
          .how = LostProcess::How::kSilent,
          .where = peer.where,
          .silence = Clock::now() - peer.heard.load()};
}

std::vector<bool> Watch::silent_since(Clock::time_point asked) const {
  std::vector<bool> silent(peers_.size());
  for (std::size_t process = 0; process < peers_.size(); ++process) {
    const Peer& peer = peers_[process];
    silent[process] = static_cast<int>(process) != index_ && !peer.left.load() && peer.heard.load() < asked;
  }
  return silent;
}

std::vector<bool> Watch::hear_all() {
  const Clock::time_point asked = Clock::now();
  is_to_ask_.store(true);
  wake();
  for (;;) {
    std::vector<bool> silent = silent_since(asked);
    const bool is_through = std::find(silent.begin(), silent.end(), true) == silent.end();
    if (is_through || failure() || Clock::now() > asked + patience_) return silent;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Watch::give_up(int process) {
  {
    const std::lock_guard lock(mutex_);
    given_up_.push_back(process);
  }
  wake();
  // The watch's thread has nothing else to wait for.
  const Clock::time_point end = Clock::now() + patience_;
  while (!failure() && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void Watch::tell_others(std::uint8_t kind, const std::string& payload, int except) {
  for (int process = 0; process < size_; ++process) {
    const Peer& peer = peers_[static_cast<std::size_t>(process)];
    if (peer.connection && process != except) peer.connection->send(kind, payload);
  }
}

void Watch::send_reports() {
  std::deque<Error> reports;
  {
    const std::lock_guard lock(mutex_);
    reports.swap(reports_);
  }
  for (Error& error : reports) {
    error.message = fmt::format("process {}: {}", index_, error.message);
    tell_others(kFailed, encode(error), index_);
  }
}

void Watch::fail(const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = error;
    failed_at_ = Clock::now();
    if (handlers_.say) handlers_.say(error);
  }
  const std::lock_guard lock(board_mutex_);
  if (board_ != nullptr) board_->stop();
}

/// The first that knows of a loss tells all, and each tells how far its ranks are: then the ranks that wait for the lost
/// ones are known everywhere.
void Watch::lose(const LostProcess& lost) {
  if (lost_ || failure() || leaving_.load()) return;
  lost_ = lost;
  lost_at_ = Clock::now();
  send_beats();
  tell_others(kLost, encode(lost), lost.process);
}

void Watch::settle_loss() {
  if (!lost_ || failure()) return;
  const bool all_said = std::all_of(peers_.begin(), peers_.end(), [this](const Peer& peer) {
    return peer.has_lost || !peer.connection || &peer == &peers_[static_cast<std::size_t>(lost_->process)];
  });
  if (!all_said && Clock::now() < lost_at_ + kForStates) return;
  Error error;
  {
    const std::lock_guard lock(board_mutex_);
    error = board_ != nullptr ? board_->explain(*lost_) : explain_between_steps(*lost_);
  }
  fail(error);
}

bool Watch::on_frame(int process, std::uint8_t kind, std::string_view payload) {
  Peer& peer = peers_[static_cast<std::size_t>(process)];
  peer.heard.store(Clock::now());
  switch (kind) {
    case kBeat: take_states(payload); return true;
    case kAsk: peer.connection->send_beat(kBeat, own_states()); return true;
    case kFailed: fail(decode_error(payload)); return true;
    case kLost:
      peer.has_lost = true;
      lose(decode_lost(payload));
      return true;
    case kGoodBye: peer.left.store(true); return true;
    default: return true;
  }
}

void Watch::read_peer(int process) {
  Peer& peer = peers_[static_cast<std::size_t>(process)];
  const bool open = peer.connection->read(
      [&](std::uint8_t kind, std::string_view payload) { return on_frame(process, kind, payload); });
  if (open) return;
  LostProcess lost = silent_process(process);
  lost.how = LostProcess::How::kGone;
  peer.connection.reset();
  if (!peer.left.load()) lose(lost);
}

void Watch::look_for_silence() {
  std::vector<int> given_up;
  {
    const std::lock_guard lock(mutex_);
    given_up.swap(given_up_);
  }
  for (const int process : given_up) lose(silent_process(process));
  for (int process = 0; process < size_; ++process) {
    const Peer& peer = peers_[static_cast<std::size_t>(process)];
    if (!peer.connection || peer.left.load() || Clock::now() - peer.heard.load() < timeout_) continue;
    lose(silent_process(process));
  }
}

void Watch::look_for_overdue() {
  const auto ask_board = [this](const std::vector<bool>& silent) {
    const std::lock_guard lock(board_mutex_);
    return board_ != nullptr && board_->overdue ? board_->overdue(silent) : std::nullopt;
  };
  if (failure()) return;
  std::optional<Overdue> overdue = ask_board(std::vector<bool>(peers_.size()));
  if (!overdue) {
    overdue_since_.reset();
    return;
  }
  // What is known of other machines may be old.
  if (!overdue_since_) {
    overdue_since_ = Clock::now();
    tell_others(kAsk, {}, index_);
  }
  const std::vector<bool> silent = silent_since(*overdue_since_);
  const bool is_through = std::find(silent.begin(), silent.end(), true) == silent.end();
  if (!is_through && Clock::now() < *overdue_since_ + patience_) return;
  overdue = ask_board(silent);
  if (!overdue) return;
  if (silent[static_cast<std::size_t>(overdue->process)]) return lose(silent_process(overdue->process));
  {
    const std::lock_guard lock(mutex_);
    reports_.push_back(overdue->error);
  }
  fail(overdue->error);
  wake();
}

void Watch::loop() {
  pthread_setname_np(pthread_self(), "plait-watch");
  Clock::time_point next_beat = Clock::now();
  while (!leaving_.load()) {
    std::vector<pollfd> waiting{{.fd = wake_, .events = POLLIN, .revents = 0}};
    std::vector<int> processes;
    for (int process = 0; process < size_; ++process) {
      const Peer& peer = peers_[static_cast<std::size_t>(process)];
      if (!peer.connection) continue;
      const auto events = static_cast<short>(POLLIN | (peer.connection->has_unsent() ? POLLOUT : 0));
      waiting.push_back({.fd = peer.connection->socket(), .events = events, .revents = 0});
      processes.push_back(process);
    }
    Clock::time_point next_look = next_beat;
    if (lost_ && !failure()) next_look = std::min(next_look, lost_at_ + kForStates);
    if (overdue_since_ && !failure()) next_look = std::min(next_look, *overdue_since_ + patience_);
    const auto rest = std::chrono::ceil<std::chrono::milliseconds>(next_look - Clock::now());
    ::poll(waiting.data(), waiting.size(), static_cast<int>(std::max<std::int64_t>(rest.count(), 0)));
    std::uint64_t rings = 0;
    [[maybe_unused]] const ssize_t heard = ::read(wake_, &rings, sizeof rings);
    // A process that was stopped itself first hears what came meanwhile, then judges who is silent.
    for (const int process : processes) {
      WatchConnection* connection = peers_[static_cast<std::size_t>(process)].connection.get();
      connection->flush();
      read_peer(process);
    }
    if (is_to_ask_.exchange(false)) tell_others(kAsk, {}, index_);
    send_reports();
    if (Clock::now() >= next_beat) {
      send_beats();
      next_beat = Clock::now() + interval_;
    }
    look_for_silence();
    settle_loss();
    look_for_overdue();
    std::function<void(const Error&)> end;
    std::optional<Error> failed;
    {
      const std::lock_guard lock(mutex_);
      if (failure_ && Clock::now() - failed_at_ > kGrace) std::swap(end, handlers_.end);
      failed = failure_;
    }
    if (end) end(*failed);
  }
  send_reports();
  tell_others(kGoodBye, {}, index_);
  for (Peer& peer : peers_) {
    constexpr int kFlushPatience = 100;  // ms
    if (peer.connection && peer.connection->has_unsent() && wait_writable(peer.connection->socket(), kFlushPatience))
      peer.connection->flush();
    peer.connection.reset();
  }
}

}  // namespace plait
