#include "plait/ir/lower.h"

#include "plait/ir/swaps.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace plait {
namespace {

constexpr std::int32_t kNowhere = -1;

/// Dense tables over (stage or edge, micro-batch, slice).
class Cells {
 public:
  explicit Cells(const Layout& layout)
      : microbatches_(static_cast<std::size_t>(layout.num_microbatches)),
        slices_(static_cast<std::size_t>(layout.num_slices)) {}
  [[nodiscard]] std::size_t count(std::size_t subjects) const { return subjects * microbatches_ * slices_; }
  [[nodiscard]] std::size_t at(std::size_t subject, MicrobatchId m, SliceId q) const {
    return (subject * microbatches_ + m.index()) * slices_ + q.index();
  }

 private:
  std::size_t microbatches_;
  std::size_t slices_;
};

std::string describe(const Op& op) {
  const std::string slice = op.slice.value() == 0 ? "" : fmt::format(".{}", op.slice.value());
  return fmt::format("{}{}{}{}", op.stage.value(), to_string(op.kind), op.microbatch.value(), slice);
}

/// On which rank each op stands; kNowhere where it is missing.
struct Places {
  std::vector<std::int32_t> forward;   ///< F
  std::vector<std::int32_t> backward;  ///< B or BW
  std::vector<std::int32_t> weight;    ///< W
};

/// Places transfers in one global order. Repeated sweeps over the ranks, at most one action per rank and sweep.
class TransferPass {
 public:
  TransferPass(const Layout& layout, const std::vector<Row>& rows, PairSends pair_sends)
      : layout_(layout),
        rows_(rows),
        pair_sends_(pair_sends),
        cells_(layout),
        out_(rows.size()),
        next_(rows.size(), 0) {
    const std::size_t num_cells = cells_.count(layout.stages.size());
    places_ = Places{.forward = std::vector<std::int32_t>(num_cells, kNowhere),
                     .backward = std::vector<std::int32_t>(num_cells, kNowhere),
                     .weight = std::vector<std::int32_t>(num_cells, kNowhere)};
    for (std::size_t rank = 0; rank < rows.size(); ++rank) {
      // Two transfers an op in the usual chain; a growing row would touch fresh pages twice.
      out_[rank].reserve(3 * rows[rank].size());
      for (const Instr& instr : rows[rank])
        if (const Op* op = std::get_if<Op>(&instr)) place(*op, static_cast<std::int32_t>(rank));
    }
    into_.resize(layout.stages.size());
    out_of_.resize(layout.stages.size());
    for (std::size_t e = 0; e < layout.edges.size(); ++e) {
      into_[layout.edges[e].consumer.index()].push_back(EdgeId{static_cast<std::int32_t>(e)});
      out_of_[layout.edges[e].producer.index()].push_back(EdgeId{static_cast<std::int32_t>(e)});
    }
    activation_there_.resize(cells_.count(layout.edges.size()));
    gradient_there_.resize(cells_.count(layout.edges.size()));
    weight_stash_there_.resize(num_cells);
    stash_there_.resize(num_cells);
  }

  Result<std::vector<Row>> run() {
    for (;;) {
      bool progress = false;
      bool done = true;
      for (std::size_t rank = 0; rank < rows_.size(); ++rank) {
        if (next_[rank] >= rows_[rank].size()) continue;
        done = false;
        progress |= advance(rank);
      }
      if (done) return std::move(out_);
      if (!progress && !force_route()) return stuck();
    }
  }

 private:
  void place(const Op& op, std::int32_t rank) {
    const std::size_t at = cell(op);
    switch (op.kind) {
      case OpKind::kForward: places_.forward[at] = rank; break;
      case OpKind::kBackwardInput: places_.backward[at] = rank; break;
      case OpKind::kBackwardWeight: places_.weight[at] = rank; break;
      case OpKind::kBackward: places_.backward[at] = rank; break;
      case OpKind::kRecompute: break;
    }
  }

  [[nodiscard]] std::size_t cell(const Op& op) const { return cells_.at(op.stage.index(), op.microbatch, op.slice); }
  [[nodiscard]] std::size_t cell(EdgeId edge, const Op& op) const {
    return cells_.at(edge.index(), op.microbatch, op.slice);
  }

  /// The first value of another rank that the op still waits for.
  [[nodiscard]] std::optional<Value> missing(const Op& op, std::size_t rank) const {
    const auto here = static_cast<std::int32_t>(rank);
    switch (op.kind) {
      case OpKind::kForward:
        for (const EdgeId e : into_[op.stage.index()])
          if (!activation_there_[cell(e, op)]) return Value::activation(e, op.microbatch, op.slice);
        return {};
      case OpKind::kBackwardInput:
      case OpKind::kBackward:
        for (const EdgeId e : out_of_[op.stage.index()])
          if (!gradient_there_[cell(e, op)]) return Value::gradient(e, op.microbatch, op.slice);
        if (const auto from = places_.forward[cell(op)]; from != kNowhere && from != here && !stash_there_[cell(op)])
          return Value::stash(op.stage, op.microbatch, op.slice);
        return {};
      case OpKind::kBackwardWeight:
        if (const auto from = places_.backward[cell(op)];
            from != kNowhere && from != here && !weight_stash_there_[cell(op)])
          return Value::weight_stash(op.stage, op.microbatch, op.slice);
        return {};
      case OpKind::kRecompute:
        if (const auto from = places_.forward[cell(op)]; from != kNowhere && from != here && !stash_there_[cell(op)])
          return Value::stash(op.stage, op.microbatch, op.slice);
        if (!serves_next(op, rank)) return {};
        for (const EdgeId e : out_of_[op.stage.index()])  // it starts with its backward, so receives stand before it
          if (!gradient_there_[cell(e, op)]) return Value::gradient(e, op.microbatch, op.slice);
        return {};
    }
    return {};
  }

  /// Whether the op behind a recompute at which the rank stands is its own backward.
  [[nodiscard]] bool serves_next(const Op& recompute, std::size_t rank) const {
    const Row& row = rows_[rank];
    for (std::size_t at = next_[rank] + 1; at < row.size(); ++at) {
      const Op* op = std::get_if<Op>(&row[at]);
      if (op == nullptr) continue;
      return (op->kind == OpKind::kBackward || op->kind == OpKind::kBackwardInput) && op->stage == recompute.stage &&
             op->microbatch == recompute.microbatch && op->slice == recompute.slice;
    }
    return false;
  }

  /// The instruction that a rank stands at, idle cells skipped; null behind the last one.
  const Instr* head(std::size_t rank) {
    const Row& row = rows_[rank];
    std::size_t& next = next_[rank];
    while (next < row.size() && std::holds_alternative<Idle>(row[next])) ++next;
    return next < row.size() ? &row[next] : nullptr;
  }

  /// A route of the schedule's own: both ends at one moment, as for the transfers placed here, so that it has its place
  /// in the one global order in which all pairs match.
  bool advance_route(std::size_t rank, Value value, RankId peer) {
    if (peer.value() < 0 || peer.index() >= rows_.size() || peer.index() == rank) return false;
    const Instr* other = head(peer.index());
    if (other == nullptr) return false;
    const RankId here{static_cast<std::int32_t>(rank)};
    const Instr& own = rows_[rank][next_[rank]];
    const bool matches = std::holds_alternative<Send>(own) ? *other == Instr(Recv{.value = value, .peer = here})
                                                           : *other == Instr(Send{.value = value, .peer = here});
    if (!matches) return false;
    out_[rank].push_back(own);
    out_[peer.index()].push_back(*other);
    ++next_[rank];
    ++next_[peer.index()];
    return true;
  }

  /// Where routes cannot match in one order (a ring in which all send first), or have no other end: the lowest rank that
  /// stands at one takes it alone. Whether that is sound is for the verifier to say.
  bool force_route() {
    for (std::size_t rank = 0; rank < rows_.size(); ++rank) {
      const Instr* instr = head(rank);
      if (instr == nullptr || !(std::holds_alternative<Send>(*instr) || std::holds_alternative<Recv>(*instr))) continue;
      out_[rank].push_back(*instr);
      ++next_[rank];
      return true;
    }
    return false;
  }

  /// Takes the rank's next action (a pair is one) if nothing it waits for is missing.
  bool advance(std::size_t rank) {
    if (head(rank) == nullptr) return true;
    const Row& row = rows_[rank];
    std::size_t& next = next_[rank];
    const Instr& instr = row[next];
    if (const Send* send = std::get_if<Send>(&instr)) return advance_route(rank, send->value, send->peer);
    if (const Recv* recv = std::get_if<Recv>(&instr)) return advance_route(rank, recv->value, recv->peer);
    if (const Op* op = std::get_if<Op>(&instr)) {
      if (missing(*op, rank)) return false;
      out_[rank].push_back(*op);
      send_results(*op, rank);
      ++next;
    } else if (std::holds_alternative<Pair>(instr)) {
      const Op& first = std::get<Op>(row[next + 1]);
      const Op& second = std::get<Op>(row[next + 2]);
      if (missing(first, rank) || missing(second, rank)) return false;
      out_[rank].push_back(instr);
      out_[rank].push_back(first);
      if (pair_sends_ == PairSends::kBehindOp) send_results(first, rank);
      out_[rank].push_back(second);
      if (pair_sends_ == PairSends::kBehindPair) send_results(first, rank);
      send_results(second, rank);
      next += 3;
    } else {
      out_[rank].push_back(instr);
      ++next;
    }
    return true;
  }

  void hand_over(Value value, std::size_t rank, std::int32_t reader) {
    if (reader == kNowhere || static_cast<std::size_t>(reader) == rank) return;
    out_[rank].push_back(Send{.value = value, .peer = RankId{reader}});
    out_[static_cast<std::size_t>(reader)].push_back(
        Recv{.value = value, .peer = RankId{static_cast<std::int32_t>(rank)}});
  }

  void send_results(const Op& op, std::size_t rank) {
    switch (op.kind) {
      case OpKind::kForward:
        for (const EdgeId e : out_of_[op.stage.index()]) {
          activation_there_[cell(e, op)] = true;
          const StageId reader = layout_.edges[e.index()].consumer;
          hand_over(Value::activation(e, op.microbatch, op.slice), rank,
                    places_.forward[cells_.at(reader.index(), op.microbatch, op.slice)]);
        }
        if (layout_.mode == Mode::kTrain) {
          hand_over(Value::stash(op.stage, op.microbatch, op.slice), rank, places_.backward[cell(op)]);
          stash_there_[cell(op)] = true;
        }
        return;
      case OpKind::kBackwardInput:
      case OpKind::kBackward:
        for (const EdgeId e : into_[op.stage.index()]) {
          gradient_there_[cell(e, op)] = true;
          const StageId reader = layout_.edges[e.index()].producer;
          hand_over(Value::gradient(e, op.microbatch, op.slice), rank,
                    places_.backward[cells_.at(reader.index(), op.microbatch, op.slice)]);
        }
        if (op.kind == OpKind::kBackwardInput) {
          hand_over(Value::weight_stash(op.stage, op.microbatch, op.slice), rank, places_.weight[cell(op)]);
          weight_stash_there_[cell(op)] = true;
        }
        return;
      case OpKind::kBackwardWeight:
      case OpKind::kRecompute: return;
    }
  }

  [[nodiscard]] std::string describe_value(Value value) const {
    const std::string data =
        fmt::format("micro-batch {}{}", value.microbatch().value(),
                    layout_.num_slices > 1 ? fmt::format(", slice {}", value.slice().value()) : "");
    if (!value.is_edge())
      return fmt::format("{} of stage {}, {}", to_string(value.kind()), value.stage().value(), data);
    const Edge& edge = layout_.edges[value.edge().index()];
    const bool down = value.kind() == ValueKind::kActivation;
    return fmt::format("{} from stage {} to stage {}, {}", to_string(value.kind()),
                       (down ? edge.producer : edge.consumer).value(), (down ? edge.consumer : edge.producer).value(),
                       data);
  }

  [[nodiscard]] Error stuck() const {
    constexpr int kMostListed = 8;
    std::string list;
    int listed = 0;
    for (std::size_t rank = 0; rank < rows_.size(); ++rank) {
      if (next_[rank] >= rows_[rank].size()) continue;
      if (++listed > kMostListed) {
        list += "; ...";
        break;
      }
      const Row& row = rows_[rank];
      std::size_t at = next_[rank];
      if (std::holds_alternative<Pair>(row[at])) ++at;
      if (!missing(std::get<Op>(row[at]), rank)) ++at;  // the second op of a pair
      const Op& op = std::get<Op>(row[at]);
      const std::optional<Value> waits_for = missing(op, rank);
      list += fmt::format("{}rank {}, position {}, op {} waits for the {}", list.empty() ? "" : "; ", rank, at,
                          describe(op), describe_value(*waits_for));
    }
    return make_error(ErrorCode::kInvalidSchedule, "verify.deadlock",
                      "the ops wait for each other in a circle, or for an op that is missing: {}; reorder them", list);
  }

  const Layout& layout_;
  const std::vector<Row>& rows_;
  PairSends pair_sends_;
  Cells cells_;
  Places places_;
  std::vector<std::vector<EdgeId>> into_;
  std::vector<std::vector<EdgeId>> out_of_;
  std::vector<bool> activation_there_;
  std::vector<bool> gradient_there_;
  std::vector<bool> stash_there_;
  std::vector<bool> weight_stash_there_;
  std::vector<Row> out_;
  std::vector<std::size_t> next_;
};

}  // namespace

Result<> check_ops(const Schedule& schedule) {
  const Layout& layout = schedule.layout;
  if (static_cast<int>(schedule.rows.size()) != layout.num_ranks)
    return make_error(ErrorCode::kInvalidSchedule, "verify.ranks", "{} rows for {} ranks", schedule.rows.size(),
                      layout.num_ranks);
  const Cells cells(layout);
  constexpr std::size_t kNumKinds = 5;
  std::vector<bool> seen(cells.count(layout.stages.size()) * kNumKinds);
  for (std::size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    const Row& row = schedule.rows[rank];
    for (std::size_t at = 0; at < row.size(); ++at) {
      if (std::holds_alternative<Pair>(row[at]) && (at + 2 >= row.size() || !std::holds_alternative<Op>(row[at + 1]) ||
                                                    !std::holds_alternative<Op>(row[at + 2])))
        return make_error(ErrorCode::kInvalidSchedule, "verify.pair",
                          "rank {}, position {}: a pair is followed by two ops", rank, at);
      const Op* op = std::get_if<Op>(&row[at]);
      if (op == nullptr) continue;
      const bool in_range = op->stage.value() >= 0 && op->stage.value() < layout.num_stages() &&
                            op->microbatch.value() >= 0 && op->microbatch.value() < layout.num_microbatches &&
                            op->slice.value() >= 0 && op->slice.value() < layout.num_slices;
      if (!in_range)
        return make_error(ErrorCode::kInvalidSchedule, "verify.out_of_range",
                          "rank {}, position {}, op {}: there are stages 0..{}, micro-batches 0..{} and slices 0..{}",
                          rank, at, describe(*op), layout.num_stages() - 1, layout.num_microbatches - 1,
                          layout.num_slices - 1);
      const std::size_t index =
          cells.at(op->stage.index(), op->microbatch, op->slice) * kNumKinds + static_cast<std::size_t>(op->kind);
      if (seen[index])
        return make_error(ErrorCode::kInvalidSchedule, "verify.duplicate_op",
                          "rank {}, position {}, op {}: stands twice; remove one", rank, at, describe(*op));
      seen[index] = true;
    }
  }
  return {};
}

Result<std::vector<Row>> add_transfers(const Layout& layout, const std::vector<Row>& rows, PairSends pair_sends) {
  return TransferPass(layout, rows, pair_sends).run();
}

std::vector<Row> add_send_waits(const Layout& layout, std::vector<Row> rows) {
  const Cells cells(layout);
  std::vector<std::vector<EdgeId>> out_of(layout.stages.size());
  for (std::size_t e = 0; e < layout.edges.size(); ++e)
    out_of[layout.edges[e].producer.index()].push_back(EdgeId{static_cast<std::int32_t>(e)});
  // Which rank's activation sends are still waited for; an edge's value is sent once, so one table serves all rows.
  std::vector<std::int32_t> pending_peer(cells.count(layout.edges.size()), kNowhere);
  std::vector<Row> out;
  out.reserve(rows.size());
  // What add_steps puts behind a row: room for it now saves a copy of the row.
  const std::size_t num_step_instrs = 2 + 3 * layout.groups.size();
  for (Row& row : rows) {
    // Sends that the schedule waits for itself.
    std::set<std::pair<Value, RankId>> own_waits;
    for (const Instr& instr : row)
      if (const WaitSend* wait = std::get_if<WaitSend>(&instr)) own_waits.emplace(wait->value, wait->peer);
    // A value may travel more than once (evicted again); the schedule waits for all of its sends or for none.
    Row waited;
    const auto num_sends =
        std::count_if(row.begin(), row.end(), [](const Instr& instr) { return std::holds_alternative<Send>(instr); });
    waited.reserve(row.size() + static_cast<std::size_t>(num_sends) + num_step_instrs);
    std::vector<Send> sends;
    std::vector<WaitSend> behind_pair;
    int ops_left_in_pair = 0;
    for (const Instr& instr : row) {
      waited.push_back(instr);
      if (const Send* send = std::get_if<Send>(&instr)) {
        if (own_waits.contains({send->value, send->peer})) continue;
        sends.push_back(*send);
        if (send->value.kind() == ValueKind::kActivation)
          pending_peer[cells.at(send->value.edge().index(), send->value.microbatch(), send->value.slice())] =
              send->peer.value();
      } else if (std::holds_alternative<Pair>(instr)) {
        ops_left_in_pair = 2;
      } else if (const Op* op = std::get_if<Op>(&instr)) {
        if (op->kind == OpKind::kBackward || op->kind == OpKind::kBackwardInput) {
          for (const EdgeId e : out_of[op->stage.index()]) {
            std::int32_t& peer = pending_peer[cells.at(e.index(), op->microbatch, op->slice)];
            if (peer == kNowhere) continue;
            behind_pair.push_back(
                WaitSend{.value = Value::activation(e, op->microbatch, op->slice), .peer = RankId{peer}});
            peer = kNowhere;
          }
        }
        if (ops_left_in_pair > 0) --ops_left_in_pair;
        if (ops_left_in_pair == 0) {
          for (const WaitSend& wait : behind_pair) waited.push_back(wait);
          behind_pair.clear();
        }
      }
    }
    for (const Send& send : sends) {
      if (send.value.kind() == ValueKind::kActivation) {
        std::int32_t& peer =
            pending_peer[cells.at(send.value.edge().index(), send.value.microbatch(), send.value.slice())];
        if (peer == kNowhere) continue;
        peer = kNowhere;
      }
      waited.push_back(WaitSend{.value = send.value, .peer = send.peer});
    }
    out.push_back(std::move(waited));
    row = Row{};  // the next row takes its memory
  }
  return out;
}

void add_steps(Program& program) {
  if (program.layout.mode != Mode::kTrain) return;
  std::vector<RankId> everyone;
  for (int rank = 0; rank < program.layout.num_ranks; ++rank) everyone.push_back(RankId{rank});
  const RankSetId all_ranks = intern_rank_set(program.layout, std::move(everyone));
  // Groups that the schedule itself all-reduces, in buckets under its backwards.
  std::vector<bool> reduced_already(program.layout.groups.size());
  for (const Row& row : program.rows)
    for (const Instr& instr : row)
      if (const Collective* own = std::get_if<Collective>(&instr);
          own != nullptr && own->kind == CollectiveKind::kAllReduce && own->value.kind() == ValueKind::kWeightGrad)
        reduced_already[own->value.group().index()] = true;
  std::vector<std::optional<RankSetId>> reduced_over;
  for (std::size_t g = 0; g < program.layout.groups.size(); ++g) {
    const ParamGroup& group = program.layout.groups[g];
    const bool reduce = group.homes.size() > 1 && group.residency == Residency::kResident && !reduced_already[g];
    reduced_over.push_back(reduce ? std::optional(intern_rank_set(program.layout, group.homes)) : std::nullopt);
  }
  // Which groups live on which rank, in the order of their ids.
  std::vector<std::vector<GroupId>> groups_of(program.rows.size());
  for (std::size_t g = 0; g < program.layout.groups.size(); ++g)
    for (const RankId home : program.layout.groups[g].homes)
      groups_of[home.index()].push_back(GroupId{static_cast<std::int32_t>(g)});

  for (std::size_t rank = 0; rank < program.rows.size(); ++rank) {
    Row& row = program.rows[rank];
    for (const GroupId group : groups_of[rank]) {
      if (const auto& set = reduced_over[group.index()])
        row.push_back(Collective{
            .kind = CollectiveKind::kAllReduce, .ranks = *set, .root = {}, .value = Value::weight_grad(group)});
    }
    for (const GroupId group : groups_of[rank])
      if (reduced_over[group.index()])
        row.push_back(WaitCollective{.kind = CollectiveKind::kAllReduce, .value = Value::weight_grad(group)});
    row.push_back(
        Collective{.kind = CollectiveKind::kAllReduce, .ranks = all_ranks, .root = {}, .value = Value::norm()});
    const bool steps_first = program.layout.steps == StepOrder::kPostValidated;
    if (!steps_first) row.push_back(WaitCollective{.kind = CollectiveKind::kAllReduce, .value = Value::norm()});
    for (const GroupId group : groups_of[rank]) row.push_back(Step{.group = group});
    if (steps_first) row.push_back(Validate{});
  }
}

Result<Program> add_validation(Program program) {
  const auto is_norm = [](const Instr& instr) {
    const Collective* entry = std::get_if<Collective>(&instr);
    return entry != nullptr && entry->value.kind() == ValueKind::kNorm;
  };
  for (std::size_t rank = 0; rank < program.rows.size(); ++rank)
    if (std::any_of(program.rows[rank].begin(), program.rows[rank].end(), is_norm))
      return make_error(ErrorCode::kInvalidSchedule, "lower.validated",
                        "rank {}: the program takes the norm itself, and its steps wait for it or are validated; give "
                        "the schedule that it was lowered from",
                        rank);
  std::vector<RankId> everyone;
  for (int rank = 0; rank < program.layout.num_ranks; ++rank) everyone.push_back(RankId{rank});
  const RankSetId all_ranks = intern_rank_set(program.layout, std::move(everyone));
  program.layout.steps = StepOrder::kPostValidated;
  for (Row& row : program.rows) {
    row.push_back(
        Collective{.kind = CollectiveKind::kAllReduce, .ranks = all_ranks, .root = {}, .value = Value::norm()});
    row.push_back(Validate{});
  }
  return program;
}

Result<Program> lower(const Schedule& schedule) {
  PLAIT_TRY_VOID(check_ops(schedule));
  PLAIT_TRY(auto rows, add_transfers(schedule.layout, schedule.rows, PairSends::kBehindOp));
  if (schedule.layout.exchanges == Exchanges::kSwaps) {
    PLAIT_TRY(rows, add_swaps(schedule.layout, rows));
  }
  Program program{.layout = schedule.layout, .rows = add_send_waits(schedule.layout, std::move(rows))};
  add_steps(program);
  return program;
}

}  // namespace plait
