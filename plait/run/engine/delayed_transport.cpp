#include "plait/run/engine/delayed_transport.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>
#include <tuple>
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

/// Hands everything on to another transport, and lets a message be received only when it is due.
class DelayedTransport : public Transport {
 public:
  explicit DelayedTransport(std::unique_ptr<Transport> inner)
      : inner_(std::move(inner)), due_(inner_->routes().transfers.size()), left_(due_.size()) {
    for (const CollectiveRoute& route : routes().collectives) entries_.emplace_back(route.members.size());
  }

  [[nodiscard]] const Routes& routes() const override { return inner_->routes(); }
  void begin_step() override {
    ++step_;
    inner_->begin_step();
  }
  void send(TransferId id, Message&& message) override {
    const auto at = static_cast<std::size_t>(id);
    // Written before the inner send publishes the message, read after its receive: no race.
    std::tie(left_[at], due_[at]) = times(id, message_bytes(message));
    inner_->send(id, std::move(message));
  }
  void post_receive(TransferId id) override { inner_->post_receive(id); }
  WaitStatus receive(TransferId id, Message& message, Clock::time_point deadline) override {
    const WaitStatus status = inner_->receive(id, message, deadline);
    return status == WaitStatus::kReady ? sleep_until(due_[static_cast<std::size_t>(id)], deadline) : status;
  }
  WaitStatus wait_sent(TransferId id, Clock::time_point deadline) override {
    const WaitStatus status = inner_->wait_sent(id, deadline);
    return status == WaitStatus::kReady ? sleep_until(left_[static_cast<std::size_t>(id)], deadline) : status;
  }
  void enter(CollectiveId id, RankId member, std::span<const at::Tensor> tensors) override {
    Entry& entry = entries_[static_cast<std::size_t>(id)][place_of(id, member)];
    entry.bytes = 0;
    for (const at::Tensor& tensor : tensors)
      if (tensor.defined()) entry.bytes += static_cast<std::int64_t>(tensor.nbytes());
    entry.at = Clock::now();
    inner_->enter(id, member, tensors);  // publishes the entry
  }
  WaitStatus finish(CollectiveId id, RankId member, Clock::time_point deadline) override {
    const WaitStatus status = inner_->finish(id, member, deadline);
    const std::vector<Entry>& entries = entries_[static_cast<std::size_t>(id)];
    if (status != WaitStatus::kReady || entries.size() == 1) return status;
    Entry last = entries.front();
    for (const Entry& entry : entries) {
      last.at = std::max(last.at, entry.at);
      last.bytes = std::max(last.bytes, entry.bytes);
    }
    return sleep_until(end_of(id, member, last.at, Bytes{last.bytes}), deadline);
  }
  [[nodiscard]] RankId awaited(CollectiveId id, RankId member) const override { return inner_->awaited(id, member); }
  WaitStatus end_row(RankId rank, Clock::time_point deadline) override { return inner_->end_row(rank, deadline); }
  WaitStatus look() override { return inner_->look(); }
  void stop() override { inner_->stop(); }

 protected:
  /// When the last byte leaves the source, and when it arrives. On the source's thread.
  virtual std::pair<Clock::time_point, Clock::time_point> times(TransferId id, Bytes bytes) = 0;
  /// When it ends for `member`. \param all_in  entry of the last member \param bytes  of the whole value
  virtual Clock::time_point end_of(CollectiveId id, RankId member, Clock::time_point all_in, Bytes bytes) = 0;
  [[nodiscard]] std::uint64_t step() const { return step_; }

 private:
  /// Written by the member before it enters, read by those that have seen it enter.
  struct Entry {
    Clock::time_point at;
    std::int64_t bytes = 0;
  };
  [[nodiscard]] std::size_t place_of(CollectiveId id, RankId member) const {
    const std::vector<RankId>& members = routes().collectives[static_cast<std::size_t>(id)].members;
    return static_cast<std::size_t>(std::lower_bound(members.begin(), members.end(), member) - members.begin());
  }

  std::unique_ptr<Transport> inner_;
  std::vector<Clock::time_point> due_;
  std::vector<Clock::time_point> left_;
  std::vector<std::vector<Entry>> entries_;  ///< per collective and member
  std::uint64_t step_ = 0;
};

std::chrono::nanoseconds transmission(const EmulatedLink& link, double bytes) {
  return std::chrono::nanoseconds(
      link.bytes_per_second > 0 ? static_cast<std::int64_t>(bytes / link.bytes_per_second * 1e9) : 0);
}

/// What serves messages first come, first served: a link or a port. Several ranks may ask at once.
struct alignas(64) Lane {
  std::atomic<std::int64_t> free_at = 0;  ///< ticks of the clock

  /// Takes the next `busy` of its time from `now` on; when it is through.
  Clock::time_point take(Clock::time_point now, Clock::duration busy) {
    std::int64_t before = free_at.load(std::memory_order_relaxed);
    std::int64_t after = 0;
    do {
      after = std::max(before, ticks(now)) + busy.count();
    } while (!free_at.compare_exchange_weak(before, after, std::memory_order_relaxed));
    return Clock::time_point(Clock::duration(after));
  }
};

class EmulatedTransport final : public DelayedTransport {
 public:
  EmulatedTransport(std::unique_ptr<Transport> inner, const EmulatedCluster& cluster)
      : DelayedTransport(std::move(inner)),
        cluster_(cluster),
        num_ranks_(static_cast<std::size_t>(routes().num_ranks)),
        links_(num_ranks_ * num_ranks_),
        out_of_(num_ranks_),
        into_(num_ranks_),
        communicators_(routes().collectives.size()),
        ends_(routes().collectives.size()) {
    for (const CollectiveRoute& route : routes().collectives)
      communicator_of_.push_back(sets_.try_emplace(route.members, sets_.size()).first->second);
  }

  void begin_step() override {
    for (std::atomic<std::int64_t>& end : ends_) end.store(kOpen, std::memory_order_relaxed);
    DelayedTransport::begin_step();
  }

 private:
  static constexpr std::int64_t kOpen = -1;
  static constexpr std::int64_t kTaken = -2;

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
      left = links_[transfer.source.index() * num_ranks_ + transfer.destination.index()].take(now, busy);
    } else {
      left = out_of_[from].take(now, busy);
      left = into_[to].take(left - busy, busy);
    }
    return {left, left + std::chrono::nanoseconds(link.latency.value())};
  }

  /// The first member that knows gives the collective its time on the communicator; the others read it.
  Clock::time_point end_of(CollectiveId id, RankId, Clock::time_point all_in, Bytes bytes) override {
    const auto at = static_cast<std::size_t>(id);
    std::int64_t end = kOpen;
    if (ends_[at].compare_exchange_strong(end, kTaken)) {
      end = ticks(communicators_[communicator_of_[at]].take(all_in, duration(id, bytes)));
      ends_[at].store(end);
    }
    while (end == kOpen || end == kTaken) {
      std::this_thread::yield();
      end = ends_[at].load();
    }
    return Clock::time_point(Clock::duration(end));
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
  std::vector<Lane> links_;   ///< per ordered pair inside a group
  std::vector<Lane> out_of_;  ///< per group: its port for what leaves
  std::vector<Lane> into_;    ///< per group: its port for what comes
  std::map<std::vector<RankId>, std::size_t> sets_;
  std::vector<std::size_t> communicator_of_;     ///< per collective: the one of its members
  std::vector<Lane> communicators_;              ///< each runs one collective at a time
  std::vector<std::atomic<std::int64_t>> ends_;  ///< per collective, in this step
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
  RandomDelayTransport(std::unique_ptr<Transport> inner, std::uint64_t seed, Nanos most)
      : DelayedTransport(std::move(inner)), seed_(seed), most_(most) {}

 private:
  std::pair<Clock::time_point, Clock::time_point> times(TransferId id, Bytes) override {
    const auto range = static_cast<std::uint64_t>(most_.value()) + 1;
    const std::uint64_t delay = mix(seed_, step(), static_cast<std::uint64_t>(id)) % range;
    const Clock::time_point due = Clock::now() + std::chrono::nanoseconds(delay);
    return {due, due};
  }
  Clock::time_point end_of(CollectiveId id, RankId member, Clock::time_point all_in, Bytes) override {
    const auto range = static_cast<std::uint64_t>(most_.value()) + 1;
    const auto which = routes().transfers.size() + static_cast<std::size_t>(id) * 64 + member.index();
    return all_in + std::chrono::nanoseconds(mix(seed_, step(), which) % range);
  }
  std::uint64_t seed_;
  Nanos most_;
};

}  // namespace

TransportWrapper emulate_cluster(const EmulatedCluster& cluster) {
  return [cluster](std::unique_ptr<Transport> inner) {
    return std::make_unique<EmulatedTransport>(std::move(inner), cluster);
  };
}

TransportWrapper emulate_links(EmulatedLink link) {
  constexpr int kEveryone = 1 << 30;  // one group
  return emulate_cluster(EmulatedCluster{.ranks_per_group = kEveryone, .inner = link, .outer = link});
}

TransportWrapper delay_at_random(std::uint64_t seed, Nanos most) {
  return [seed, most](std::unique_ptr<Transport> inner) {
    return std::make_unique<RandomDelayTransport>(std::move(inner), seed, most);
  };
}

}  // namespace plait
