#include "plait/base/check.h"
#include "plait/run/engine/segments.h"
#include "plait/run/engine/transport.h"

#include <algorithm>
#include <atomic>

namespace plait {
namespace {

/// Mailbox of one transfer. The message belongs to the source until `sent` has the number of the step, then to the
/// destination until the step ends.
struct alignas(64) Mailbox {
  std::atomic<std::uint64_t> sent = 0;
  Message message;
};

/// How far one member is with a collective: step * kPhases + phase.
struct alignas(64) Progress {
  std::atomic<std::uint64_t> at = 0;
};
enum Phase : std::uint64_t { kEntered = 1, kFirstDone = 2, kSecondDone = 3, kPhases = 4 };

struct Gathering {
  std::vector<Progress> progress;
  std::vector<std::span<const at::Tensor>> tensors;  ///< per member
};

class InProcessTransport final : public Transport {
 public:
  explicit InProcessTransport(Routes routes)
      : routes_(std::move(routes)),
        bells_(static_cast<std::size_t>(routes_.num_ranks)),
        mailboxes_(routes_.transfers.size()),
        gatherings_(routes_.collectives.size()) {
    for (std::size_t c = 0; c < gatherings_.size(); ++c) {
      const std::size_t num_members = routes_.collectives[c].members.size();
      gatherings_[c].progress = std::vector<Progress>(num_members);
      gatherings_[c].tensors.resize(num_members);
    }
  }

  [[nodiscard]] const Routes& routes() const override { return routes_; }
  void begin_step() override { ++step_; }

  void send(TransferId id, Message&& message) override {
    Mailbox& box = mailboxes_[static_cast<std::size_t>(id)];
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
    if (status == WaitStatus::kReady) message = std::move(box.message);
    return status;
  }

  void enter(CollectiveId id, RankId member, std::span<const at::Tensor> tensors) override {
    const std::size_t place = place_of(id, member);
    gatherings_[static_cast<std::size_t>(id)].tensors[place] = tensors;
    advance(id, place, kEntered);
  }

  WaitStatus finish(CollectiveId id, RankId member, Clock::time_point deadline) override {
    const CollectiveRoute& route = routes_.collectives[static_cast<std::size_t>(id)];
    const std::vector<std::span<const at::Tensor>>& tensors = gatherings_[static_cast<std::size_t>(id)].tensors;
    const std::size_t me = place_of(id, member);
    const std::size_t root = static_cast<std::size_t>(
        std::find(route.members.begin(), route.members.end(), route.root) - route.members.begin());
    if (route.members.size() == 1) return WaitStatus::kReady;
    if (const WaitStatus status = wait_all(id, member, kEntered, deadline); status != WaitStatus::kReady) return status;
    // Each phase writes only what no other member reads in it; nobody leaves before all are through with its tensors.
    switch (route.kind) {
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kReduceScatter: sum_segment(tensors, me); break;
      case CollectiveKind::kReduce:
        if (me == root) sum_whole(tensors, me);
        break;
      case CollectiveKind::kBroadcast:
        if (me != root) copy_whole(tensors, root, me);
        break;
      case CollectiveKind::kAllGather: copy_other_segments(tensors, me); break;
      case CollectiveKind::kAllToAll: PLAIT_CHECK(false, "all_to_all is refused at binding");
    }
    advance(id, me, kFirstDone);
    if (const WaitStatus status = wait_all(id, member, kFirstDone, deadline); status != WaitStatus::kReady)
      return status;
    if (route.kind != CollectiveKind::kAllReduce) return WaitStatus::kReady;
    copy_other_segments(tensors, me);
    advance(id, me, kSecondDone);
    return wait_all(id, member, kSecondDone, deadline);
  }

  [[nodiscard]] RankId awaited(CollectiveId id, RankId member) const override {
    const Gathering& gathering = gatherings_[static_cast<std::size_t>(id)];
    const std::vector<RankId>& members = routes_.collectives[static_cast<std::size_t>(id)].members;
    std::size_t last = 0;
    for (std::size_t place = 1; place < members.size(); ++place)
      if (gathering.progress[place].at.load() < gathering.progress[last].at.load()) last = place;
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

  void advance(CollectiveId id, std::size_t place, Phase phase) {
    gatherings_[static_cast<std::size_t>(id)].progress[place].at.store(step_ * kPhases + phase,
                                                                       std::memory_order_release);
    for (const RankId member : routes_.collectives[static_cast<std::size_t>(id)].members) bells_[member.index()].ring();
  }

  WaitStatus wait_all(CollectiveId id, RankId member, Phase phase, Clock::time_point deadline) {
    const Gathering& gathering = gatherings_[static_cast<std::size_t>(id)];
    return wait(member, deadline, [&] {
      return std::all_of(gathering.progress.begin(), gathering.progress.end(), [&](const Progress& progress) {
        return progress.at.load(std::memory_order_acquire) >= step_ * kPhases + phase;
      });
    });
  }

  template <class Ready>
  WaitStatus wait(RankId rank, Clock::time_point deadline, const Ready& ready) {
    const bool in_time =
        bells_[rank.index()].wait([&] { return ready() || stopped_.load(std::memory_order_relaxed); }, deadline);
    if (ready()) return WaitStatus::kReady;
    return in_time ? WaitStatus::kStopped : WaitStatus::kTimedOut;
  }

  Routes routes_;
  std::vector<Doorbell> bells_;  ///< per rank
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

std::unique_ptr<Transport> make_in_process_transport(Routes routes) {
  return std::make_unique<InProcessTransport>(std::move(routes));
}

}  // namespace plait
