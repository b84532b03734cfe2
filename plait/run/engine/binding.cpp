#include "plait/run/engine/binding.h"

#include "plait/run/engine/describe.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <tuple>

namespace plait {
namespace {

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

Error unsupported(std::string_view rule, std::size_t rank, std::size_t position, const Instr& instr,
                  std::string_view why) {
  return make_error(ErrorCode::kUnsupported, rule, "rank {}, position {}, {}: {}", rank, position, describe(instr),
                    why);
}

/// Counts how often each transfer and collective was met, to tell repetitions apart.
class Names {
 public:
  Transfer transfer(RankId source, RankId destination, Value value) {
    int& count = transfers_[{source, destination, value}];
    return Transfer{.source = source, .destination = destination, .value = value, .occurrence = count++};
  }
  std::tuple<CollectiveKind, RankSetId, RankId, Value, int> collective(const Collective& c) {
    int& count = collectives_[{c.kind, c.ranks, c.root, c.value}];
    return {c.kind, c.ranks, c.root, c.value, count++};
  }

 private:
  std::map<std::tuple<RankId, RankId, Value>, int> transfers_;
  std::map<std::tuple<CollectiveKind, RankSetId, RankId, Value>, int> collectives_;
};
using CollectiveName = std::tuple<CollectiveKind, RankSetId, RankId, Value, int>;

/// Ids of all routes, in the sorted order of their names: the same whatever row they are met in first.
struct RouteIds {
  Routes routes;
  std::map<Transfer, TransferId> transfers;
  std::map<CollectiveName, CollectiveId> collectives;
};

RouteIds number_routes(const Program& program) {
  RouteIds ids;
  for (std::size_t rank = 0; rank < program.rows.size(); ++rank) {
    Names names;
    for (const Instr& instr : program.rows[rank]) {
      if (const Send* send = std::get_if<Send>(&instr))
        ids.transfers.emplace(names.transfer(RankId{static_cast<std::int32_t>(rank)}, send->peer, send->value),
                              kAbsent);
      if (const Collective* c = std::get_if<Collective>(&instr)) ids.collectives.emplace(names.collective(*c), kAbsent);
    }
  }
  ids.routes.num_ranks = program.layout.num_ranks;
  for (auto& [transfer, id] : ids.transfers) {
    id = static_cast<TransferId>(ids.routes.transfers.size());
    ids.routes.transfers.push_back(transfer);
  }
  for (auto& [name, id] : ids.collectives) {
    id = static_cast<CollectiveId>(ids.routes.collectives.size());
    ids.routes.collectives.push_back(CollectiveRoute{.kind = std::get<0>(name),
                                                     .members = program.layout.rank_sets[std::get<1>(name).index()],
                                                     .root = std::get<2>(name),
                                                     .value = std::get<3>(name),
                                                     .order = std::get<1>(name).value()});
  }
  return ids;
}

/// Edges of each stage.
using EdgesOf = std::vector<std::vector<EdgeId>>;

/// Does the rank hold all of the group's weights at all times?
bool is_resident(const ParamGroup& group, RankId rank) {
  return std::binary_search(group.homes.begin(), group.homes.end(), rank) &&
         (group.residency == Residency::kResident || group.homes.size() == 1);
}

/// The (stage, micro-batch, slice) for which an R stands somewhere.
class Recomputed {
 public:
  explicit Recomputed(const Program& program) {
    for (const Row& row : program.rows)
      for (const Instr& instr : row)
        if (const Op* op = std::get_if<Op>(&instr); op != nullptr && op->kind == OpKind::kRecompute)
          cells_.emplace(op->stage, op->microbatch, op->slice);
  }
  [[nodiscard]] bool contains(const Op& op) const { return cells_.contains({op.stage, op.microbatch, op.slice}); }

 private:
  std::set<std::tuple<StageId, MicrobatchId, SliceId>> cells_;
};

/// Walks one row and keeps what each value's state is at that point.
class RowBinder {
 public:
  RowBinder(const Program& program, const RouteIds& ids, std::size_t rank, const EdgesOf& into, const EdgesOf& out_of,
            const Recomputed& recomputed)
      : program_(program),
        ids_(ids),
        rank_(rank),
        into_(into),
        out_of_(out_of),
        recomputed_(recomputed),
        rule_(program.layout.recompute == Recompute::kNoAttention ? StashRule::kInputsAndAttention
                                                                  : StashRule::kInputs) {}

  Result<BoundRow> run() {
    const Row& row = program_.rows[rank_];
    row_.instrs.reserve(row.size());
    const auto validates = [](const Instr& instr) { return std::holds_alternative<Validate>(instr); };
    trial_end_ = static_cast<std::size_t>(std::find_if(row.rbegin(), row.rend(), validates).base() - row.begin());
    for (position_ = 0; position_ < row.size(); ++position_) {
      PLAIT_TRY(BoundInstr bound, bind_one(row[position_]));
      row_.instrs.push_back(bound);
    }
    std::sort(row_.stages.begin(), row_.stages.end());
    row_.stages.erase(std::unique(row_.stages.begin(), row_.stages.end()), row_.stages.end());
    return std::move(row_);
  }
  [[nodiscard]] bool steps_follow_norm() const { return steps_follow_norm_; }

 private:
  [[nodiscard]] RankId here() const { return RankId{static_cast<std::int32_t>(rank_)}; }
  [[nodiscard]] Error refuse(std::string_view rule, const Instr& instr, std::string_view why) const {
    return unsupported(rule, rank_, position_, instr, why);
  }

  std::int32_t& slots_of(ValueKind kind) {
    if (kind == ValueKind::kStash) return row_.num_stashes;
    if (kind == ValueKind::kWeightStash) return row_.num_weight_stashes;
    return row_.num_payloads;
  }
  std::int32_t slot(Value value) {
    const auto [at, is_new] = slots_.try_emplace(value, slots_of(value.kind()));
    if (is_new) ++slots_of(value.kind());
    return at->second;
  }
  /// The next reader finds the value in its slot, and waits for the transfer that brings it.
  Source read(Value value) {
    const Source source{.slot = slot(value), .transfer = arriving_.contains(value) ? arriving_[value] : kAbsent};
    arriving_.erase(value);
    return source;
  }

  /// The weights of a group: its own on a resident home, else the oldest copy, which its first reader waits for.
  Result<> read_weight(const Instr& instr, GroupId id, FirstReads& reads) {
    const ParamGroup& group = program_.layout.groups[id.index()];
    if (is_resident(group, here())) return {};
    if (copies_[id].empty())
      return make_error(ErrorCode::kInvalidSchedule, "engine.weight_not_here",
                        "rank {}, position {}, {}: the weights of group {} are not here", rank_, position_,
                        describe(instr), group.name);
    await_copy(copies_[id].front(), reads);
    return {};
  }
  void await_copy(std::optional<WeightArrival>& copy, FirstReads& reads) {
    if (!copy) return;
    if (reads.empty()) reads.begin = static_cast<std::int32_t>(row_.weights.size());
    row_.weights.push_back(*copy);
    reads.end = static_cast<std::int32_t>(row_.weights.size());
    copy.reset();
  }
  void expect_weight(const WeightArrival& arrival) { copies_[arrival.group].emplace_back(arrival); }

  /// What has arrived for a group (or all groups) and was not added yet.
  Arrivals take_arrivals(std::optional<GroupId> group) {
    Arrivals range{.begin = static_cast<std::int32_t>(row_.arrivals.size()), .end = 0};
    std::erase_if(pending_, [&](const Arrival& arrival) {
      if (group && arrival.group != *group) return false;
      row_.arrivals.push_back(arrival);
      return true;
    });
    range.end = static_cast<std::int32_t>(row_.arrivals.size());
    return range;
  }

  /// The first of them.
  Arrivals take_one(GroupId group) {
    Arrivals range{.begin = static_cast<std::int32_t>(row_.arrivals.size()), .end = 0};
    const auto first =
        std::find_if(pending_.begin(), pending_.end(), [&](const Arrival& arrival) { return arrival.group == group; });
    if (first != pending_.end()) {
      row_.arrivals.push_back(*first);
      pending_.erase(first);
    }
    range.end = static_cast<std::int32_t>(row_.arrivals.size());
    return range;
  }

  Result<BoundInstr> bind_one(const Instr& instr) {
    return std::visit(
        Overloaded{
            [&](const Op& op) { return bind_op(instr, op); },
            [&](const Send& send) { return bind_send(instr, send); },
            [&](const Recv& recv) { return bind_receive(instr, recv); },
            [&](const WaitSend& wait) { return bind_wait_sent(instr, wait); },
            [&](const Collective& collective) { return bind_collective(instr, collective); },
            [&](const WaitCollective& wait) { return bind_wait_collective(instr, wait); },
            [&](const Free& free) { return bind_free(instr, free); },
            [&](const Add& add) -> Result<BoundInstr> { return BoundInstr{BoundAdd{.arrivals = take_one(add.group)}}; },
            [&](const Step& step) -> Result<BoundInstr> {
              const bool on_trial = !norm_done_ && position_ < trial_end_;
              steps_follow_norm_ &= norm_done_ || on_trial;
              return BoundInstr{BoundStep{.group = step.group,
                                          .arrivals = take_arrivals(step.group),
                                          .norm = on_trial ? BoundStep::Norm::kValidates : BoundStep::Norm::kKnown}};
            },
            [&](const Validate&) { return bind_validate(instr); },
            // Pairs and turns order nothing here: a row runs in its order.
            [](const auto&) -> Result<BoundInstr> { return BoundInstr{BoundNothing{}}; },
        },
        instr);
  }

  Result<BoundInstr> bind_op(const Instr& instr, const Op& op) {
    const Layout& layout = program_.layout;
    row_.stages.push_back(op.stage);
    BoundOp bound{.kind = op.kind,
                  .stage = op.stage.value(),
                  .data = op.microbatch.value() * layout.num_slices + op.slice.value(),
                  .slice = op.slice.value()};
    const bool train = layout.mode == Mode::kTrain;
    // The weight gradient needs the stash alone.
    if (op.kind != OpKind::kBackwardWeight)
      for (const GroupId id : layout.stages[op.stage.index()].groups)
        PLAIT_TRY_VOID(read_weight(instr, id, bound.weights));
    switch (op.kind) {
      case OpKind::kForward:
        bind_edges(bound, op, ValueKind::kActivation);
        if (train) bound.stash.slot = slot(Value::stash(op.stage, op.microbatch, op.slice));
        if (recomputed_.contains(op)) bound.rule = rule_;
        break;
      case OpKind::kBackward:
      case OpKind::kBackwardInput:
        bind_edges(bound, op, ValueKind::kGradient);
        bound.stash = read(Value::stash(op.stage, op.microbatch, op.slice));
        if (op.kind == OpKind::kBackwardInput)
          bound.weight_stash.slot = slot(Value::weight_stash(op.stage, op.microbatch, op.slice));
        break;
      case OpKind::kBackwardWeight:
        bound.weight_stash = read(Value::weight_stash(op.stage, op.microbatch, op.slice));
        break;
      case OpKind::kRecompute:
        bound.stash = read(Value::stash(op.stage, op.microbatch, op.slice));
        bound.rule = rule_;
        break;
    }
    if (layout.num_slices > 1 && op.kind != OpKind::kBackwardWeight) {
      const auto [at, is_new] = caches_.try_emplace({op.stage, op.microbatch}, row_.num_caches);
      if (is_new) ++row_.num_caches;
      bound.cache = at->second;
      const int last_slice = train ? 0 : layout.num_slices - 1;  // of the last op that uses the cache
      const bool ends =
          train ? op.kind == OpKind::kBackward || op.kind == OpKind::kBackwardInput : op.kind == OpKind::kForward;
      if (op.slice.value() == last_slice && ends) bound.cache_use = BoundOp::CacheUse::kEnds;
    }
    return BoundInstr{bound};
  }

  /// Activations go from the edges into a stage to those out of it, gradients the other way.
  void bind_edges(BoundOp& bound, const Op& op, ValueKind kind) {
    const bool forward = kind == ValueKind::kActivation;
    const auto value = [&](EdgeId edge) {
      return forward ? Value::activation(edge, op.microbatch, op.slice)
                     : Value::gradient(edge, op.microbatch, op.slice);
    };
    const std::vector<EdgeId>& from = (forward ? into_ : out_of_)[op.stage.index()];
    const std::vector<EdgeId>& to = (forward ? out_of_ : into_)[op.stage.index()];
    if (from.size() == 1) {
      bound.input = read(value(from.front()));
      bound.in_edge = from.front();
    }
    if (to.size() == 1) {
      bound.output = slot(value(to.front()));
      bound.out_edge = to.front();
    }
    const auto next = [&] { return static_cast<std::int32_t>(row_.branches.size()); };
    if (from.size() > 1) {
      bound.inputs.begin = next();
      for (const EdgeId edge : from) row_.branches.push_back({.edge = edge, .source = read(value(edge))});
      bound.inputs.end = next();
    }
    if (to.size() > 1) {
      bound.outputs.begin = next();
      for (const EdgeId edge : to) row_.branches.push_back({.edge = edge, .source = {.slot = slot(value(edge))}});
      bound.outputs.end = next();
    }
  }

  static bool can_travel(ValueKind kind) {
    switch (kind) {
      case ValueKind::kActivation:
      case ValueKind::kGradient:
      case ValueKind::kStash:
      case ValueKind::kWeightStash:
      case ValueKind::kWeight:
      case ValueKind::kWeightGrad: return true;
      case ValueKind::kKv:
      case ValueKind::kKvGrad:
      case ValueKind::kNorm: return false;
    }
    return false;
  }

  Result<TransferId> find_transfer(const Instr& instr, const Transfer& transfer) const {
    const auto found = ids_.transfers.find(transfer);
    if (found != ids_.transfers.end()) return found->second;
    return make_error(ErrorCode::kInvalidSchedule, "engine.unmatched",
                      "rank {}, position {}, {}: there is no such send", rank_, position_, describe(instr));
  }

  Result<BoundInstr> bind_send(const Instr& instr, const Send& send) {
    if (!can_travel(send.value.kind()))
      return refuse("engine.transfer", instr,
                    fmt::format("a {} that travels is not run yet", to_string(send.value.kind())));
    PLAIT_TRY(const TransferId id, find_transfer(instr, sends_.transfer(here(), send.peer, send.value)));
    unawaited_[{send.value, send.peer}].push_back(id);
    BoundSend bound{.transfer = id, .kind = send.value.kind()};
    if (send.value.kind() == ValueKind::kWeightGrad) {
      bound.source.slot = send.value.group().value();
      bound.arrivals = take_arrivals(send.value.group());
    } else if (send.value.kind() == ValueKind::kWeight) {
      bound.source.slot = send.value.group().value();
      PLAIT_TRY_VOID(read_weight(instr, send.value.group(), bound.weights));
    } else {
      bound.source = read(send.value);
    }
    return BoundInstr{bound};
  }

  Result<BoundInstr> bind_receive(const Instr& instr, const Recv& recv) {
    PLAIT_TRY(const TransferId id, find_transfer(instr, receives_.transfer(recv.peer, here(), recv.value)));
    BoundReceive bound{.transfer = id, .kind = recv.value.kind()};
    if (recv.value.is_group()) bound.group = recv.value.group().value();
    if (recv.value.kind() == ValueKind::kWeightGrad) {
      pending_.push_back(Arrival{.group = recv.value.group(), .transfer = id});
    } else if (recv.value.kind() == ValueKind::kWeight) {
      expect_weight({.group = recv.value.group(), .transfer = id});
    } else {
      arriving_[recv.value] = id;
    }
    return BoundInstr{bound};
  }

  Result<BoundInstr> bind_wait_sent(const Instr& instr, const WaitSend& wait) {
    std::vector<TransferId>& open = unawaited_[{wait.value, wait.peer}];
    if (open.empty())
      return make_error(ErrorCode::kInvalidSchedule, "engine.unmatched",
                        "rank {}, position {}, {}: nothing was sent before", rank_, position_, describe(instr));
    const TransferId id = open.front();
    open.erase(open.begin());
    return BoundInstr{BoundWaitSent{.transfer = id}};
  }

  Result<BoundInstr> bind_collective(const Instr& instr, const Collective& collective) {
    const CollectiveId id = ids_.collectives.at(entered_.collective(collective));
    open_collectives_[{collective.kind, collective.value}] = id;
    switch (collective.value.kind()) {
      case ValueKind::kNorm:
        if (collective.kind != CollectiveKind::kAllReduce) break;
        return BoundInstr{BoundReduceNorm{.collective = id, .arrivals = take_arrivals(std::nullopt)}};
      case ValueKind::kWeightGrad:
        if (!sums(collective.kind) || !suits(collective)) break;
        return BoundInstr{BoundReduceGrad{.collective = id, .group = collective.value.group()}};
      case ValueKind::kWeight:
        if (collective.kind != CollectiveKind::kAllGather && collective.kind != CollectiveKind::kBroadcast) break;
        if (!suits(collective)) break;
        return bind_gather(instr, collective, id);
      default: break;
    }
    return refuse(
        "engine.collective", instr,
        "of collectives, only those that sum weight gradients or the norm and those that bring weights are run");
  }

  /// Shards exist where a group is sharded over just the members; alone a member has the whole.
  [[nodiscard]] bool suits(const Collective& collective) const {
    if (collective.kind != CollectiveKind::kAllGather && collective.kind != CollectiveKind::kReduceScatter) return true;
    const ParamGroup& group = program_.layout.groups[collective.value.group().index()];
    const std::vector<RankId>& members = program_.layout.rank_sets[collective.ranks.index()];
    return members.size() == 1 || (group.residency == Residency::kSharded && members == group.homes);
  }

  static bool sums(CollectiveKind kind) {
    return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduce ||
           kind == CollectiveKind::kReduceScatter;
  }

  Result<BoundInstr> bind_gather(const Instr& instr, const Collective& collective, CollectiveId id) {
    const GroupId group = collective.value.group();
    const bool alone = program_.layout.rank_sets[collective.ranks.index()].size() == 1;
    if (alone && is_resident(program_.layout.groups[group.index()], here())) return BoundInstr{BoundNothing{}};
    if (alone && collective.kind == CollectiveKind::kBroadcast) {
      // To nobody else: entered, it would hold on to the copy that nobody takes over.
      BoundAwaitWeights own;
      PLAIT_TRY_VOID(read_weight(instr, group, own.weights));
      return BoundInstr{own};
    }
    BoundGather bound{.collective = id, .group = group};
    if (collective.kind == CollectiveKind::kBroadcast && collective.root == here())
      PLAIT_TRY_VOID(read_weight(instr, group, bound.weights));
    else
      expect_weight({.group = group, .collective = id});
    return BoundInstr{bound};
  }

  /// Drops the oldest copy; of what is resident there may be none.
  Result<BoundInstr> bind_free(const Instr& instr, const Free& free) {
    const GroupId group = free.value.group();
    std::deque<std::optional<WeightArrival>>& copies = copies_[group];
    if (copies.empty() && is_resident(program_.layout.groups[group.index()], here())) return BoundInstr{BoundNothing{}};
    BoundFree bound{.group = group};
    if (copies.empty()) PLAIT_TRY_VOID(read_weight(instr, group, bound.weights));
    await_copy(copies.front(), bound.weights);
    copies.pop_front();
    return BoundInstr{bound};
  }

  Result<BoundInstr> bind_wait_collective(const Instr& instr, const WaitCollective& wait) {
    const auto found = open_collectives_.find({wait.kind, wait.value});
    if (found == open_collectives_.end())
      return make_error(ErrorCode::kInvalidSchedule, "engine.unmatched",
                        "rank {}, position {}, {}: it was not entered before", rank_, position_, describe(instr));
    const CollectiveId id = found->second;
    open_collectives_.erase(found);
    if (wait.value.kind() == ValueKind::kNorm) {
      norm_done_ = true;
      return BoundInstr{BoundFinishNorm{.collective = id}};
    }
    if (wait.value.kind() == ValueKind::kWeightGrad)
      return BoundInstr{BoundFinishGrad{.collective = id, .group = wait.value.group()}};
    BoundAwaitWeights bound;
    PLAIT_TRY_VOID(read_weight(instr, wait.value.group(), bound.weights));
    return BoundInstr{bound};
  }

  Result<BoundInstr> bind_validate(const Instr& instr) {
    const auto found = open_collectives_.find({CollectiveKind::kAllReduce, Value::norm()});
    if (found == open_collectives_.end())
      return make_error(ErrorCode::kInvalidSchedule, "engine.unmatched",
                        "rank {}, position {}, {}: no norm was entered before", rank_, position_, describe(instr));
    const CollectiveId id = found->second;
    open_collectives_.erase(found);
    norm_done_ = true;
    return BoundInstr{BoundValidate{.collective = id}};
  }

  const Program& program_;
  const RouteIds& ids_;
  std::size_t rank_;
  const EdgesOf& into_;
  const EdgesOf& out_of_;
  const Recomputed& recomputed_;
  StashRule rule_;  ///< of what is recomputed
  BoundRow row_;
  std::size_t position_ = 0;
  Names sends_;
  Names receives_;
  Names entered_;
  std::map<Value, std::int32_t> slots_;
  std::map<Value, TransferId> arriving_;
  std::map<std::pair<StageId, MicrobatchId>, std::int32_t> caches_;
  std::map<std::pair<Value, RankId>, std::vector<TransferId>> unawaited_;
  std::map<std::pair<CollectiveKind, Value>, CollectiveId> open_collectives_;
  std::vector<Arrival> pending_;
  /// Received or gathered weights that are not freed, oldest first; with what brings them until their first reader.
  std::map<GroupId, std::deque<std::optional<WeightArrival>>> copies_;
  std::size_t trial_end_ = 0;  ///< steps before this position are validated; 0: none is
  bool norm_done_ = false;
  bool steps_follow_norm_ = true;
};

}  // namespace

Result<BoundProgram> bind(const Program& program) {
  const Layout& layout = program.layout;
  EdgesOf into(layout.stages.size());
  EdgesOf out_of(layout.stages.size());
  for (std::size_t e = 0; e < layout.edges.size(); ++e) {
    const EdgeId edge{static_cast<std::int32_t>(e)};
    into[layout.edges[e].consumer.index()].push_back(edge);
    out_of[layout.edges[e].producer.index()].push_back(edge);
  }
  RouteIds ids = number_routes(program);
  BoundProgram bound;
  PLAIT_TRY(bound.edges, edge_tensors(layout));
  bound.has_norm = true;
  const Recomputed recomputed(program);
  for (std::size_t rank = 0; rank < program.rows.size(); ++rank) {
    RowBinder binder(program, ids, rank, into, out_of, recomputed);
    PLAIT_TRY(BoundRow row, binder.run());
    bound.rows.push_back(std::move(row));
    bound.has_norm &= binder.steps_follow_norm();
  }
  bound.routes = std::move(ids.routes);
  return bound;
}

}  // namespace plait
