#include "plait/run/processes/node_lane.h"

#include "plait/base/check.h"
#include "plait/run/engine/byte_stream.h"
#include "plait/run/engine/memory.h"
#include "plait/run/engine/rank_worker.h"

#include <sched.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <random>
#include <utility>

namespace plait {

/// What was sent, for who takes it. The sender writes until `sent` has the number of the step, then the receiver reads.
struct alignas(64) NodeLane::Mailbox {
  static constexpr std::size_t kRoom = 1000;
  std::atomic<std::uint64_t> sent;
  std::atomic<std::uint64_t> taken;
  std::uint32_t head_size;
  std::uint32_t num_bytes;  ///< of head, addresses and what goes along; where there is no room, they lie elsewhere
  std::uint64_t elsewhere;
  std::byte bytes[kRoom];
};

struct NodeLane::Memory {
  static std::size_t size(std::size_t num_ranks, std::size_t num_mailboxes) {
    return 64 + num_ranks * sizeof(SharedDoorbell) + num_mailboxes * sizeof(Mailbox);
  }
  static std::uint64_t* probe(const SharedMemory& memory) { return reinterpret_cast<std::uint64_t*>(memory.data()); }
  static SharedDoorbell* bells(const SharedMemory& memory) {
    return reinterpret_cast<SharedDoorbell*>(memory.data() + 64);
  }
  static Mailbox* mailboxes(const SharedMemory& memory, std::size_t num_ranks) {
    return reinterpret_cast<Mailbox*>(bells(memory) + num_ranks);
  }
};

namespace {

struct Card {
  SharedMemory::Address memory;
  std::uint64_t probe = 0;
  std::uint64_t probe_at = 0;  ///< address in the process
};

/// A wait of some microseconds is best waited out, a sleep and a wake-up take longer: where every rank has its core.
Clock::duration spin_of(RankRange here, std::size_t num_ranks) {
  constexpr std::chrono::milliseconds kSpin{1};  // a hand-over of 4 MiB there and back
  cpu_set_t mine;
  CPU_ZERO(&mine);
  if (sched_getaffinity(0, sizeof(mine), &mine) != 0) return {};
  const int cores = CPU_COUNT(&mine);
  const bool is_bound = cores < get_nprocs();
  return (is_bound ? here.size() : static_cast<int>(num_ranks)) <= cores ? Clock::duration(kSpin) : Clock::duration{};
}

}  // namespace

NodeLane::NodeLane(const Routes& routes, RankRange here, const std::vector<int>& process_of_rank, int process)
    : here_(here), process_(process), places_(routes.transfers.size()), prepared_(routes.transfers.size()) {
  const int num_processes = process_of_rank.back() + 1;
  first_rank_.assign(static_cast<std::size_t>(num_processes), 0);
  peers_.resize(static_cast<std::size_t>(num_processes));
  for (std::size_t rank = process_of_rank.size(); rank-- > 0;) {
    first_rank_[static_cast<std::size_t>(process_of_rank[rank])] = static_cast<int>(rank);
    ++peers_[static_cast<std::size_t>(process_of_rank[rank])].num_ranks;
  }
  std::vector<std::size_t> num_mailboxes(static_cast<std::size_t>(num_processes), 0);
  for (std::size_t t = 0; t < places_.size(); ++t) {
    const Transfer& transfer = routes.transfers[t];
    const int from = process_of_rank[transfer.source.index()];
    const int to = process_of_rank[transfer.destination.index()];
    places_[t] = {.source = transfer.source, .destination = transfer.destination};
    if (from == to) continue;
    const std::size_t mailbox = num_mailboxes[static_cast<std::size_t>(to)]++;
    if (from != process_ && to != process_) continue;
    places_[t].peer = from == process_ ? to : from;
    places_[t].mailbox = mailbox;
  }
  sent_.resize(static_cast<std::size_t>(here.size()));
  std::random_device device;
  probe_ = (std::uint64_t{device()} << 32U) | device();
  const auto num_here = static_cast<std::size_t>(here.size());
  own_ = SharedMemory::make(Memory::size(num_here, num_mailboxes[static_cast<std::size_t>(process_)]));
  if (!own_) return;
  *Memory::probe(*own_) = probe_;
  for (std::size_t rank = 0; rank < num_here; ++rank) new (Memory::bells(*own_) + rank) SharedDoorbell;
}

NodeLane::~NodeLane() = default;

std::string NodeLane::card() const {
  if (!own_) return {};
  return ByteWriter()
      .put(Card{.memory = own_->address(), .probe = probe_, .probe_at = reinterpret_cast<std::uint64_t>(&probe_)})
      .take();
}

std::vector<std::uint8_t> NodeLane::try_reach(const std::vector<std::string>& cards) {
  std::vector<std::uint8_t> in_reach(peers_.size(), 0);
  for (std::size_t process = 0; process < peers_.size(); ++process) {
    if (static_cast<int>(process) == process_ || cards[process].empty() || !own_) continue;
    const auto card = ByteReader(cards[process]).get<Card>();
    auto memory = SharedMemory::map(card.memory);
    // Another process may have that number here, if its owner lives on another machine.
    if (!memory || *Memory::probe(*memory) != card.probe) continue;
    std::uint64_t seen = 0;
    const RemotePiece probe{.into = &seen, .from = card.probe_at, .size = sizeof(seen)};
    if (!read_process(card.memory.process, {&probe, 1}) || seen != card.probe) continue;
    peers_[process].pid = card.memory.process;
    peers_[process].memory = std::move(*memory);
    in_reach[process] = 1;
  }
  return in_reach;
}

void NodeLane::use(const std::vector<std::uint8_t>& processes) {
  if (own_) own_->close_file();
  auto num_ranks = static_cast<std::size_t>(here_.size());
  for (std::size_t process = 0; process < peers_.size(); ++process)
    if (processes[process] != 0) num_ranks += peers_[process].num_ranks;
  for (Place& place : places_)
    if (place.peer != kNone && processes[static_cast<std::size_t>(place.peer)] == 0) place.peer = kNone;
  spin_ = spin_of(here_, num_ranks);
}

void NodeLane::begin_step() {
  ++step_;
  // All have begun the step before this one, so nobody takes what is older.
  for (std::vector<Sent>& sent : sent_)
    std::erase_if(sent, [&](const Sent& one) {
      return one.step + 1 < step_ || outgoing(one.id).taken.load(std::memory_order_acquire) == one.step;
    });
}

NodeLane::Mailbox& NodeLane::outgoing(TransferId id) const {
  const Place& place = places_[static_cast<std::size_t>(id)];
  const Peer& peer = peers_[static_cast<std::size_t>(place.peer)];
  return Memory::mailboxes(peer.memory, peer.num_ranks)[place.mailbox];
}

void NodeLane::send(TransferId id, Message&& message) {
  const Place& place = places_[static_cast<std::size_t>(id)];
  drop_taken(id);
  std::vector<Sent>& sent = sent_[static_cast<std::size_t>(place.source.value() - here_.begin)];
  sent.push_back({.id = id, .step = step_, .wire = pack(std::move(message))});
  WireMessage& wire = sent.back().wire;
  const std::size_t payload = wire.payload();
  const std::size_t plain = wire.head.size() + wire.pieces.size() * sizeof(std::uint64_t);
  const bool along = wire.head.size() + payload <= Mailbox::kRoom;
  const bool in_place = along || plain <= Mailbox::kRoom;

  Mailbox& box = outgoing(id);
  box.head_size = static_cast<std::uint32_t>(wire.head.size());
  box.num_bytes = static_cast<std::uint32_t>(along ? wire.head.size() + payload : plain);
  box.elsewhere = 0;
  if (!along)
    for (const WirePiece& piece : wire.pieces) {
      const auto address = reinterpret_cast<std::uint64_t>(piece.data);
      wire.head.append(reinterpret_cast<const char*>(&address), sizeof(address));
    }
  if (in_place)
    std::memcpy(box.bytes, wire.head.data(), wire.head.size());
  else
    box.elsewhere = reinterpret_cast<std::uint64_t>(wire.head.data());
  if (along) {
    std::byte* at = box.bytes + wire.head.size();
    for (const WirePiece& piece : wire.pieces) {
      if (piece.size > 0) std::memcpy(at, piece.data, piece.size);
      at += piece.size;
    }
    sent.pop_back();
  }
  box.sent.store(step_, std::memory_order_release);
  const auto peer = static_cast<std::size_t>(place.peer);
  Memory::bells(peers_[peer].memory)[place.destination.value() - first_rank_[peer]].ring();
}

bool NodeLane::has_come(const Mailbox& box) const {
  return box.sent.load(std::memory_order_acquire) == step_;
}

WaitStatus NodeLane::await(RankId rank, const Mailbox& box, Clock::time_point deadline) {
  const auto over = [&] { return has_come(box) || stopped_.load(std::memory_order_relaxed); };
  if (!over() && spin_ > Clock::duration::zero()) {
    constexpr int kLooks = 32;  // about 1 us between two looks at the clock
    const Clock::time_point until = std::min(deadline, Clock::now() + spin_);
    do {
      for (int look = 0; look < kLooks && !over(); ++look) __builtin_ia32_pause();
    } while (!over() && Clock::now() < until);
  }
  const bool in_time = Memory::bells(*own_)[rank.value() - here_.begin].wait(over, deadline);
  if (has_come(box)) return WaitStatus::kReady;
  return in_time ? WaitStatus::kStopped : WaitStatus::kTimedOut;
}

WaitStatus NodeLane::receive(TransferId id, Message& message, Clock::time_point deadline) {
  const Place& place = places_[static_cast<std::size_t>(id)];
  const RankId rank = place.destination;
  Mailbox& box = Memory::mailboxes(*own_, static_cast<std::size_t>(here_.size()))[place.mailbox];
  Prepared& prepared = prepared_[static_cast<std::size_t>(id)];
  if (!prepared.head.empty() && !has_come(box)) {
    prepared.receipt.emplace(prepared.head);
    const AccountScope scope(in_flight_account());
    prepared.receipt->allocate();
  }
  const WaitStatus status = await(rank, box, deadline);
  if (status != WaitStatus::kReady) return status;
  if (take(place, box, prepared, message)) {
    box.taken.store(step_, std::memory_order_release);
    return WaitStatus::kReady;
  }
  // The sender died: whoever watches it says so and stops all waits.
  const bool in_time = Memory::bells(*own_)[rank.value() - here_.begin].wait(
      [&] { return stopped_.load(std::memory_order_relaxed); }, deadline);
  return in_time ? WaitStatus::kStopped : WaitStatus::kTimedOut;
}

/// False where the sender cannot be read any more.
bool NodeLane::take(const Place& place, Mailbox& box, Prepared& prepared, Message& message) {
  const pid_t sender = peers_[static_cast<std::size_t>(place.peer)].pid;
  std::string fetched;
  std::string_view bytes(reinterpret_cast<const char*>(box.bytes), std::min<std::size_t>(box.num_bytes, box.kRoom));
  if (box.elsewhere != 0) {
    fetched.resize(box.num_bytes);
    const RemotePiece piece{.into = fetched.data(), .from = box.elsewhere, .size = fetched.size()};
    if (!read_process(sender, {&piece, 1})) return false;
    bytes = fetched;
  }
  const std::string_view head = bytes.substr(0, box.head_size);
  if (!prepared.receipt || prepared.head != head) {
    prepared.head = head;
    prepared.receipt.emplace(head);
    const AccountScope scope(in_flight_account());
    prepared.receipt->allocate();
  }
  WireReceipt receipt = *std::exchange(prepared.receipt, std::nullopt);
  ByteReader rest(bytes.substr(box.head_size));
  std::size_t payload = 0;
  for (std::size_t piece = 0; piece < receipt.num_pieces(); ++piece) payload += receipt.size_of(piece);
  if (box.head_size + payload <= Mailbox::kRoom) {
    for (std::size_t piece = 0; piece < receipt.num_pieces(); ++piece)
      if (const std::string_view data = rest.next(receipt.size_of(piece)); !data.empty())
        std::memcpy(receipt.buffer(piece), data.data(), data.size());
  } else {
    std::vector<RemotePiece> pieces(receipt.num_pieces());
    for (std::size_t piece = 0; piece < pieces.size(); ++piece)
      pieces[piece] = {
          .into = receipt.buffer(piece), .from = rest.get<std::uint64_t>(), .size = receipt.size_of(piece)};
    if (!read_process(sender, pieces)) return false;
  }
  message = receipt.take();
  return true;
}

void NodeLane::drop_taken(TransferId id) {
  const Place& place = places_[static_cast<std::size_t>(id)];
  std::erase_if(sent_[static_cast<std::size_t>(place.source.value() - here_.begin)],
                [&](const Sent& one) { return outgoing(one.id).taken.load(std::memory_order_acquire) == one.step; });
}

void NodeLane::stop() {
  stopped_.store(true);
  if (!own_) return;
  for (std::int32_t rank = 0; rank < here_.size(); ++rank) Memory::bells(*own_)[rank].ring();
}

}  // namespace plait
