#include "plait/verify/replay.h"

#include "plait/verify/notation.h"

#include <algorithm>
#include <tuple>

namespace plait::verifying {
namespace {

class Replay {
 public:
  Replay(const Space& space, const std::vector<Row>& rows, const Structure& structure, const Messages& messages,
         const Collectives& collectives, const Trace& trace, const VerifyOptions& options, Report& report)
      : space_(space),
        rows_(rows),
        structure_(structure),
        messages_(messages),
        collectives_(collectives),
        trace_(trace),
        rule_(options.transfers),
        buffers_(static_cast<std::uint32_t>(std::max(options.buffers, 1))),
        report_(report),
        next_(trace.begin),
        flags_(messages.sends.size()),
        entered_(collectives.set_of_run.size()),
        sum_of_run_(collectives.set_of_run.size()),
        partial_(trace.num_slots) {}

  void run() {
    if (rule_ == TransferRule::kBounded) number_pairs();
    const bool gradients_travel = std::any_of(messages_.out.begin(), messages_.out.end(),
                                              [](const Lane& lane) { return lane.kind == ValueKind::kWeightGrad; });
    carried_ = std::vector<std::int64_t>(gradients_travel ? messages_.sends.size() : 0);
    for (std::size_t rank = rows_.size(); rank-- > 0;) runnable_.push_back(static_cast<std::uint32_t>(rank));
    while (!runnable_.empty()) {
      const std::uint32_t rank = runnable_.back();
      runnable_.pop_back();
      advance(rank);
    }
    report_circles();
  }

 private:
  // Bits of a message.
  static constexpr std::uint8_t kSent = 1;
  static constexpr std::uint8_t kPosted = 2;
  static constexpr std::uint8_t kReaderWaits = 4;  // blocked at kAwaitArrival, or at kPost under rendezvous
  static constexpr std::uint8_t kSenderWaits = 8;  // blocked at kAwaitPosted, or at kSend under rendezvous
  static constexpr std::uint8_t kSlotWaits = 16;   // blocked at kSend, all slots of its pair taken

  void wake(std::int32_t rank) { runnable_.push_back(static_cast<std::uint32_t>(rank)); }

  void advance(std::uint32_t rank) {
    const std::size_t end = trace_.begin[rank + 1];
    for (std::size_t& at = next_[rank]; at < end; ++at) {
      const Event event = trace_.events[at];
      switch (event.kind()) {
        case EventKind::kSend:
          if (!send(event.id())) return;
          break;
        case EventKind::kPost:
          if (!post(event.id())) return;
          break;
        case EventKind::kAwaitArrival:
          if (!has(event.id(), kSent, kReaderWaits)) return;
          break;
        case EventKind::kAwaitPosted:
          if (!has(event.id(), kPosted, kSenderWaits)) return;
          break;
        case EventKind::kEnter: enter(event.id()); break;
        case EventKind::kAwaitRun:
          if (entered_[event.id()] < members(event.id()).size()) return;
          break;
        case EventKind::kGrad: act(trace_.grads[event.id()], rank, event.position); break;
      }
    }
  }

  /// Whether both ends of a message block until matched. Those of a batch do not: its readers wait for the peer to post.
  /// Ends of a batch stand next to each other and none of them blocks, so one that is posted means that all are.
  [[nodiscard]] bool meets(MessageId id) const { return rule_ == TransferRule::kRendezvous && !trace_.in_batch(id); }

  [[nodiscard]] bool takes_slot(MessageId id) const { return rule_ == TransferRule::kBounded && !trace_.in_batch(id); }

  bool has(MessageId id, std::uint8_t wanted, std::uint8_t waiter) {
    // Where ends block until they have met, they have met already and the waits are ignored.
    if (meets(id) || (flags_[id] & wanted) != 0) return true;
    flags_[id] |= waiter;
    return false;
  }

  bool send(MessageId id) {
    std::uint8_t& flags = flags_[id];
    if (takes_slot(id) && (flags & kPosted) == 0) {
      Pair& pair = pairs_[pair_of_lane_[lane_index(id)]];
      if (pair.taken == buffers_) {
        flags |= kSlotWaits;
        pair.waiting = id;
        return false;
      }
      ++pair.taken;
    }
    flags |= kSent;
    if (meets(id) && (flags & kPosted) == 0) {
      flags |= kSenderWaits;
      return false;
    }
    if ((flags & kReaderWaits) != 0) {
      flags = static_cast<std::uint8_t>(flags & ~kReaderWaits);
      wake(messages_.lane_of(id).to);
    }
    return true;
  }

  bool post(MessageId id) {
    std::uint8_t& flags = flags_[id];
    flags |= kPosted;
    if (meets(id) && (flags & kSent) == 0) {
      flags |= kReaderWaits;
      return false;
    }
    if ((flags & kSenderWaits) != 0) {
      flags = static_cast<std::uint8_t>(flags & ~kSenderWaits);
      wake(messages_.lane_of(id).from);
    }
    if (takes_slot(id)) free_slot(id, flags);
    return true;
  }

  /// The receive is posted: the slot of its message, if it has one, is free again.
  void free_slot(MessageId id, std::uint8_t& flags) {
    Pair& pair = pairs_[pair_of_lane_[lane_index(id)]];
    if ((flags & kSent) != 0) --pair.taken;
    // A send that finds its receive posted needs no slot, and one that waited for a slot may go on.
    if (pair.waiting == kNoMessage || (pair.waiting != id && pair.taken == buffers_)) return;
    flags_[pair.waiting] = static_cast<std::uint8_t>(flags_[pair.waiting] & ~kSlotWaits);
    pair.waiting = kNoMessage;
    wake(messages_.lane_of(id).from);
  }

  [[nodiscard]] const std::vector<RankId>& members(RunId run) const {
    return space_.layout().rank_sets[collectives_.set_of_run[run].index()];
  }

  void enter(RunId run) {
    const std::vector<RankId>& all = members(run);
    if (++entered_[run] < all.size()) return;
    for (const RankId member : all) {
      const std::size_t at = next_[member.index()];
      if (at < trace_.begin[member.index() + 1] && trace_.events[at].kind() == EventKind::kAwaitRun &&
          trace_.events[at].id() == run)
        wake(member.value());
    }
  }

  void act(const GradAction& action, std::uint32_t rank, std::uint32_t position) {
    std::int64_t& partial = partial_[action.slot];
    partial += action.own;
    switch (action.kind) {
      case GradAction::Kind::kGive:
        carried_[action.id] = partial;
        partial = 0;
        return;
      case GradAction::Kind::kTake: partial += carried_[action.id]; return;
      case GradAction::Kind::kReduce:
        sum_of_run_[action.id] += partial;
        partial = 0;
        return;
      case GradAction::Kind::kResult: partial += sum_of_run_[action.id]; return;
      case GradAction::Kind::kStep: check_sum(action, partial, rank, position); return;
    }
  }

  void check_sum(const GradAction& action, std::int64_t found, std::uint32_t rank, std::uint32_t position) {
    const ParamGroup& group = space_.layout().groups[action.group.index()];
    const auto expected = static_cast<std::int64_t>(group.users.size() * space_.cells_per_stage());
    if (found == expected || report_.is_suspect(space_.weight_grad(action.group))) return;
    const Rule rule = !action.reduced && group.homes.size() > 1 ? Rule::kMissingReduce : Rule::kMissingContribution;
    report_.at(rule, rank, position, [&] {
      std::string where;
      for (const StageId user : group.users) {
        const std::size_t begin = space_.op_index(Op{.stage = user});
        for (std::size_t k = begin; where.empty() && k < begin + space_.cells_per_stage(); ++k) {
          const Place& place = structure_.places.weight[k];
          if (place.known() && place.rank != static_cast<std::int32_t>(rank))
            where = fmt::format(
                " ({} on rank {} is one that is made elsewhere)",
                report_.name(static_cast<std::size_t>(place.rank), static_cast<std::size_t>(place.position)),
                place.rank);
        }
      }
      return fmt::format("the gradient of group {} holds {} of {} contributions{}; {} before the step", group.name,
                         found, expected, where,
                         rule == Rule::kMissingReduce ? "reduce it over its homes" : "bring all of them here");
    });
  }

  // Bounded transfers.
  struct Pair {
    std::uint32_t taken = 0;
    MessageId waiting = kNoMessage;
  };
  [[nodiscard]] std::size_t lane_index(MessageId id) const {
    return static_cast<std::size_t>(&messages_.lane_of(id) - messages_.out.data());
  }
  void number_pairs() {
    // Lanes of one sender lie together; those to one receiver share slots.
    pair_of_lane_ = std::vector<std::uint32_t>(messages_.out.size());
    for (std::size_t lane = 0; lane < messages_.out.size(); ++lane) {
      const Lane& here = messages_.out[lane];
      std::size_t first = lane;
      for (std::size_t k = lane; k-- > 0 && messages_.out[k].from == here.from;)
        if (messages_.out[k].to == here.to) first = k;
      if (first == lane) {
        pair_of_lane_[lane] = static_cast<std::uint32_t>(pairs_.size());
        pairs_.emplace_back();
      } else {
        pair_of_lane_[lane] = pair_of_lane_[first];
      }
    }
  }

  // Deadlock.
  struct Blocked {
    std::uint32_t by = 0;  ///< the rank waited for
    std::string what;
  };

  [[nodiscard]] bool is_blocked(std::uint32_t rank) const { return next_[rank] < trace_.begin[rank + 1]; }

  /// Position of the event of a rank that others wait for.
  [[nodiscard]] std::string awaited(std::uint32_t rank, EventKind kind, std::uint32_t id) const {
    for (std::size_t at = next_[rank]; at < trace_.begin[rank + 1]; ++at) {
      const Event event = trace_.events[at];
      if (event.kind() == kind && event.id() == id)
        return fmt::format("{} (rank {}, position {})", report_.name(rank, event.position), rank, event.position);
    }
    return fmt::format("rank {}", rank);
  }

  [[nodiscard]] Blocked blocked(std::uint32_t rank) const {
    const Event event = trace_.events[next_[rank]];
    const auto here = [&] {
      return fmt::format("rank {} at position {} ({})", rank, event.position, report_.name(rank, event.position));
    };
    const auto on = [&](std::int32_t peer, EventKind kind, std::uint32_t id) {
      const auto by = static_cast<std::uint32_t>(peer);
      return Blocked{.by = by, .what = fmt::format("{} waits for {}", here(), awaited(by, kind, id))};
    };
    switch (event.kind()) {
      case EventKind::kSend:
        if (rule_ == TransferRule::kBounded) {
          // The oldest message of the pair that keeps its slot.
          const std::int32_t to = messages_.lane_of(event.id()).to;
          const std::uint32_t pair = pair_of_lane_[lane_index(event.id())];
          for (std::size_t lane = messages_.out_begin[rank]; lane < messages_.out_begin[rank + 1]; ++lane) {
            if (pair_of_lane_[lane] != pair) continue;
            for (MessageId id = messages_.out[lane].begin; id < messages_.out[lane].begin + messages_.out[lane].count;
                 ++id)
              if ((flags_[id] & kSent) != 0 && (flags_[id] & kPosted) == 0) return on(to, EventKind::kPost, id);
          }
        }
        return on(messages_.lane_of(event.id()).to, EventKind::kPost, event.id());
      case EventKind::kAwaitPosted: return on(messages_.lane_of(event.id()).to, EventKind::kPost, event.id());
      case EventKind::kPost:
      case EventKind::kAwaitArrival: return on(messages_.lane_of(event.id()).from, EventKind::kSend, event.id());
      default: break;
    }
    for (const RankId member : members(event.id())) {
      const auto peer = static_cast<std::uint32_t>(member.value());
      for (std::size_t at = next_[peer]; at < trace_.begin[peer + 1]; ++at)
        if (trace_.events[at].kind() == EventKind::kEnter && trace_.events[at].id() == event.id())
          return on(member.value(), EventKind::kEnter, event.id());
    }
    return Blocked{.by = rank, .what = here()};
  }

  void report_circles() {
    // Every blocked rank waits for a blocked one, so following the arrows ends in a circle.
    std::vector<std::uint32_t> seen(rows_.size());
    std::uint32_t walk = 0;
    for (std::uint32_t start = 0; start < rows_.size(); ++start) {
      if (!is_blocked(start) || seen[start] != 0) continue;
      ++walk;
      std::uint32_t rank = start;
      while (is_blocked(rank) && seen[rank] == 0) {
        seen[rank] = walk;
        rank = blocked(rank).by;
      }
      if (!is_blocked(rank) || seen[rank] != walk) continue;  // ran into an earlier walk's circle
      const std::uint32_t first = rank;
      report_.at(Rule::kDeadlock, first, trace_.events[next_[first]].position, [&] {
        std::string circle;
        constexpr int kMostNamed = 16;
        int named = 0;
        for (std::uint32_t at = first;;) {
          const Blocked link = blocked(at);
          if (++named <= kMostNamed) circle += fmt::format("{}{}", circle.empty() ? "" : "; ", link.what);
          at = link.by;
          if (at == first) break;
        }
        const std::string more = named > kMostNamed ? fmt::format("; and {} more", named - kMostNamed) : "";
        return fmt::format("ranks wait for each other in a circle under {} transfers: {}{}; reorder one of them",
                           rule_name(), circle, more);
      });
    }
  }

  [[nodiscard]] std::string rule_name() const {
    switch (rule_) {
      case TransferRule::kBuffered: return "buffered";
      case TransferRule::kBounded: return fmt::format("bounded ({} per pair)", buffers_);
      case TransferRule::kRendezvous: return "rendezvous";
    }
    return "?";
  }

  const Space& space_;
  const std::vector<Row>& rows_;
  const Structure& structure_;
  const Messages& messages_;
  const Collectives& collectives_;
  const Trace& trace_;
  TransferRule rule_;
  std::uint32_t buffers_;
  Report& report_;
  std::vector<std::size_t> next_;
  std::vector<std::uint8_t> flags_;
  std::vector<std::uint32_t> entered_;
  std::vector<std::int64_t> sum_of_run_;
  std::vector<std::int64_t> partial_;
  std::vector<std::int64_t> carried_;
  std::vector<std::uint32_t> pair_of_lane_;
  std::vector<Pair> pairs_;
  std::vector<std::uint32_t> runnable_;
};

}  // namespace

void replay(const Space& space, const std::vector<Row>& rows, const Structure& structure, const Messages& messages,
            const Collectives& collectives, const Trace& trace, const VerifyOptions& options, Report& report) {
  Replay(space, rows, structure, messages, collectives, trace, options, report).run();
}

}  // namespace plait::verifying
