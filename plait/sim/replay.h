#pragma once

#include "plait/sim/simulate.h"

#include <cstdint>
#include <deque>
#include <optional>
#include <queue>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

/// The machine behind simulate(): one replay of one program. Not for other rooms.
namespace plait::sim_detail {

inline constexpr std::int32_t kNobody = -1;

/// A transfer between two ranks.
struct Message {
  std::int64_t posted = 0;  ///< when the Recv was reached
  std::int64_t left = 0;    ///< when it went on the wire (before that: when the Send was reached)
  std::int64_t arrived = 0;
  std::int32_t from = kNobody;
  std::int32_t to = kNobody;
  bool is_sent = false;
  bool is_posted = false;
  bool is_moving = false;  ///< arrived is known
  bool send_done = false;  ///< the lanes are past the instruction
  bool recv_done = false;
  bool sender_waits = false;
  bool in_batch = false;
  bool is_route = false;  ///< lives in a Route, which counts its instructions
};

/// An activation or a gradient: where it is, and its one transfer (further hops are routes). It is ready for its holder at
/// message.arrived; where it was made, left = arrived.
struct EdgeCell {
  Message message;
  std::int32_t holder = kNobody;
  std::int32_t waiter = kNobody;
};

enum class OpStage : std::uint8_t { kNothing, kForwarded, kBackwarded, kWeighted };

/// State of one (stage, micro-batch, slice): its stash, later its weight stash.
struct OpCell {
  std::int64_t ready = 0;
  std::int64_t left = 0;
  std::int32_t holder = kNobody;
  std::int32_t waiter = kNobody;
  OpStage stage = OpStage::kNothing;
};

/// Messages of one value over one channel, matched in order.
struct Route {
  std::deque<Message> messages;
  std::size_t next_send = 0;
  std::size_t next_recv = 0;
  std::size_t next_wait = 0;
};

struct RouteKey {
  Value value;
  std::int32_t from;
  std::int32_t to;
  friend bool operator==(const RouteKey&, const RouteKey&) = default;
};
struct RouteKeyHash {
  std::size_t operator()(const RouteKey& key) const noexcept;
};

/// A group's weight (or a received part of its gradient) on one rank.
struct GroupCell {
  bool present = false;  ///< a home's own, whole
  struct Copy {
    std::int64_t ready = 0;
    std::int64_t left = 0;
  };
  std::deque<Copy> copies;  ///< gathered, broadcast or received; the oldest is read and freed first
  /// A partial gradient whose receive is posted; an Add takes the oldest.
  struct Partial {
    std::int32_t from = kNobody;
    bool arrives = false;  ///< ready and left are known
    std::int64_t ready = 0;
    std::int64_t left = 0;
  };
  std::deque<Partial> partials;
  bool partial = false;  ///< a partial gradient lies here
  bool kept = false;     ///< from start to end: the gradient of a home that never gives it away
  /// When the weight that is read is here; a home reads its own.
  [[nodiscard]] bool readable() const { return present || !copies.empty(); }
  [[nodiscard]] std::int64_t ready() const { return present ? 0 : copies.front().ready; }
};

struct CollectiveState {
  std::size_t entered = 0;
  std::int64_t start = 0;
  std::int64_t done = 0;
  bool complete = false;
  std::optional<std::size_t> keeper;  ///< of a sum that not all members keep whole: the root, or no rank at all
  std::vector<std::int32_t> waiters;
};
struct CollectiveHash {
  std::size_t operator()(const Collective& collective) const noexcept;
};

/// Slots of a bounded channel.
struct Channel {
  int taken = 0;
  std::deque<std::int64_t> released;
  std::int32_t waiter = kNobody;
};

/// What a Batch instruction posts together.
struct PostedBatch {
  std::int32_t parent = kNobody;                     ///< union-find over the batches that swap with each other
  int missing = 0;                                   ///< at the root: instructions of the set that are not reached yet
  std::int64_t posted = 0;                           ///< at the root: when the latest was reached
  std::vector<std::pair<Message*, Value>> messages;  ///< at the root: what moves then
};

struct Lane {
  std::int64_t clock = 0;
  std::size_t next = 0;
  std::int64_t busy = 0;
  std::int64_t op_busy = 0;
  std::int64_t exposed = 0;
  std::int64_t exposed_since_op = 0;  ///< counts only if another op follows
  std::int64_t first_start = 0;
  std::int64_t last_end = 0;       ///< of ops
  std::int64_t last_busy_end = 0;  ///< of everything that takes time
  std::int64_t validated = 0;      ///< when its steps were validated
  std::int64_t undo_bytes = 0;     ///< of steps that are not validated yet
  std::size_t trial_end = 0;       ///< steps before this position are validated there
  std::int64_t bytes = 0;
  std::int64_t peak_bytes = 0;
  int peak_position = -1;
  int stashes = 0;
  int peak_stashes = 0;
  std::size_t turn = 0;
  bool in_turn = false;
  bool started = false;
  bool queued = false;
  std::size_t pair_done_until = 0;  ///< ops and receives before this position ran as part of a pair
  std::vector<std::pair<WaitCollective, std::size_t>> entered;
  std::unordered_map<Collective, std::size_t, CollectiveHash> rounds;  ///< how often it entered each
};

class Replay {
 public:
  Replay(const Program& program, const CostModel& costs, const SimOptions& options);
  Result<SimResult> run();

 private:
  enum class Progress : std::uint8_t { kDone, kBlocked, kFailed };

  // Scheduling.
  Result<> drain();
  Progress advance(std::size_t rank);
  Progress step(std::size_t rank, const Instr& instr);
  void push(std::int32_t rank, std::int64_t key);
  void wake(std::int32_t& waiter, std::int64_t key);
  void wait_on(std::int32_t& waiter, std::size_t rank);

  // Instructions.
  Progress run_op(std::size_t rank, const Op& op);
  Progress run_pair(std::size_t rank);
  Progress inputs_of(std::size_t rank, const Op& op, std::int64_t& ready, std::int64_t& left);
  [[nodiscard]] bool serves_next(std::size_t rank, const Op& recompute) const;
  void finish_op(std::size_t rank, const Op& op, std::int64_t end);
  void account_op(std::size_t rank, const Op& op, std::int64_t start, std::int64_t end);
  Progress weights_of(std::size_t rank, const Op& op, std::int64_t& ready, std::int64_t& left);
  Progress send(std::size_t rank, const Send& send);
  Progress recv(std::size_t rank, const Recv& recv);
  Progress wait_send(std::size_t rank, const WaitSend& wait);
  Progress enter(std::size_t rank, const Collective& collective);
  Progress wait_collective(std::size_t rank, const WaitCollective& wait);
  Progress free_weight(std::size_t rank, const Free& free);
  Progress add(std::size_t rank, const Add& add);
  Progress optimizer_step(std::size_t rank, const Step& step);
  Progress validate(std::size_t rank);
  Progress end_turn(std::size_t rank);

  // Values and messages.
  enum class Role : std::uint8_t { kSend, kRecv, kWait };
  Message& message_of(const Value& value, std::int32_t from, std::int32_t to, Role role);
  Progress close(Message& message, const Value& value, Role role);
  Progress take_for_send(std::size_t rank, const Send& send);
  void deliver(const Value& value, const Message& message);
  void depart(const Value& value, Message& message, std::int64_t now);
  std::int64_t arrival(std::int32_t from, std::int32_t to, std::int64_t now, std::int64_t bytes);
  void stand_still(std::size_t rank, std::int64_t until);
  void hold_bytes(std::size_t rank, std::int64_t bytes);
  [[nodiscard]] std::int64_t taken_over(const Op& op) const;
  [[nodiscard]] std::int64_t buffer_bytes(const Value& value) const;
  [[nodiscard]] bool valid(const Value& value) const;

  // Batches.
  void make_batches();
  [[nodiscard]] bool in_batch(std::size_t rank) const {
    return !batches_.empty() && batch_at_[rank][lanes_[rank].next] != kNobody;
  }
  std::int32_t root_of(std::int32_t batch);
  void post(std::size_t rank, Message* message, const Value& value);

  Result<> check_limits() const;
  void place_static_bytes();
  void take_known_memory(SimResult& result) const;
  [[nodiscard]] std::vector<bool> gradients_that_leave() const;
  /// Buffers of weights and gradients are whole ones at both ends, whatever is counted for activations.
  [[nodiscard]] bool at_both_ends(const Value& value) const {
    return value.is_group() || costs_.messages == MessageBytes::kBothEnds;
  }
  Progress fail(std::size_t rank, std::string_view rule, std::string_view text);
  [[nodiscard]] Error stuck() const;
  SimResult figures();

  [[nodiscard]] std::size_t edge_cell(std::size_t edge, MicrobatchId m, SliceId q) const {
    return (edge * num_microbatches_ + m.index()) * num_slices_ + q.index();
  }
  [[nodiscard]] std::size_t op_cell(const Op& op) const { return edge_cell(op.stage.index(), op.microbatch, op.slice); }
  EdgeCell* edge_of(const Value& value);
  OpCell* stash_of(const Value& value);

  const Program& program_;
  const Layout& layout_;
  const CostModel& costs_;
  SimOptions options_;
  std::size_t num_ranks_;
  std::size_t num_microbatches_;
  std::size_t num_slices_;
  bool ordered_;  ///< links are shared, so ranks advance in the order of time
  bool timeline_;
  std::vector<Lane> lanes_;
  std::vector<EdgeCell> activations_;
  std::vector<EdgeCell> gradients_;
  std::vector<OpCell> ops_;
  std::vector<GroupCell> groups_;            ///< [group][rank]
  std::vector<std::uint8_t> needs_weights_;  ///< [stage][rank]: weights may be absent there
  std::vector<std::vector<std::int32_t>> into_;
  std::vector<std::vector<std::int32_t>> out_of_;
  std::unordered_map<RouteKey, Route, RouteKeyHash> routes_;
  std::unordered_map<Collective, std::vector<std::size_t>, CollectiveHash> collective_rounds_;
  std::vector<CollectiveState> collectives_;
  std::vector<std::int64_t> set_free_;  ///< per rank set: when its last collective is done; they run one by one
  std::vector<Channel> channels_;       ///< [from][to], bounded only
  std::vector<std::int64_t> inner_out_, inner_in_, outer_out_, outer_in_;  ///< when each port is free again
  std::vector<CollectiveState> turns_;
  std::vector<PostedBatch> batches_;
  std::vector<std::vector<std::int32_t>> batch_at_;  ///< per rank and position; empty where no batch stands or matters
  std::vector<std::int32_t> ready_;
  std::size_t ready_head_ = 0;
  std::priority_queue<std::pair<std::int64_t, std::int32_t>, std::vector<std::pair<std::int64_t, std::int32_t>>,
                      std::greater<>>
      heap_;
  std::vector<std::int32_t> shared_waiters_;  ///< ranks that wait for something another rank also waits for
  std::uint64_t events_ = 0;
  TransferFigures transfers_;
  std::vector<std::vector<InstrTime>> times_;
  std::vector<std::vector<Held>> held_;
  std::vector<TransferTime> messages_;
  std::optional<Error> error_;
};

}  // namespace plait::sim_detail
