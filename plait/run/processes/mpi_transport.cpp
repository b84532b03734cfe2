#include "plait/run/processes/mpi_transport.h"

#include "plait/base/check.h"
#include "plait/run/engine/byte_stream.h"
#include "plait/run/engine/memory.h"
#include "plait/run/engine/rank_worker.h"
#include "plait/run/processes/mpi_exchange.h"
#include "plait/run/processes/mpi_requests.h"
#include "plait/run/processes/wire.h"

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace plait {
namespace {

/// What heads of messages begin with.
struct Address {
  enum class Kind : std::uint8_t { kMessage, kMessageWithBytes, kEntry } kind = Kind::kMessage;
  std::int32_t id = 0;
  std::uint64_t step = 0;
};

constexpr std::size_t kSmall = 2048;  // bytes that go along with the head: together they stay below an eager message

/// The last step in which something was done.
struct alignas(64) DoneIn {
  std::atomic<std::uint64_t> step = 0;
};

struct Outgoing {
  WireMessage wire;
  int pending = 0;
};

struct Incoming {
  std::uint64_t posted_in = 0;
  int source = 0;
  std::optional<WireReceipt> receipt;  ///< announced, the bytes not there yet
  Message message;
  int pending = 0;
};

class MpiTransport final : public Transport, public MpiUser {
 public:
  MpiTransport(MpiWorld& world, const MpiChannels& channels, Routes routes, RankRange here,
               std::vector<int> process_of_rank, std::unique_ptr<NodeLane> lane)
      : world_(world),
        channels_(channels),
        routes_(std::move(routes)),
        here_(here),
        process_of_(std::move(process_of_rank)),
        lane_(std::move(lane)),
        inner_(make_in_process_transport(routes_)),
        bells_(static_cast<std::size_t>(here.size())),
        outgoing_(routes_.transfers.size()),
        incoming_(routes_.transfers.size()),
        transfers_done_(routes_.transfers.size()),
        exchanges_(routes_.collectives.size()),
        collectives_done_(routes_.collectives.size()) {
    check_tags();
    const MpiExchange::Context context{
        .world = &world_, .requests = &requests_, .bytes = channels_.bytes, .process = world_.index()};
    for (std::size_t c = 0; c < exchanges_.size(); ++c) {
      std::vector<int> processes;
      for (const RankId member : routes_.collectives[c].members) processes.push_back(process_of_[member.index()]);
      const bool takes_part = std::find(processes.begin(), processes.end(), world_.index()) != processes.end();
      if (!takes_part || processes.front() == processes.back()) continue;
      exchanges_[c] = std::make_unique<MpiExchange>(
          routes_.collectives[c], context, static_cast<int>(routes_.transfers.size() + 2 * c), std::move(processes));
    }
    for (std::size_t t = 0; t < routes_.transfers.size(); ++t) {
      const Transfer& transfer = routes_.transfers[t];
      is_told_of_messages_ |=
          is_here(transfer.source) != is_here(transfer.destination) && !by_lane(static_cast<TransferId>(t));
    }
    world_.add(*this);
  }
  ~MpiTransport() override {
    world_.remove(*this);
    if (stopped_.load()) return;  // others may never answer
    const auto lock = world_.hold();
    MPI_Comm_free(&channels_.heads);
    MPI_Comm_free(&channels_.bytes);
  }
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  [[nodiscard]] const Routes& routes() const override { return routes_; }

  void begin_step() override {
    inner_->begin_step();
    if (lane_ != nullptr) lane_->begin_step();
    // Weights that nobody read may still be on their way.
    world_.wait(
        [this] {
          return requests_.empty() && std::all_of(exchanges_.begin(), exchanges_.end(),
                                                  [](const auto& e) { return e == nullptr || e->at_rest(); });
        },
        [this] { return stopped_.load(); }, Clock::now() + std::chrono::hours(1));
    const auto lock = world_.hold();
    ++step_;
    for (const auto& exchange : exchanges_)
      if (exchange != nullptr) exchange->begin_step();
  }

  void send(TransferId id, Message&& message) override {
    const auto at = static_cast<std::size_t>(id);
    const Transfer& transfer = routes_.transfers[at];
    if (is_here(transfer.destination)) return inner_->send(id, std::move(message));
    if (by_lane(id)) return lane_->send(id, std::move(message));
    WireMessage wire = pack(std::move(message));
    const bool along = wire.payload() <= kSmall;
    ByteWriter head;
    head.put(Address{
                 .kind = along ? Address::Kind::kMessageWithBytes : Address::Kind::kMessage, .id = id, .step = step_})
        .put_bytes(wire.head);
    if (along)
      for (const WirePiece& piece : wire.pieces) head.append(piece.data, piece.size);
    const int process = process_of_[transfer.destination.index()];
    const auto lock = world_.hold();
    Outgoing& out = outgoing_[at];
    out.wire = std::move(wire);
    out.pending = 1;
    const auto one_left = [this, at] { one_left_of(at); };
    if (!along)
      for (const WirePiece& piece : out.wire.pieces)
        out.pending += requests_.send(piece.data, piece.size, process, id, channels_.bytes, one_left);
    send_head(process, head.take(), one_left);
  }

  void post_receive(TransferId id) override {
    const auto at = static_cast<std::size_t>(id);
    if (is_here(routes_.transfers[at].source)) return inner_->post_receive(id);
    if (by_lane(id)) return;
    const auto lock = world_.hold();
    Incoming& in = incoming_[at];
    in.posted_in = step_;
    if (in.receipt) fetch_bytes(at);
  }

  WaitStatus receive(TransferId id, Message& message, Clock::time_point deadline) override {
    const auto at = static_cast<std::size_t>(id);
    if (is_here(routes_.transfers[at].source)) return inner_->receive(id, message, deadline);
    if (by_lane(id)) return lane_->receive(id, message, deadline);
    const WaitStatus status = wait(routes_.transfers[at].destination, transfers_done_[at], deadline);
    if (status == WaitStatus::kReady) message = std::move(incoming_[at].message);
    return status;
  }

  WaitStatus wait_sent(TransferId id, Clock::time_point deadline) override {
    const auto at = static_cast<std::size_t>(id);
    if (is_here(routes_.transfers[at].destination)) return inner_->wait_sent(id, deadline);
    if (by_lane(id)) {
      lane_->drop_taken(id);
      return WaitStatus::kReady;
    }
    return wait(routes_.transfers[at].source, transfers_done_[at], deadline);
  }

  void enter(CollectiveId id, RankId member, std::span<const at::Tensor> tensors) override {
    const auto at = static_cast<std::size_t>(id);
    if (exchanges_[at] == nullptr) return inner_->enter(id, member, tensors);
    MpiExchange& exchange = *exchanges_[at];
    const auto lock = world_.hold();
    world_.expect();
    if (!exchange.enter(place_of(id, member), tensors)) return;
    const std::string announcement = ByteWriter()
                                         .put(Address{.kind = Address::Kind::kEntry, .id = id, .step = step_})
                                         .put_bytes(exchange.announcement())
                                         .take();
    for (const int process : exchange.others()) send_head(process, announcement, [] {});
    start_collective(at);
  }

  WaitStatus finish(CollectiveId id, RankId member, Clock::time_point deadline) override {
    const auto at = static_cast<std::size_t>(id);
    if (exchanges_[at] == nullptr) return inner_->finish(id, member, deadline);
    return wait(member, collectives_done_[at], deadline);
  }

  [[nodiscard]] RankId awaited(CollectiveId id, RankId member) const override {
    const auto at = static_cast<std::size_t>(id);
    if (exchanges_[at] == nullptr) return inner_->awaited(id, member);
    const std::vector<RankId>& members = routes_.collectives[at].members;
    const auto lock = world_.hold();
    for (std::size_t place = 0; place < members.size(); ++place)
      if (members[place] != member && !exchanges_[at]->has_entered(place)) return members[place];
    return members.front() == member ? members.back() : members.front();
  }

  void stop() override {
    stopped_.store(true);
    inner_->stop();
    if (lane_ != nullptr) lane_->stop();
    for (Doorbell& bell : bells_) bell.ring();
  }

  bool progress() override {
    bool moved = false;
    while (take_head()) moved = true;
    return requests_.progress() || moved;
  }
  [[nodiscard]] bool expects() const override {
    return is_told_of_messages_ || !requests_.empty() ||
           std::any_of(exchanges_.begin(), exchanges_.end(),
                       [](const auto& e) { return e != nullptr && !e->at_rest(); });
  }

 private:
  [[nodiscard]] bool is_here(RankId rank) const { return here_.contains(rank); }
  [[nodiscard]] bool by_lane(TransferId id) const { return lane_ != nullptr && lane_->carries(id); }

  void check_tags() const {
    int* highest = nullptr;
    int known = 0;
    check_mpi(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&highest), &known), "MPI_Comm_get_attr");
    constexpr int kGuaranteed = 32767;  // by the standard
    const std::size_t needed = routes_.transfers.size() + 2 * routes_.collectives.size();
    PLAIT_CHECK(needed <= static_cast<std::size_t>(known != 0 ? *highest : kGuaranteed),
                "{} transfers and collectives are more than this MPI tells apart", needed);
  }

  [[nodiscard]] std::size_t place_of(CollectiveId id, RankId member) const {
    const std::vector<RankId>& members = routes_.collectives[static_cast<std::size_t>(id)].members;
    return static_cast<std::size_t>(std::lower_bound(members.begin(), members.end(), member) - members.begin());
  }

  void send_head(int process, std::string head, std::function<void()> behind) {
    auto kept = std::make_shared<std::string>(std::move(head));
    requests_.send(kept->data(), kept->size(), process, /*tag=*/0, channels_.heads,
                   [kept, behind = std::move(behind)] { behind(); });
  }

  /// Begins to take one announcement, if there is any.
  bool take_head() {
    int found = 0;
    MPI_Message waiting = MPI_MESSAGE_NULL;
    MPI_Status status;
    check_mpi(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, channels_.heads, &found, &waiting, &status), "MPI_Improbe");
    if (found == 0) return false;
    int size = 0;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &size), "MPI_Get_count");
    auto head = std::make_shared<std::string>(static_cast<std::size_t>(size), '\0');
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Imrecv(head->data(), size, MPI_BYTE, &waiting, &request), "MPI_Imrecv");
    requests_.add(request, [this, head, source = status.MPI_SOURCE] { on_head(source, *head); });
    return true;
  }

  void on_head(int source, std::string_view head) {
    ByteReader in(head);
    const auto address = in.get<Address>();
    PLAIT_CHECK(address.step == step_, "process {} is in step {}, this one in {}", source, address.step, step_);
    const auto at = static_cast<std::size_t>(address.id);
    if (address.kind == Address::Kind::kEntry) {
      exchanges_[at]->on_announcement(source, in.get_bytes());
      start_collective(at);
      return;
    }
    Incoming& incoming = incoming_[at];
    incoming.source = source;
    incoming.receipt.emplace(in.get_bytes());
    if (address.kind == Address::Kind::kMessage) {
      if (incoming.posted_in == step_) fetch_bytes(at);
      return;
    }
    WireReceipt& receipt = *incoming.receipt;
    const AccountScope scope(in_flight_account());
    receipt.allocate();
    for (std::size_t piece = 0; piece < receipt.num_pieces(); ++piece) {
      const std::string_view bytes = in.next(receipt.size_of(piece));
      if (!bytes.empty()) std::memcpy(receipt.buffer(piece), bytes.data(), bytes.size());
    }
    has_come(at);
  }

  void fetch_bytes(std::size_t at) {
    Incoming& in = incoming_[at];
    const AccountScope scope(in_flight_account());
    in.receipt->allocate();
    in.pending = 1;
    for (std::size_t piece = 0; piece < in.receipt->num_pieces(); ++piece)
      in.pending += requests_.receive(in.receipt->buffer(piece), in.receipt->size_of(piece), in.source,
                                      static_cast<int>(at), channels_.bytes, [this, at] { one_came_of(at); });
    one_came_of(at);
  }

  void one_came_of(std::size_t at) {
    if (--incoming_[at].pending == 0) has_come(at);
  }

  void has_come(std::size_t at) {
    Incoming& in = incoming_[at];
    in.message = in.receipt->take();
    in.receipt.reset();
    is_done(transfers_done_[at]);
    ring(routes_.transfers[at].destination);
  }

  void one_left_of(std::size_t at) {
    if (--outgoing_[at].pending > 0) return;
    outgoing_[at].wire = {};
    is_done(transfers_done_[at]);
    ring(routes_.transfers[at].source);
  }

  void start_collective(std::size_t at) {
    exchanges_[at]->start_if_all_in([this, at] {
      is_done(collectives_done_[at]);
      for (const RankId member : routes_.collectives[at].members)
        if (is_here(member)) ring(member);
    });
  }

  void is_done(DoneIn& done) { done.step.store(step_, std::memory_order_release); }
  void ring(RankId rank) { bells_[static_cast<std::size_t>(rank.value() - here_.begin)].ring(); }

  WaitStatus wait(RankId rank, const DoneIn& done, Clock::time_point deadline) {
    // The default slack of 50 us would double the shortest rests.
    thread_local const int kSlackSet = prctl(PR_SET_TIMERSLACK, 1000UL);
    (void)kSlackSet;
    const std::uint64_t step = step_;
    const auto ready = [&] { return done.step.load(std::memory_order_acquire) == step; };
    Patience patience;
    for (;;) {
      if (ready()) return WaitStatus::kReady;
      if (stopped_.load(std::memory_order_relaxed)) return WaitStatus::kStopped;
      const bool moved = world_.poll();
      if (ready()) return WaitStatus::kReady;
      const Clock::time_point now = Clock::now();
      if (now >= deadline) return WaitStatus::kTimedOut;
      const Clock::duration rest = patience.next(moved);
      if (rest > Clock::duration::zero())
        bells_[static_cast<std::size_t>(rank.value() - here_.begin)].wait(
            [&] { return ready() || stopped_.load(std::memory_order_relaxed); }, std::min(deadline, now + rest));
    }
  }

  MpiWorld& world_;
  MpiChannels channels_;
  Routes routes_;
  RankRange here_;
  std::vector<int> process_of_;
  std::unique_ptr<NodeLane> lane_;
  std::unique_ptr<Transport> inner_;  ///< for what stays in this process
  bool is_told_of_messages_ = false;  ///< some come or go over MPI
  std::vector<Doorbell> bells_;       ///< per rank that is here
  MpiRequests requests_;
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  std::vector<DoneIn> transfers_done_;                   ///< sent or received, on whichever end this process is
  std::vector<std::unique_ptr<MpiExchange>> exchanges_;  ///< null where one process has all members, or this one none
  std::vector<DoneIn> collectives_done_;
  std::uint64_t step_ = 0;  ///< written between steps only
  std::atomic<bool> stopped_ = false;
};

}  // namespace

std::unique_ptr<Transport> make_mpi_transport(MpiWorld& world, const MpiChannels& channels, Routes routes,
                                              RankRange here, std::vector<int> process_of_rank,
                                              std::unique_ptr<NodeLane> lane) {
  return std::make_unique<MpiTransport>(world, channels, std::move(routes), here, std::move(process_of_rank),
                                        std::move(lane));
}

}  // namespace plait
