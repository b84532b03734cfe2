#include "plait/run/engine/delayed_transport.h"

#include <algorithm>
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

/// Hands everything on to another transport, and lets a message be received only when it is due.
class DelayedTransport : public Transport {
 public:
  explicit DelayedTransport(std::unique_ptr<Transport> inner)
      : inner_(std::move(inner)), due_(inner_->routes().transfers.size()), left_(due_.size()) {}

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
    inner_->enter(id, member, tensors);
  }
  WaitStatus finish(CollectiveId id, RankId member, Clock::time_point deadline) override {
    return inner_->finish(id, member, deadline);
  }
  [[nodiscard]] RankId awaited(CollectiveId id, RankId member) const override { return inner_->awaited(id, member); }
  void stop() override { inner_->stop(); }

 protected:
  /// When the last byte leaves the source, and when it arrives. On the source's thread.
  virtual std::pair<Clock::time_point, Clock::time_point> times(TransferId id, Bytes bytes) = 0;
  [[nodiscard]] std::uint64_t step() const { return step_; }

 private:
  std::unique_ptr<Transport> inner_;
  std::vector<Clock::time_point> due_;
  std::vector<Clock::time_point> left_;
  std::uint64_t step_ = 0;
};

Nanos transmission(const Link& link, double bytes) {
  return Nanos{link.bytes_per_second > 0 ? static_cast<std::int64_t>(bytes / link.bytes_per_second * 1e9) : 0};
}

class EmulatedTransport final : public DelayedTransport {
 public:
  EmulatedTransport(std::unique_ptr<Transport> inner, const std::function<Link(RankId, RankId)>& link)
      : DelayedTransport(std::move(inner)), num_ranks_(static_cast<std::size_t>(routes().num_ranks)) {
    for (int from = 0; from < routes().num_ranks; ++from)
      for (int to = 0; to < routes().num_ranks; ++to)
        lanes_.push_back(Lane{.link = link(RankId{from}, RankId{to}), .free_at = {}});
    collective_bytes_.resize(routes().collectives.size());
    for (std::size_t c = 0; c < collective_bytes_.size(); ++c)
      collective_bytes_[c].resize(routes().collectives[c].members.size());
  }

  void enter(CollectiveId id, RankId member, std::span<const at::Tensor> tensors) override {
    double bytes = 0;
    for (const at::Tensor& tensor : tensors)
      if (tensor.defined()) bytes += static_cast<double>(tensor.nbytes());
    own_bytes(id, member) = bytes;
    DelayedTransport::enter(id, member, tensors);
  }

  WaitStatus finish(CollectiveId id, RankId member, Clock::time_point deadline) override {
    const WaitStatus status = DelayedTransport::finish(id, member, deadline);
    const CollectiveRoute& route = routes().collectives[static_cast<std::size_t>(id)];
    const std::size_t n = route.members.size();
    if (status != WaitStatus::kReady || n == 1) return status;
    // Ring: each hop carries 1/n of the bytes over every link of the ring at once.
    const double bytes = own_bytes(id, member) / static_cast<double>(n);
    Nanos hop{0};
    for (std::size_t place = 0; place < n; ++place) {
      const Link& link = lane(route.members[place], route.members[(place + 1) % n]).link;
      hop = std::max(hop, link.latency + transmission(link, bytes));
    }
    const auto hops = static_cast<std::int64_t>((route.kind == CollectiveKind::kAllReduce ? 2 : 1) * (n - 1));
    return sleep_until(Clock::now() + std::chrono::nanoseconds((hops * hop).value()), deadline);
  }

 private:
  struct alignas(64) Lane {
    Link link;
    Clock::time_point free_at;  ///< touched by the source's thread only
  };
  Lane& lane(RankId from, RankId to) { return lanes_[from.index() * num_ranks_ + to.index()]; }
  double& own_bytes(CollectiveId id, RankId member) {
    const std::vector<RankId>& members = routes().collectives[static_cast<std::size_t>(id)].members;
    const auto place = std::lower_bound(members.begin(), members.end(), member) - members.begin();
    return collective_bytes_[static_cast<std::size_t>(id)][static_cast<std::size_t>(place)];
  }

  std::pair<Clock::time_point, Clock::time_point> times(TransferId id, Bytes bytes) override {
    const Transfer& transfer = routes().transfers[static_cast<std::size_t>(id)];
    Lane& on = lane(transfer.source, transfer.destination);
    const Nanos busy = transmission(on.link, static_cast<double>(bytes.value()));
    on.free_at = std::max(on.free_at, Clock::now()) + std::chrono::nanoseconds(busy.value());
    return {on.free_at, on.free_at + std::chrono::nanoseconds(on.link.latency.value())};
  }

  std::size_t num_ranks_;
  std::vector<Lane> lanes_;                            ///< per ordered pair
  std::vector<std::vector<double>> collective_bytes_;  ///< per collective and member; touched by that member only
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
  std::uint64_t seed_;
  Nanos most_;
};

}  // namespace

TransportWrapper emulate_links(std::function<Link(RankId, RankId)> link) {
  return [link = std::move(link)](std::unique_ptr<Transport> inner) {
    return std::make_unique<EmulatedTransport>(std::move(inner), link);
  };
}

TransportWrapper emulate_links(Link link) {
  return emulate_links([link](RankId, RankId) { return link; });
}

TransportWrapper delay_at_random(std::uint64_t seed, Nanos most) {
  return [seed, most](std::unique_ptr<Transport> inner) {
    return std::make_unique<RandomDelayTransport>(std::move(inner), seed, most);
  };
}

}  // namespace plait
