#include "plait/base/check.h"
#include "plait/run/engine/segments.h"
#include "plait/run/engine/transport.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace plait {
namespace {

/// Mailbox of one transfer. The message belongs to the source until `sent` has the number of the step, then to the
/// destination until the step ends.
struct alignas(64) Mailbox {
  std::atomic<std::uint64_t> sent = 0;
  Message message;
};

/// The last step in which something happened.
struct alignas(64) LastStep {
  std::atomic<std::uint64_t> at = 0;
};

/// One collective. A member that has entered gives its tensors to all who finish; each of these takes shares of the work
/// that nobody has taken yet, so that it waits for no member that has more to do before it finishes, or never does.
struct Gathering {
  MemberTensors tensors;  ///< per member; held until the work is done
  std::vector<LastStep> entered;
  std::vector<LastStep> taken;              ///< per share
  std::atomic<std::size_t> num_done = 0;    ///< shares done in this step
  std::atomic<std::uint64_t> complete = 0;  ///< the last step in which all were done
  std::size_t first_mark = 0;               ///< per member behind its entry, then per share behind that
};

class InProcessTransport final : public Transport {
 public:
  InProcessTransport(Routes routes, std::unique_ptr<StreamOrder> order)
      : routes_(std::move(routes)),
        order_(std::move(order)),
        bells_(static_cast<std::size_t>(routes_.num_ranks)),
        mailboxes_(routes_.transfers.size()),
        gatherings_(routes_.collectives.size()) {
    for (Doorbell& bell : bells_) bell.set_spin(spin_time(routes_.num_ranks));
    std::size_t next_mark = routes_.transfers.size();
    for (std::size_t c = 0; c < gatherings_.size(); ++c) {
      const std::size_t num_members = routes_.collectives[c].members.size();
      gatherings_[c].entered = std::vector<LastStep>(num_members);
      gatherings_[c].taken = std::vector<LastStep>(num_members);
      gatherings_[c].tensors.resize(num_members);
      gatherings_[c].first_mark = next_mark;
      next_mark += 2 * num_members;
    }
  }

  [[nodiscard]] const Routes& routes() const override { return routes_; }
  void begin_step() override {
    ++step_;
    for (Gathering& gathering : gatherings_) gathering.num_done.store(0, std::memory_order_relaxed);
  }

  void send(TransferId id, Message&& message) override {
    Mailbox& box = mailboxes_[static_cast<std::size_t>(id)];
    if (order_ != nullptr) order_->set(static_cast<std::size_t>(id));
    box.message = std::move(message);
    box.sent.store(step_, std::memory_order_release);
    bells_[routes_.transfers[static_cast<std::size_t>(id)].destination.index()].ring();
  }

  // Receives are posted by the mailbox's existence, and a message's buffers change hands with it: nothing to do or await.
  void post_receive(TransferId) override {}
  WaitStatus wait_sent(TransferId, Clock::time_point) override { return WaitStatus::kReady; }

  WaitStatus receive(TransferId id, Message& message, Clock::time_point deadline) override {
    Mailbox& box = mailboxes_[static_cast<std::size_t>(id)];
    const WaitStatus status = wait(routes_.transfers[static_cast<std::size_t>(id)].destination, deadline,
                                   [&] { return box.sent.load(std::memory_order_acquire) == step_; });
    if (status != WaitStatus::kReady) return status;
    message = std::move(box.message);
    if (order_ != nullptr) {
      order_->follow(static_cast<std::size_t>(id));
      for (at::Tensor& tensor : message.tensors) tensor = order_->bring(tensor);
    }
    return status;
  }

  void enter(CollectiveId id, RankId member, std::span<const at::Tensor> tensors) override {
    Gathering& gathering = gatherings_[static_cast<std::size_t>(id)];
    const std::size_t place = place_of(id, member);
    gathering.tensors[place].assign(tensors.begin(), tensors.end());
    if (order_ != nullptr) order_->set(gathering.first_mark + place);
    gathering.entered[place].at.store(step_, std::memory_order_release);
    ring_members(id);
  }

  WaitStatus finish(CollectiveId id, RankId member, Clock::time_point deadline) override {
    const CollectiveRoute& route = routes_.collectives[static_cast<std::size_t>(id)];
    Gathering& gathering = gatherings_[static_cast<std::size_t>(id)];
    const std::size_t num_members = route.members.size();
    const WaitStatus status = wait(member, deadline, [&] {
      return std::all_of(gathering.entered.begin(), gathering.entered.end(),
                         [&](const LastStep& entered) { return entered.at.load(std::memory_order_acquire) == step_; });
    });
    if (status != WaitStatus::kReady) return status;
    const std::size_t me = place_of(id, member);
    const std::size_t root = static_cast<std::size_t>(
        std::find(route.members.begin(), route.members.end(), route.root) - route.members.begin());
    bool follows = false;
    for (std::size_t next = 0; next < num_members; ++next) {
      const std::size_t share = (me + next) % num_members;
      if (gathering.taken[share].at.exchange(step_, std::memory_order_relaxed) == step_) continue;
      if (num_members > 1) {
        if (order_ != nullptr && !std::exchange(follows, true)) follow_entries(gathering);
        do_share(route.kind, gathering.tensors, root, share);
      }
      if (order_ != nullptr) order_->set(gathering.first_mark + num_members + share);
      if (gathering.num_done.fetch_add(1, std::memory_order_acq_rel) + 1 < num_members) continue;
      for (std::vector<at::Tensor>& tensors : gathering.tensors) tensors.clear();
      gathering.complete.store(step_, std::memory_order_release);
      ring_members(id);
    }
    const WaitStatus complete =
        wait(member, deadline, [&] { return gathering.complete.load(std::memory_order_acquire) == step_; });
    if (order_ != nullptr && complete == WaitStatus::kReady)
      for (std::size_t share = 0; share < num_members; ++share)
        order_->follow(gathering.first_mark + num_members + share);
    return complete;
  }

  [[nodiscard]] RankId awaited(CollectiveId id, RankId member) const override {
    const Gathering& gathering = gatherings_[static_cast<std::size_t>(id)];
    const std::vector<RankId>& members = routes_.collectives[static_cast<std::size_t>(id)].members;
    std::size_t last = 0;
    for (std::size_t place = 1; place < members.size(); ++place)
      if (gathering.entered[place].at.load() < gathering.entered[last].at.load()) last = place;
    return members[last] == member ? members.front() : members[last];
  }

  void stop() override {
    stopped_.store(true, std::memory_order_seq_cst);
    for (Doorbell& bell : bells_) bell.ring();
  }

 private:
  [[nodiscard]] std::size_t place_of(CollectiveId id, RankId member) const {
    const std::vector<RankId>& members = routes_.collectives[static_cast<std::size_t>(id)].members;
    const auto place = std::lower_bound(members.begin(), members.end(), member);
    PLAIT_CHECK(place != members.end() && *place == member, "rank {} is no member of collective {}", member.value(),
                id);
    return static_cast<std::size_t>(place - members.begin());
  }

  /// What this thread's stream does from now on may use the members' tensors.
  void follow_entries(const Gathering& gathering) {
    for (std::size_t place = 0; place < gathering.tensors.size(); ++place) {
      order_->follow(gathering.first_mark + place);
      for (const at::Tensor& tensor : gathering.tensors[place]) order_->use(tensor);
    }
  }

  void ring_members(CollectiveId id) {
    for (const RankId member : routes_.collectives[static_cast<std::size_t>(id)].members) bells_[member.index()].ring();
  }

  template <class Ready>
  WaitStatus wait(RankId rank, Clock::time_point deadline, const Ready& ready) {
    const bool in_time =
        bells_[rank.index()].wait([&] { return ready() || stopped_.load(std::memory_order_relaxed); }, deadline);
    if (ready()) return WaitStatus::kReady;
    return in_time ? WaitStatus::kStopped : WaitStatus::kTimedOut;
  }

  Routes routes_;
  std::unique_ptr<StreamOrder> order_;  ///< null: tensors lie on the host, where a message that has come is whole
  std::vector<Doorbell> bells_;         ///< per rank
  std::vector<Mailbox> mailboxes_;
  std::vector<Gathering> gatherings_;
  std::uint64_t step_ = 0;  ///< written between steps only
  std::atomic<bool> stopped_ = false;
};

}  // namespace

Bytes message_bytes(const Message& message) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : message.tensors)
    if (tensor.defined()) bytes += static_cast<std::int64_t>(tensor.nbytes());
  return Bytes{bytes};
}

std::size_t num_stream_marks(const Routes& routes) {
  std::size_t marks = routes.transfers.size();
  for (const CollectiveRoute& route : routes.collectives) marks += 2 * route.members.size();
  return marks;
}

std::unique_ptr<Transport> make_in_process_transport(Routes routes) {
  auto order =
      routes.device == c10::DeviceType::CPU ? nullptr : make_stream_order(routes.device, num_stream_marks(routes));
  return make_in_process_transport(std::move(routes), std::move(order));
}

std::unique_ptr<Transport> make_in_process_transport(Routes routes, std::unique_ptr<StreamOrder> order) {
  return std::make_unique<InProcessTransport>(std::move(routes), std::move(order));
}

}  // namespace plait
