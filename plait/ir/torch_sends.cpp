#include "plait/ir/torch_sends.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace plait {
namespace {

/// Dense numbers of the values that travel along a chain.
class TransferIndex {
 public:
  explicit TransferIndex(const Layout& layout)
      : num_microbatches_(static_cast<std::size_t>(layout.num_microbatches)),
        count_(2 * layout.edges.size() * num_microbatches_) {}
  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] std::size_t operator()(const Value& value) const {
    const std::size_t direction = value.kind() == ValueKind::kActivation ? 0 : 1;
    return (2 * value.edge().index() + direction) * num_microbatches_ + value.microbatch().index();
  }

 private:
  std::size_t num_microbatches_;
  std::size_t count_;
};

/// What an op of a chain reads from a neighbour, if it has one on that side.
std::optional<Value> input_of(const Layout& layout, const Op& op) {
  switch (op.kind) {
    case OpKind::kForward:
      if (op.stage.value() == 0) return {};
      return Value::activation(EdgeId{op.stage.value() - 1}, op.microbatch, op.slice);
    case OpKind::kBackward:
    case OpKind::kBackwardInput:
      if (op.stage.value() + 1 == layout.num_stages()) return {};
      return Value::gradient(EdgeId{op.stage.value()}, op.microbatch, op.slice);
    case OpKind::kBackwardWeight:
    case OpKind::kRecompute: return {};
  }
  return {};
}

std::string describe(const Layout& layout, const Value& value) {
  const Edge& edge = layout.edges[value.edge().index()];
  const bool down = value.kind() == ValueKind::kActivation;
  return fmt::format("{}SEND_{}{}", (down ? edge.producer : edge.consumer).value(), down ? 'F' : 'B',
                     value.microbatch().value());
}

class SendBudget {
 public:
  SendBudget(const Layout& layout, const std::vector<Row>& rows, std::size_t limit)
      : layout_(layout), rows_(rows), limit_(limit), index_(layout), places_(index_.count()), moved_(index_.count()) {
    for (std::size_t rank = 0; rank < rows_.size(); ++rank) {
      locate(rank);
      exits_.emplace_back(rows_[rank].size());
    }
  }

  Result<std::vector<Row>> run() {
    for (std::size_t rank = 0; rank < rows_.size(); ++rank) PLAIT_TRY_VOID(limit_rank(rank));
    return std::move(rows_);
  }

 private:
  /// Where a transfer's three instructions stand in their rows.
  struct Places {
    std::size_t send = 0;
    std::size_t recv = 0;
    std::size_t wait = 0;
    std::size_t reader = 0;  ///< rank of recv
    std::size_t sender = 0;  ///< rank of send and wait
  };

  void locate(std::size_t rank) {
    for (std::size_t at = 0; at < rows_[rank].size(); ++at) {
      const Instr& instr = rows_[rank][at];
      if (const Send* send = std::get_if<Send>(&instr)) {
        Places& places = places_[index_(send->value)];
        places.send = at;
        places.sender = rank;
      } else if (const Recv* recv = std::get_if<Recv>(&instr)) {
        Places& places = places_[index_(recv->value)];
        places.recv = at;
        places.reader = rank;
      } else if (const WaitSend* wait = std::get_if<WaitSend>(&instr)) {
        places_[index_(wait->value)].wait = at;
      }
    }
  }

  Result<> limit_rank(std::size_t rank) {
    rank_ = rank;
    before_.assign(rows_.size(), 0);
    traced_.assign(rows_.size(), 0);
    std::vector<Value> pending;  // in the order of the sends
    Row out;
    out.reserve(rows_[rank].size());
    for (at_ = 0; at_ < rows_[rank].size(); ++at_) {
      const Instr& instr = rows_[rank][at_];
      if (const WaitSend* wait = std::get_if<WaitSend>(&instr)) {
        if (moved_[index_(wait->value)]) continue;
        pending.erase(std::find(pending.begin(), pending.end(), wait->value));
        learn_of_receive(wait->value);
      } else if (const Recv* recv = std::get_if<Recv>(&instr)) {
        const Places& places = places_[index_(recv->value)];
        learn(places.sender, places.send + 1);
      } else if (const Send* send = std::get_if<Send>(&instr)) {
        if (pending.size() >= limit_) {
          const auto chosen = choose(pending);
          if (chosen == pending.end()) return refuse(send->value, pending);
          const Value value = *chosen;
          pending.erase(chosen);
          out.emplace_back(
              WaitSend{.value = value, .peer = RankId{static_cast<std::int32_t>(places_[index_(value)].reader)}});
          moved_[index_(value)] = true;
          learn_of_receive(value);
        }
        pending.push_back(send->value);
      }
      out.push_back(instr);
    }
    rows_[rank] = std::move(out);
    locate(rank);
    return {};
  }

  [[nodiscard]] Error refuse(const Value& send, const std::vector<Value>& pending) const {
    std::string list;
    for (const Value& value : pending) list += (list.empty() ? "" : ", ") + describe(layout_, value);
    return make_error(
        ErrorCode::kInvalidArgument, "lowering.max_outstanding_sends",
        "rank {}: --max-outstanding-sends {} cannot be kept before {} ({}); raise it, or change the schedule", rank_,
        limit_, describe(layout_, send),
        list.empty() ? "no send is pending" : "pending and not to be waited for here: " + list);
  }

  // --- what precedes the place that is worked on --------------------------------------------------------------------

  void learn_of_receive(const Value& value) {
    const Places& places = places_[index_(value)];
    learn(places.reader, places.recv + 1);
  }

  /// The first `count` instructions of `rank` precede this place, and all that precedes them.
  void learn(std::size_t rank, std::size_t count) {
    to_learn_.emplace_back(rank, count);
    while (!to_learn_.empty()) {
      const auto [at_rank, until] = to_learn_.back();
      to_learn_.pop_back();
      if (at_rank == rank_) continue;
      std::size_t& known = before_[at_rank];
      for (; known < until; ++known) {
        const Instr& instr = rows_[at_rank][known];
        if (const Recv* recv = std::get_if<Recv>(&instr)) {
          const Places& places = places_[index_(recv->value)];
          to_learn_.emplace_back(places.sender, places.send + 1);
        } else if (const WaitSend* wait = std::get_if<WaitSend>(&instr)) {
          const Places& places = places_[index_(wait->value)];
          to_learn_.emplace_back(places.reader, places.recv + 1);
        }
      }
    }
  }

  std::vector<Value>::iterator choose(std::vector<Value>& pending) {
    const auto posted = std::find_if(pending.begin(), pending.end(), [&](const Value& value) {
      const Places& places = places_[index_(value)];
      return places.recv < before_[places.reader];
    });
    if (posted != pending.end()) return posted;
    return std::find_if(pending.begin(), pending.end(), [&](const Value& value) { return !must_follow(value); });
  }

  // --- what must come after the place that is worked on -------------------------------------------------------------

  /// Whether the receive of a send of this rank can only be posted once this place is passed. Waits that move within the
  /// rank's own row open no new way out of it, so what is found once for the rank holds for all of its places.
  bool must_follow(const Value& value) {
    const Places& places = places_[index_(value)];
    trace_exits(places.reader, places.recv + 1);
    return exits_[places.reader][places.recv] >= static_cast<std::int64_t>(at_);
  }

  /// For the first `count` instructions of `rank`: the last Send or Recv of the rank that is worked on that precedes each.
  void trace_exits(std::size_t rank, std::size_t count) {
    constexpr std::int64_t kNone = -1;
    std::vector<std::pair<std::size_t, std::size_t>> to_trace{{rank, count}};
    while (!to_trace.empty()) {
      const auto [at_rank, until] = to_trace.back();
      std::size_t& traced = traced_[at_rank];
      if (traced >= until) {
        to_trace.pop_back();
        continue;
      }
      const Instr& instr = rows_[at_rank][traced];
      std::int64_t exit = traced > 0 ? exits_[at_rank][traced - 1] : kNone;
      std::optional<std::pair<std::size_t, std::size_t>> before;
      if (const Recv* recv = std::get_if<Recv>(&instr)) {
        const Places& places = places_[index_(recv->value)];
        before = {places.sender, places.send};
      } else if (const WaitSend* wait = std::get_if<WaitSend>(&instr)) {
        const Places& places = places_[index_(wait->value)];
        before = {places.reader, places.recv};
      }
      if (before && before->first == rank_) {
        exit = std::max(exit, static_cast<std::int64_t>(before->second));
      } else if (before) {
        if (traced_[before->first] <= before->second) {
          to_trace.emplace_back(before->first, before->second + 1);
          continue;
        }
        exit = std::max(exit, exits_[before->first][before->second]);
      }
      exits_[at_rank][traced] = exit;
      ++traced;
    }
  }

  const Layout& layout_;
  std::vector<Row> rows_;
  std::size_t limit_;
  TransferIndex index_;
  std::vector<Places> places_;
  std::vector<bool> moved_;  ///< waits that stand earlier now

  std::size_t rank_ = 0;
  std::size_t at_ = 0;
  std::vector<std::size_t> before_;  ///< per rank: how many of its instructions precede this place
  std::vector<std::size_t> traced_;  ///< per rank: how many of its exits_ are known
  std::vector<std::vector<std::int64_t>> exits_;
  std::vector<std::pair<std::size_t, std::size_t>> to_learn_;
};

}  // namespace

std::vector<Row> defer_receives(const Layout& layout, const std::vector<Row>& rows) {
  const TransferIndex index(layout);
  std::vector<bool> deferred(index.count());
  std::vector<Row> result;
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    const Row& row = rows[rank];
    std::unordered_map<std::int32_t, std::vector<Recv>> from_peer;
    Row out;
    out.reserve(row.size());
    const auto post_for = [&](const Op& op) {
      const auto value = input_of(layout, op);
      if (!value || !deferred[index(*value)]) return;
      deferred[index(*value)] = false;
      const std::size_t sender = value->kind() == ValueKind::kActivation ? op.stage.index() - 1 : op.stage.index() + 1;
      out.emplace_back(Recv{.value = *value, .peer = layout.stages[sender].homes.front()});
    };
    for (std::size_t at = 0; at < row.size(); ++at) {
      if (const Recv* recv = std::get_if<Recv>(&row[at])) {
        deferred[index(recv->value)] = true;
        from_peer[recv->peer.value()].push_back(*recv);
        continue;
      }
      if (const Send* send = std::get_if<Send>(&row[at]); send != nullptr && send->peer.index() > rank) {
        for (const Recv& recv : from_peer[send->peer.value()]) {
          if (deferred[index(recv.value)]) out.emplace_back(recv);
          deferred[index(recv.value)] = false;
        }
        from_peer[send->peer.value()].clear();
      }
      if (std::holds_alternative<Pair>(row[at])) {
        post_for(std::get<Op>(row[at + 1]));
        post_for(std::get<Op>(row[at + 2]));
        out.insert(out.end(), {row[at], row[at + 1], row[at + 2]});
        at += 2;
        continue;
      }
      if (const Op* op = std::get_if<Op>(&row[at])) post_for(*op);
      out.push_back(row[at]);
    }
    result.push_back(std::move(out));
  }
  return result;
}

Result<std::vector<Row>> limit_outstanding_sends(const Layout& layout, const std::vector<Row>& rows, int limit) {
  return SendBudget(layout, rows, static_cast<std::size_t>(limit)).run();
}

}  // namespace plait
