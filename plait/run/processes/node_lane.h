#pragma once

#include "plait/run/engine/process_group.h"
#include "plait/run/engine/transport.h"
#include "plait/run/processes/node_memory.h"
#include "plait/run/processes/wire.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace plait {

/// Transfers between processes of one machine, as much like those between threads as processes allow. Each process has a
/// mailbox for every transfer that comes to it from others, in memory that these map: a sender writes what it sends and
/// where it lies, and rings; the receiver copies it straight from the sender's memory into fresh tensors when it is first
/// read. Nobody polls, nobody else is needed, and a send is through at once: what it sent stays until it was taken.
///
///     NodeLane lane(routes, here, process_of_rank, process);
///     lane.use(lane.try_reach(cards of all))        // what all processes can reach both ways, see MpiGroup::open
///     lane.carries(id)                              // is it a transfer that goes this way?
///
/// \threads  as Transport
class NodeLane {
 public:
  NodeLane(const Routes& routes, RankRange here, const std::vector<int>& process_of_rank, int process);
  ~NodeLane();
  NodeLane(const NodeLane&) = delete;
  NodeLane& operator=(const NodeLane&) = delete;

  /// What others need to reach this process's memory.
  [[nodiscard]] std::string card() const;
  /// By process, whether its memory can be mapped and read: false on another machine, or where the system forbids it.
  std::vector<std::uint8_t> try_reach(const std::vector<std::string>& cards);
  /// From now on, of the processes in reach only these. Nobody maps this process's memory any more.
  void use(const std::vector<std::uint8_t>& processes);

  [[nodiscard]] bool carries(TransferId id) const { return places_[static_cast<std::size_t>(id)].peer != kNone; }

  void begin_step();
  void send(TransferId id, Message&& message);
  WaitStatus receive(TransferId id, Message& message, Clock::time_point deadline);
  /// Drops what the rank of the transfer has sent and others have taken.
  void drop_taken(TransferId id);
  void stop();

 private:
  static constexpr int kNone = -1;
  struct Mailbox;
  struct Memory;

  /// Of a transfer between here and another process: that process, and the mailbox in the receiver's memory.
  struct Place {
    RankId source;
    RankId destination;
    int peer = kNone;
    std::size_t mailbox = 0;
  };
  struct Peer {
    pid_t pid = 0;
    std::size_t num_ranks = 0;
    SharedMemory memory;
  };
  struct Sent {
    TransferId id = 0;
    std::uint64_t step = 0;
    WireMessage wire;
  };

  [[nodiscard]] Mailbox& outgoing(TransferId id) const;
  /// What is ready for a message before it comes: of the last step, whose form it most likely has again.
  struct Prepared {
    std::string head;
    std::optional<WireReceipt> receipt;
  };
  [[nodiscard]] bool has_come(const Mailbox& box) const;
  WaitStatus await(RankId rank, const Mailbox& box, Clock::time_point deadline);
  bool take(const Place& place, Mailbox& box, Prepared& prepared, Message& message);

  RankRange here_;
  int process_;
  std::vector<Place> places_;    ///< per transfer
  std::vector<int> first_rank_;  ///< per process
  std::optional<SharedMemory> own_;
  std::vector<Peer> peers_;              ///< per process
  std::vector<Prepared> prepared_;       ///< per transfer
  std::vector<std::vector<Sent>> sent_;  ///< per rank that is here: what others may still read
  std::uint64_t probe_ = 0;              ///< read by others to see whether they can
  Clock::duration spin_{};
  std::uint64_t step_ = 0;  ///< written between steps only
  std::atomic<bool> stopped_ = false;
};

}  // namespace plait
