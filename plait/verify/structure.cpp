#include "plait/verify/structure.h"

#include "plait/verify/notation.h"

#include <algorithm>
#include <optional>

namespace plait::verifying {
namespace {

/// First walk over the rows: what each instruction says by itself, and where each op stands.
class Scan {
 public:
  Scan(const Space& space, const std::vector<Row>& rows, Report& report, Structure& out)
      : space_(space), rows_(rows), report_(report), out_(out) {
    const std::size_t num_ops = space.layout().stages.size() * space.cells_per_stage();
    out_.places.forward.resize(num_ops);
    if (space.trains()) {
      out_.places.backward.resize(num_ops);
      out_.places.weight.resize(num_ops);
    }
  }

  /// Ops that stand twice.
  [[nodiscard]] const std::vector<Op>& duplicates() const { return duplicates_; }

  void run() {
    std::vector<int> turns(rows_.size());
    out_.validated_at.assign(rows_.size(), -1);
    for (rank_ = 0; rank_ < rows_.size(); ++rank_) {
      const Row& row = rows_[rank_];
      out_.num_instrs += row.size();
      for (at_ = 0; at_ < row.size(); ++at_) {
        const Instr& instr = row[at_];
        if (const Op* op = std::get_if<Op>(&instr)) {
          scan(*op);
        } else if (const Send* send = std::get_if<Send>(&instr)) {
          ++out_.num_sends;
          transfer(send->value, send->peer);
        } else if (const Recv* recv = std::get_if<Recv>(&instr)) {
          ++out_.num_receives;
          transfer(recv->value, recv->peer);
        } else if (const WaitSend* wait = std::get_if<WaitSend>(&instr)) {
          ++out_.num_waits;
          transfer(wait->value, wait->peer);
        } else if (std::holds_alternative<Turn>(instr)) {
          ++turns[rank_];
        } else {
          scan_rest(instr);
        }
      }
    }
    const auto fewest = std::min_element(turns.begin(), turns.end());
    const auto most = std::max_element(turns.begin(), turns.end());
    if (*fewest != *most)
      report_.overall(Rule::kTurns, std::nullopt, [&] {
        return fmt::format("rank {} has {} turns and rank {} has {}; in lock step all ranks end the same turns",
                           fewest - turns.begin(), *fewest, most - turns.begin(), *most);
      });
  }

 private:
  void unusable() {
    out_.unusable.push_back(
        Place{.rank = static_cast<std::int32_t>(rank_), .position = static_cast<std::int32_t>(at_)});
  }

  void scan(const Op& op) {
    const Layout& layout = space_.layout();
    if (!space_.has(op)) [[unlikely]] {
      report_.at(Rule::kOutOfRange, rank_, at_, [&] {
        return fmt::format(
            "there are stages 0..{}, micro-batches 0..{} and slices 0..{}; correct the number or the sizes",
            layout.num_stages() - 1, layout.num_microbatches - 1, layout.num_slices - 1);
      });
      unusable();
      return;
    }
    if (!space_.trains() && op.kind != OpKind::kForward) [[unlikely]] {
      report_.at(Rule::kForwardOnly, rank_, at_, [] {
        return std::string("a forward-only program has no backwards and recomputes; remove it, or train");
      });
      unusable();
      return;
    }
    const std::size_t index = space_.op_index(op);
    Places& places = out_.places;
    switch (op.kind) {
      case OpKind::kForward: put(places.forward, index, op); return;
      case OpKind::kBackwardInput: put(places.backward, index, op); return;
      case OpKind::kBackwardWeight: put(places.weight, index, op); return;
      case OpKind::kBackward:
        // One finding for the op, even where both halves stand elsewhere.
        if (put(places.backward, index, op)) put(places.weight, index, op);
        return;
      case OpKind::kRecompute:
        if (places.recompute.empty()) places.recompute.resize(places.forward.size());
        put(places.recompute, index, op);
        return;
    }
  }

  bool put(std::vector<Place>& table, std::size_t index, const Op& op) {
    Place& place = table[index];
    if (place.known()) [[unlikely]] {
      report_.at(Rule::kDuplicateOp, rank_, at_, [&] {
        return fmt::format("stands a second time; {} is at rank {}, position {}; remove one",
                           report_.name(static_cast<std::size_t>(place.rank), static_cast<std::size_t>(place.position)),
                           place.rank, place.position);
      });
      duplicates_.push_back(op);
      return false;
    }
    place = Place{.rank = static_cast<std::int32_t>(rank_), .position = static_cast<std::int32_t>(at_)};
    return true;
  }

  void transfer(Value value, RankId peer) {
    if (!space_.has(value)) [[unlikely]] {
      const bool edge =
          value.is_edge() && (value.edge().value() < 0 || value.edge().index() >= space_.layout().edges.size());
      report_.at(edge ? Rule::kNoSuchEdge : Rule::kOutOfRange, rank_, at_, [&] {
        return edge ? fmt::format("no edge leads there: {} stages have {} edges between them; remove the transfer",
                                  space_.layout().stages.size(), space_.layout().edges.size())
                    : fmt::format("the {} is outside the layout; correct the number or the sizes",
                                  describe(space_.layout(), value));
      });
      unusable();
    } else if (!space_.has(peer)) [[unlikely]] {
      report_.at(Rule::kOutOfRange, rank_, at_,
                 [&] { return fmt::format("peer {} is not one of the ranks 0..{}", peer.value(), rows_.size() - 1); });
      unusable();
    } else if (peer.index() == rank_) [[unlikely]] {
      report_.at(Rule::kSelfMessage, rank_, at_,
                 [] { return std::string("a rank needs no message to itself; remove it"); });
      report_.suspect(space_.cell(value));
      unusable();
    } else if (!can_travel(value.kind())) [[unlikely]] {
      report_.at(Rule::kNoMeaning, rank_, at_, [&] {
        return fmt::format(
            "a {} cannot be sent{}", to_string(value.kind()),
            value.kind() == ValueKind::kKv ? " where sequences are not cut" : "; reduce it over its ranks");
      });
      unusable();
    }
  }

  [[nodiscard]] bool can_travel(ValueKind kind) const {
    if (kind == ValueKind::kKv) return space_.num_slices() > 1;
    return kind != ValueKind::kKvGrad && kind != ValueKind::kNorm;
  }

  void scan_rest(const Instr& instr) {
    if (std::holds_alternative<Pair>(instr)) {
      check_pair();
    } else if (const Batch* batch = std::get_if<Batch>(&instr)) {
      check_batch(*batch);
    } else if (const Collective* collective = std::get_if<Collective>(&instr)) {
      ++out_.num_collectives;
      scan(*collective);
    } else if (const WaitCollective* wait = std::get_if<WaitCollective>(&instr)) {
      ++out_.num_collectives;
      if (in_range(space_.has(wait->value))) meaning(wait->kind, wait->value);
    } else if (const Free* free = std::get_if<Free>(&instr)) {
      if (in_range(space_.has(free->value)) && free->value.kind() != ValueKind::kWeight) {
        report_.at(Rule::kNoMeaning, rank_, at_, [] {
          return std::string("only copies of weights are freed; every other value ends with its reader");
        });
        unusable();
      }
    } else if (const Add* add = std::get_if<Add>(&instr)) {
      in_range(space_.has(add->group));
    } else if (const Step* step = std::get_if<Step>(&instr)) {
      if (in_range(space_.has(step->group)) && !space_.trains()) {
        report_.at(Rule::kForwardOnly, rank_, at_,
                   [] { return std::string("a forward-only program has no steps; remove it, or train"); });
        unusable();
      }
    } else if (std::holds_alternative<Validate>(instr)) {
      ++out_.num_collectives;
      scan_validation();
    }
  }

  void scan_validation() {
    std::int32_t& known = out_.validated_at[rank_];
    if (!space_.trains()) {
      report_.at(Rule::kForwardOnly, rank_, at_,
                 [] { return std::string("a forward-only program has no steps to validate; remove it, or train"); });
      unusable();
    } else if (known >= 0) {
      report_.at(Rule::kValidateTwice, rank_, at_,
                 [&] { return fmt::format("the steps are validated at position {} already; remove one", known); });
      unusable();
    } else {
      known = static_cast<std::int32_t>(at_);
    }
  }

  bool in_range(bool sound) {
    if (sound) return true;
    report_.at(Rule::kOutOfRange, rank_, at_, [&] {
      return fmt::format("names an id outside the layout: there are {} groups and {} rank sets",
                         space_.layout().groups.size(), space_.layout().rank_sets.size());
    });
    unusable();
    return false;
  }

  void meaning(CollectiveKind kind, Value value) {
    const bool of_weight = kind == CollectiveKind::kAllGather || kind == CollectiveKind::kBroadcast;
    const bool of_grad =
        kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduce || kind == CollectiveKind::kReduceScatter;
    const bool known = (of_weight && value.kind() == ValueKind::kWeight) ||
                       (of_grad && value.kind() == ValueKind::kWeightGrad) ||
                       (kind == CollectiveKind::kAllReduce && value.kind() == ValueKind::kNorm);
    if (known) return;
    report_.at(Rule::kNoMeaning, rank_, at_,
               [&] { return fmt::format("{} of a {} has no meaning", to_string(kind), to_string(value.kind())); });
    unusable();
  }

  void scan(const Collective& collective) {
    if (!in_range(space_.has(collective.value) && space_.has(collective.ranks))) return;
    const std::vector<RankId>& members = space_.layout().rank_sets[collective.ranks.index()];
    const bool rooted = collective.kind == CollectiveKind::kBroadcast || collective.kind == CollectiveKind::kReduce;
    const auto is_member = [&](RankId rank) { return std::binary_search(members.begin(), members.end(), rank); };
    if (!is_member(RankId{static_cast<std::int32_t>(rank_)}) || (rooted && !is_member(collective.root))) {
      report_.at(Rule::kCollectiveMember, rank_, at_, [&] {
        return fmt::format("{} is not a member of rank set {}; enter a set that it belongs to",
                           is_member(RankId{static_cast<std::int32_t>(rank_)})
                               ? fmt::format("root {}", collective.root.value())
                               : fmt::format("rank {}", rank_),
                           collective.ranks.value());
      });
      report_.suspect(space_.cell(collective.value));
      unusable();
      return;
    }
    meaning(collective.kind, collective.value);
  }

  void check_pair() {
    const Row& row = rows_[rank_];
    std::size_t at = at_ + 1;
    const bool first = at < row.size() && std::holds_alternative<Op>(row[at]);
    do ++at;
    while (first && at < row.size() && std::holds_alternative<Send>(row[at]));
    if (first && at < row.size() && std::holds_alternative<Op>(row[at])) return;
    report_.at(Rule::kPair, rank_, at_, [] {
      return std::string("a pair must be followed by two ops, with no more than the first one's sends between them");
    });
  }

  void check_batch(const Batch& batch) {
    const Row& row = rows_[rank_];
    std::optional<RankId> peer;
    int found = 0;
    for (std::size_t at = at_ + 1; at < row.size() && found < batch.count; ++at, ++found) {
      const Send* send = std::get_if<Send>(&row[at]);
      const Recv* recv = std::get_if<Recv>(&row[at]);
      if (send == nullptr && recv == nullptr) break;
      const RankId other = send != nullptr ? send->peer : recv->peer;
      if (peer && *peer != other) break;
      peer = other;
    }
    ++out_.num_batches;
    if (found == batch.count && found > 0) return;
    report_.at(Rule::kBatch, rank_, at_, [&] {
      return fmt::format("{} sends and receives with one peer must follow, {} do; correct the number or move them",
                         batch.count, found);
    });
    unusable();
  }

  const Space& space_;
  const std::vector<Row>& rows_;
  Report& report_;
  Structure& out_;
  std::size_t rank_ = 0;
  std::size_t at_ = 0;
  std::vector<Op> duplicates_;
};

/// Second walk, over ops in the order of their names: exactly once, and in order where they share a rank.
class OpOrder {
 public:
  OpOrder(const Space& space, const Places& places, Report& report) : space_(space), places_(places), report_(report) {}

  void run() {
    const Layout& layout = space_.layout();
    for (int s = 0; s < layout.num_stages(); ++s) {
      Op op{.stage = StageId{s}};
      std::size_t index = space_.op_index(op);
      for (int m = 0; m < layout.num_microbatches; ++m) {
        for (int q = 0; q < layout.num_slices; ++q, ++index) {
          op.microbatch = MicrobatchId{m};
          op.slice = SliceId{q};
          forward(op, index);
          if (space_.trains()) backward(op, index);
        }
      }
    }
  }

  /// An op that is missing or stands twice: nothing about the values it touches can be judged any more.
  void suspect_all(const Op& op) {
    for (const EdgeId e : space_.into(op.stage)) suspect_edge(e, op);
    for (const EdgeId e : space_.out_of(op.stage)) suspect_edge(e, op);
    for (const ValueKind kind : {ValueKind::kStash, ValueKind::kWeightStash, ValueKind::kKv}) suspect(kind, op);
    for (const GroupId g : space_.layout().stages[op.stage.index()].groups) report_.suspect(space_.weight_grad(g));
  }

 private:
  void suspect_edge(EdgeId e, const Op& op) {
    report_.suspect(space_.cell(ValueKind::kActivation, e.value(), op.microbatch, op.slice));
    report_.suspect(space_.cell(ValueKind::kGradient, e.value(), op.microbatch, op.slice));
  }
  void suspect(ValueKind kind, const Op& op) {
    if (kind == ValueKind::kKv && space_.num_slices() == 1) return;
    report_.suspect(space_.cell(kind, op.stage.value(), op.microbatch, op.slice));
  }

  static bool out_of_order(const Place& first, const Place& second) {
    return first.known() && first.rank == second.rank && first.position > second.position;
  }

  [[nodiscard]] std::string op_name(OpKind kind, Op op) const {
    op.kind = kind;
    return describe(space_.layout(), Instr{op});
  }

  /// `late` must stand before `early`.
  void misplaced(Rule rule, const Place& early, const Place& late, std::string_view why) {
    report_.at(rule, static_cast<std::size_t>(early.rank), static_cast<std::size_t>(early.position), [&] {
      const std::string other =
          report_.name(static_cast<std::size_t>(late.rank), static_cast<std::size_t>(late.position));
      return fmt::format("{} {}, which stands behind it at position {}; move {} earlier", why, other, late.position,
                         other);
    });
  }

  void missing(Rule rule, OpKind kind, const Op& op, const Place* reader) {
    const std::string name = op_name(kind, op);
    const auto body = [&] { return fmt::format("{} stands nowhere; add it", name); };
    if (reader != nullptr)
      report_.at(rule, static_cast<std::size_t>(reader->rank), static_cast<std::size_t>(reader->position),
                 [&] { return fmt::format("it needs {}, but {}", name, body()); });
    else
      report_.overall(rule, std::nullopt, [&] {
        return fmt::format("stage {}, micro-batch {}: {}", op.stage.value(), op.microbatch.value(), body());
      });
    suspect_all(op);
  }

  void forward(const Op& op, std::size_t index) {
    const Place& here = places_.forward[index];
    if (!here.known()) [[unlikely]] {
      const Place* reader = space_.trains() && places_.backward[index].known() ? &places_.backward[index] : nullptr;
      missing(reader != nullptr ? Rule::kBackwardBeforeForward : Rule::kMissingForward, OpKind::kForward, op, reader);
      return;
    }
    for (const EdgeId e : space_.into(op.stage)) {
      const std::size_t before =
          index + (space_.layout().edges[e.index()].producer.index() - op.stage.index()) * space_.cells_per_stage();
      if (out_of_order(places_.forward[before], here)) [[unlikely]] {
        misplaced(Rule::kForwardOrder, here, places_.forward[before], "it reads what is written by");
        suspect_edge(e, op);
      }
    }
    if (op.slice.value() > 0 && out_of_order(places_.forward[index - 1], here)) [[unlikely]] {
      misplaced(Rule::kSlicesAscend, here, places_.forward[index - 1], "it reads the keys and values of");
      Op before = op;
      before.slice = SliceId{op.slice.value() - 1};
      suspect(ValueKind::kKv, before);
    }
  }

  void backward(const Op& op, std::size_t index) {
    const Place& f = places_.forward[index];
    const Place& b = places_.backward[index];
    const Place& w = places_.weight[index];
    if (!b.known()) [[unlikely]]
      missing(w.known() ? Rule::kWeightBeforeBackward : Rule::kMissingBackward, OpKind::kBackwardInput, op,
              w.known() ? &w : nullptr);
    if (!w.known()) [[unlikely]] {
      if (b.known())
        missing(Rule::kMissingWeightGradient, OpKind::kBackwardWeight, op, &b);
      else
        suspect_all(op);
    }
    if (out_of_order(f, b)) [[unlikely]] {
      misplaced(Rule::kBackwardBeforeForward, b, f,
                fmt::format("backward before forward of stage {}, micro-batch {}: it reads the stash of",
                            op.stage.value(), op.microbatch.value()));
      suspect_all(op);
    }
    if (b.known() && out_of_order(b, w)) [[unlikely]] {
      misplaced(Rule::kWeightBeforeBackward, w, b, "it needs what is left for it by");
      suspect(ValueKind::kWeightStash, op);
    }
    if (!places_.recompute.empty() && places_.recompute[index].known()) {
      const Place& r = places_.recompute[index];
      if (out_of_order(f, r)) misplaced(Rule::kRecomputeOrder, r, f, "it makes again what is kept by");
      if (out_of_order(r, b)) misplaced(Rule::kRecomputeOrder, b, r, "it needs what is made again by");
      if (out_of_order(f, r) || out_of_order(r, b)) suspect(ValueKind::kStash, op);
    }
    if (!b.known()) return;
    for (const EdgeId e : space_.out_of(op.stage)) {
      const std::size_t before =
          index + (space_.layout().edges[e.index()].consumer.index() - op.stage.index()) * space_.cells_per_stage();
      if (out_of_order(places_.backward[before], b)) [[unlikely]] {
        misplaced(Rule::kBackwardOrder, b, places_.backward[before], "it reads the gradient that is written by");
        suspect_edge(e, op);
      }
    }
    if (op.slice.value() + 1 < space_.num_slices()) {
      const Place& later = places_.backward[index + 1];
      if (out_of_order(later, b)) [[unlikely]] {
        misplaced(Rule::kSlicesDescend, b, later, "it needs the gradients of its keys and values from");
        suspect(ValueKind::kKv, op);
      } else if (later.known() && later.rank != b.rank) [[unlikely]] {
        report_.at(Rule::kKvNotHere, static_cast<std::size_t>(b.rank), static_cast<std::size_t>(b.position), [&] {
          return fmt::format(
              "the gradients of its keys and values are on rank {}, where {} stands; put the slices of a sequence on "
              "one rank",
              later.rank, report_.name(static_cast<std::size_t>(later.rank), static_cast<std::size_t>(later.position)));
        });
        suspect(ValueKind::kKv, op);
      }
    }
  }

  const Space& space_;
  const Places& places_;
  Report& report_;
};

}  // namespace

Structure check_structure(const Space& space, const std::vector<Row>& rows, Report& report) {
  Structure structure;
  Scan scan(space, rows, report, structure);
  scan.run();
  OpOrder order(space, structure.places, report);
  for (const Op& op : scan.duplicates()) order.suspect_all(op);
  order.run();
  return structure;
}

}  // namespace plait::verifying
