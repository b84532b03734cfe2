#include "plait/run/engine/delayed_transport.h"

#include "plait/run/engine/process_group.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <map>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace plait {
namespace {

/// Sleeps until `time`, or the deadline if that is earlier. The last stretch is spun: a sleep overshoots by tens of us.
WaitStatus sleep_until(Clock::time_point time, Clock::time_point deadline) {
  constexpr auto kOvershoot = std::chrono::microseconds(80);
  const Clock::time_point end = std::min(time, deadline);
  if (end - Clock::now() > kOvershoot) std::this_thread::sleep_until(end - kOvershoot);
  while (Clock::now() < end) std::this_thread::yield();
  return time <= deadline ? WaitStatus::kReady : WaitStatus::kTimedOut;
}

std::int64_t ticks(Clock::time_point time) {
  return time.time_since_epoch().count();
}

Clock::time_point time_of(std::int64_t ticks) {
  return Clock::time_point(Clock::duration(ticks));
}

/// A place that one rank writes and others read, in memory of all processes.
struct alignas(64) Cell {
  std::atomic<std::int64_t> time;  ///< ticks of the clock, which processes of one machine have in common
  std::atomic<std::int64_t> bytes;
};
using Cells = std::shared_ptr<Cell[]>;

Result<Cells> make_cells(std::size_t count, ProcessGroup* processes) {
  if (processes == nullptr) return Cells(new Cell[count]());
  PLAIT_TRY(const std::shared_ptr<std::byte> memory, processes->share(std::max<std::size_t>(count, 1) * sizeof(Cell)));
  return Cells(memory, reinterpret_cast<Cell*>(memory.get()));
}

/// The cells of one transport.
struct DelayCells {
  /// One per transfer and one per member of a collective, then `more`.
  static std::size_t count(const Routes& routes, std::size_t more) {
    std::size_t sum = routes.transfers.size() + more;
    for (const CollectiveRoute& route : routes.collectives) sum += route.members.size();
    return sum;
  }
  DelayCells(Cells all, const Routes& routes) : all_(std::move(all)) {
    std::size_t next = routes.transfers.size();
    for (const CollectiveRoute& route : routes.collectives) {
      first_.push_back(next);
      next += route.members.size();
    }
    first_.push_back(next);
  }
  [[nodiscard]] Cell& due(TransferId id) const { return all_.get()[static_cast<std::size_t>(id)]; }
  [[nodiscard]] std::span<Cell> entries(CollectiveId id) const {
    const auto at = static_cast<std::size_t>(id);
    return {all_.get() + first_[at], first_[at + 1] - first_[at]};
  }
  [[nodiscard]] Cell& more(std::size_t index) const { return all_.get()[first_.back() + index]; }

 private:
  Cells all_;
  std::vector<std::size_t> first_;  ///< per collective: the cell of its first member
};

/// When the last member of a collective entered, and the bytes of the whole value.
struct Entered {
  Clock::time_point all_in;
  Bytes bytes;
};

/// Hands everything on to another transport, and lets a message be received only when it is due.
class DelayedTransport : public Transport {
 public:
  DelayedTransport(std::unique_ptr<Transport> inner, DelayCells cells)
      : inner_(std::move(inner)), cells_(std::move(cells)), left_(inner_->routes().transfers.size()) {}

  [[nodiscard]] const Routes& routes() const override { return inner_->routes(); }
  void begin_step() override {
    ++step_;
    inner_->begin_step();
  }
  void send(TransferId id, Message&& message) override {
    // Written before the inner send publishes the message, read after its receive.
    const auto [left, due] = times(id, message_bytes(message));
    left_[static_cast<std::size_t>(id)] = left;
    cells_.due(id).time.store(ticks(due), std::memory_order_release);
    inner_->send(id, std::move(message));
  }
  void post_receive(TransferId id) override { inner_->post_receive(id); }
  WaitStatus receive(TransferId id, Message& message, Clock::time_point deadline) override {
    const WaitStatus status = inner_->receive(id, message, deadline);
    if (status != WaitStatus::kReady) return status;
    return sleep_until(time_of(cells_.due(id).time.load(std::memory_order_acquire)), deadline);
  }
  WaitStatus wait_sent(TransferId id, Clock::time_point deadline) override {
    const WaitStatus status = inner_->wait_sent(id, deadline);
    return status == WaitStatus::kReady ? sleep_until(left_[static_cast<std::size_t>(id)], deadline) : status;
  }
  void enter(CollectiveId id, RankId member, std::span<const at::Tensor> tensors) override {
    std::int64_t bytes = 0;
    for (const at::Tensor& tensor : tensors)
      if (tensor.defined()) bytes += static_cast<std::int64_t>(tensor.nbytes());
    Cell& entry = cells_.entries(id)[place_of(id, member)];
    entry.bytes.store(bytes, std::memory_order_relaxed);
    entry.time.store(ticks(Clock::now()), std::memory_order_release);
    on_enter(id, member);
    inner_->enter(id, member, tensors);  // publishes the entry
  }
  WaitStatus finish(CollectiveId id, RankId member, Clock::time_point deadline) override {
    const WaitStatus status = inner_->finish(id, member, deadline);
    if (status != WaitStatus::kReady || cells_.entries(id).size() == 1) return status;
    return sleep_until(end_of(id, member), deadline);
  }
  [[nodiscard]] RankId awaited(CollectiveId id, RankId member) const override { return inner_->awaited(id, member); }
  void stop() override { inner_->stop(); }

 protected:
  /// When the last byte leaves the source, and when it arrives. On the source's thread.
  virtual std::pair<Clock::time_point, Clock::time_point> times(TransferId id, Bytes bytes) = 0;
  /// When it ends for `member`, now that all are in. On the member's thread.
  virtual Clock::time_point end_of(CollectiveId id, RankId member) = 0;
  virtual void on_enter(CollectiveId, RankId) {}

  /// Once all are in.
  [[nodiscard]] Entered entered(CollectiveId id) const {
    std::int64_t last = 0;
    std::int64_t most = 0;
    for (const Cell& entry : cells_.entries(id)) {
      last = std::max(last, entry.time.load(std::memory_order_acquire));
      most = std::max(most, entry.bytes.load(std::memory_order_relaxed));
    }
    return {.all_in = time_of(last), .bytes = Bytes{most}};
  }
  [[nodiscard]] std::uint64_t step() const { return step_; }
  [[nodiscard]] const DelayCells& cells() const { return cells_; }

 private:
  [[nodiscard]] std::size_t place_of(CollectiveId id, RankId member) const {
    const std::vector<RankId>& members = routes().collectives[static_cast<std::size_t>(id)].members;
    return static_cast<std::size_t>(std::lower_bound(members.begin(), members.end(), member) - members.begin());
  }

  std::unique_ptr<Transport> inner_;
  DelayCells cells_;
  std::vector<Clock::time_point> left_;
  std::uint64_t step_ = 0;
};

std::chrono::nanoseconds transmission(const EmulatedLink& link, double bytes) {
  return std::chrono::nanoseconds(
      link.bytes_per_second > 0 ? static_cast<std::int64_t>(bytes / link.bytes_per_second * 1e9) : 0);
}

/// Takes the next `busy` of the time of what serves messages first come, first served: a link or a port. Several ranks may
/// ask at once. \param free_at  when it is through with all before \returns when it is through with this one
Clock::time_point take(std::atomic<std::int64_t>& free_at, Clock::time_point now, Clock::duration busy) {
  std::int64_t before = free_at.load(std::memory_order_relaxed);
  std::int64_t after = 0;
  do {
    after = std::max(before, ticks(now)) + busy.count();
  } while (!free_at.compare_exchange_weak(before, after, std::memory_order_relaxed));
  return time_of(after);
}

class EmulatedTransport final : public DelayedTransport {
 public:
  /// Cells of its own: the port of each group for what leaves, then that for what comes.
  static std::size_t num_ports(const EmulatedCluster& cluster, int num_ranks) {
    return 2 * static_cast<std::size_t>((num_ranks - 1) / cluster.ranks_per_group + 1);
  }
  EmulatedTransport(std::unique_ptr<Transport> inner, DelayCells cells, const EmulatedCluster& cluster)
      : DelayedTransport(std::move(inner), std::move(cells)),
        cluster_(cluster),
        num_ranks_(static_cast<std::size_t>(routes().num_ranks)),
        link_free_(num_ranks_ * num_ranks_) {
    std::map<std::vector<RankId>, std::size_t> sets;
    for (const CollectiveRoute& route : routes().collectives)
      communicator_of_.push_back(sets.try_emplace(route.members, sets.size()).first->second);
    queues_.resize(num_ranks_ * sets.size());
    num_communicators_ = sets.size();
  }

  void begin_step() override {
    for (Queue& queue : queues_) queue.entered.clear(), queue.ends.clear();
    DelayedTransport::begin_step();
  }

 private:
  /// One member's collectives on one communicator in this step. All members enter them in one order.
  struct Queue {
    std::vector<CollectiveId> entered;
    std::vector<Clock::time_point> ends;  ///< of the first ones of these
    Clock::time_point free_at;
  };

  [[nodiscard]] std::size_t group_of(RankId rank) const {
    return rank.index() / static_cast<std::size_t>(cluster_.ranks_per_group);
  }

  std::pair<Clock::time_point, Clock::time_point> times(TransferId id, Bytes bytes) override {
    const Transfer& transfer = routes().transfers[static_cast<std::size_t>(id)];
    const std::size_t from = group_of(transfer.source);
    const std::size_t to = group_of(transfer.destination);
    const EmulatedLink& link = from == to ? cluster_.inner : cluster_.outer;
    const auto busy = transmission(link, static_cast<double>(bytes.value()));
    const Clock::time_point now = Clock::now();
    Clock::time_point left;
    if (from == to) {
      left = take(link_free_[transfer.source.index() * num_ranks_ + transfer.destination.index()], now, busy);
    } else {
      left = take(cells().more(2 * from).time, now, busy);
      left = take(cells().more(2 * to + 1).time, left - busy, busy);
    }
    return {left, left + std::chrono::nanoseconds(link.latency.value())};
  }

  void on_enter(CollectiveId id, RankId member) override { queue_of(id, member).entered.push_back(id); }

  /// Every member finds the same: those before it on the communicator have all members in as well.
  Clock::time_point end_of(CollectiveId id, RankId member) override {
    Queue& queue = queue_of(id, member);
    const auto at =
        static_cast<std::size_t>(std::find(queue.entered.begin(), queue.entered.end(), id) - queue.entered.begin());
    while (queue.ends.size() <= at) {
      const CollectiveId next = queue.entered[queue.ends.size()];
      const Entered last = entered(next);
      queue.free_at = std::max(queue.free_at, last.all_in) + duration(next, last.bytes);
      queue.ends.push_back(queue.free_at);
    }
    return queue.ends[at];
  }

  Queue& queue_of(CollectiveId id, RankId member) {
    return queues_[member.index() * num_communicators_ + communicator_of_[static_cast<std::size_t>(id)]];
  }

  [[nodiscard]] Clock::duration duration(CollectiveId id, Bytes bytes) const {
    const CollectiveRoute& route = routes().collectives[static_cast<std::size_t>(id)];
    const bool inside = std::all_of(route.members.begin(), route.members.end(),
                                    [&](RankId member) { return group_of(member) == group_of(route.members.front()); });
    const EmulatedLink& link = inside ? cluster_.inner : cluster_.outer;
    const auto n = static_cast<std::int64_t>(route.members.size());
    const std::chrono::nanoseconds latency(link.latency.value());
    const auto whole = static_cast<double>(bytes.value());
    switch (route.kind) {
      case CollectiveKind::kBroadcast:
      case CollectiveKind::kReduce: return (n - 1) * latency + transmission(link, whole);
      case CollectiveKind::kAllReduce:
        return 2 * (n - 1) * (latency + transmission(link, whole / static_cast<double>(n)));
      default: return (n - 1) * (latency + transmission(link, whole / static_cast<double>(n)));
    }
  }

  EmulatedCluster cluster_;
  std::size_t num_ranks_;
  std::vector<std::atomic<std::int64_t>> link_free_;  ///< per ordered pair inside a group; only the source asks
  std::vector<std::size_t> communicator_of_;          ///< per collective: the one of its members
  std::size_t num_communicators_ = 0;
  std::vector<Queue> queues_;  ///< per rank and communicator
};

/// Counter-based: the same three numbers always give the same result.
std::uint64_t mix(std::uint64_t seed, std::uint64_t a, std::uint64_t b) {
  // splitmix64 (Steele, Lea, Flood 2014), once per input
  std::uint64_t x = seed;
  for (const std::uint64_t input : {a, b}) {
    x += input + 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    x ^= x >> 31;
  }
  return x;
}

class RandomDelayTransport final : public DelayedTransport {
 public:
  RandomDelayTransport(std::unique_ptr<Transport> inner, DelayCells cells, std::uint64_t seed, Nanos most)
      : DelayedTransport(std::move(inner), std::move(cells)), seed_(seed), most_(most) {}

 private:
  std::pair<Clock::time_point, Clock::time_point> times(TransferId id, Bytes) override {
    const auto range = static_cast<std::uint64_t>(most_.value()) + 1;
    const std::uint64_t delay = mix(seed_, step(), static_cast<std::uint64_t>(id)) % range;
    const Clock::time_point due = Clock::now() + std::chrono::nanoseconds(delay);
    return {due, due};
  }
  Clock::time_point end_of(CollectiveId id, RankId member) override {
    const auto range = static_cast<std::uint64_t>(most_.value()) + 1;
    const auto which = routes().transfers.size() + static_cast<std::size_t>(id) * 64 + member.index();
    return entered(id).all_in + std::chrono::nanoseconds(mix(seed_, step(), which) % range);
  }
  std::uint64_t seed_;
  Nanos most_;
};

}  // namespace

TransportWrapper emulate_cluster(const EmulatedCluster& cluster) {
  return [cluster](std::unique_ptr<Transport> inner, ProcessGroup* processes) -> Result<std::unique_ptr<Transport>> {
    const Routes& routes = inner->routes();
    const std::size_t ports = EmulatedTransport::num_ports(cluster, routes.num_ranks);
    PLAIT_TRY(Cells cells, make_cells(DelayCells::count(routes, ports), processes));
    DelayCells divided(std::move(cells), routes);
    return std::unique_ptr<Transport>(
        std::make_unique<EmulatedTransport>(std::move(inner), std::move(divided), cluster));
  };
}

TransportWrapper emulate_links(EmulatedLink link) {
  constexpr int kEveryone = 1 << 30;  // one group
  return emulate_cluster(EmulatedCluster{.ranks_per_group = kEveryone, .inner = link, .outer = link});
}

TransportWrapper delay_at_random(std::uint64_t seed, Nanos most) {
  return [seed, most](std::unique_ptr<Transport> inner, ProcessGroup* processes) -> Result<std::unique_ptr<Transport>> {
    PLAIT_TRY(Cells cells, make_cells(DelayCells::count(inner->routes(), 0), processes));
    DelayCells divided(std::move(cells), inner->routes());
    return std::unique_ptr<Transport>(
        std::make_unique<RandomDelayTransport>(std::move(inner), std::move(divided), seed, most));
  };
}

}  // namespace plait
