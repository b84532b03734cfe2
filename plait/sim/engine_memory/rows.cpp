#include "plait/base/check.h"
#include "plait/ir/edge_tensors.h"
#include "plait/sim/engine_memory/engine_memory.h"
#include "plait/sim/engine_memory/weights.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

// Follows RowRunner of plait/run/engine, and how plait/run/engine/binding.cpp resolves a row.
namespace plait::ledger {
namespace {

using Cell = std::tuple<StageId, MicrobatchId, SliceId>;

/// What is the same for all rows.
struct Common {
  const Program& program;
  const ModelShape& shape;
  const KernelScratch& scratch;
  std::vector<EdgeTensors> edges;
  std::vector<std::vector<EdgeId>> into;
  std::vector<std::vector<EdgeId>> out_of;
  std::set<Cell> recomputed;
  StashRule rule = StashRule::kInputs;
  std::int64_t num_tensors = 0;  ///< of the model
};

/// Tensors of the payload in front of a part, in bytes of one row.
std::vector<std::int64_t> widths_before(const ModelShape& shape, int part) {
  if (part <= 0 || part >= num_parts(shape.layers)) return {};
  const std::int64_t query = shape.heads * shape.head_dim;
  switch (part_at(shape.layers, part).kind) {
    case PartKind::kEmbed: return {};
    case PartKind::kNorm:
    case PartKind::kHead: return {shape.hidden};
    case PartKind::kQkv: return {shape.hidden, shape.hidden};
    case PartKind::kAttn: return {query + 2 * shape.kv_heads * shape.head_dim, shape.hidden};
    case PartKind::kPost: return {query, shape.hidden};
  }
  return {};
}

class RowMemory {
 public:
  RowMemory(const Common& common, RankId rank)
      : common_(common), layout_(common.program.layout), row_(common.program.rows[rank.index()]), rank_(rank) {
    constexpr std::int64_t kDouble = 8;
    std::vector<bool> runs_here(layout_.stages.size());
    for (std::size_t s = 0; s < layout_.stages.size(); ++s) {
      const Stage& stage = layout_.stages[s];
      runs_here[s] = stage.groups.empty() || std::binary_search(stage.homes.begin(), stage.homes.end(), rank);
    }
    for (const Instr& instr : row_)
      if (const Op* op = std::get_if<Op>(&instr)) runs_here[op->stage.index()] = true;
    for (std::size_t g = 0; g < layout_.groups.size(); ++g)
      groups_.emplace_back(rank, layout_, GroupId{static_cast<std::int32_t>(g)}, common.shape, runs_here, ledger_);
    for (const Stage& stage : layout_.stages) modules_.emplace_back(common.shape, stage.parts, common.scratch, ledger_);
    fixed_.push_back(make_block(ledger_, kDouble, Use::kFixed));                       // steps done
    fixed_.push_back(make_block(ledger_, common.num_tensors * kDouble, Use::kFixed));  // square sums
    copies_.resize(layout_.groups.size());
    reductions_.resize(layout_.groups.size());
  }

  /// The second of two steps: the first makes tables that stay.
  RankMemory run() {
    run_once();
    return run_once();
  }

 private:
  RankMemory run_once() {
    RankMemory memory;
    memory.during.reserve(row_.size());
    memory.behind.reserve(row_.size());
    for (Group& group : groups_) group.begin_step();
    const auto trial_end =
        std::find_if(row_.begin(), row_.end(), [](const Instr& i) { return std::holds_alternative<Validate>(i); });
    steps_on_trial_ = trial_end == row_.end() ? 0 : std::count_if(row_.begin(), trial_end, [](const Instr& i) {
      return std::holds_alternative<Step>(i);
    });
    for (const Instr& instr : row_) {
      ledger_.restart();
      std::visit([this](const auto& one) { execute(one); }, instr);
      memory.during.push_back(ledger_.highest());
      memory.behind.push_back(ledger_.live());
    }
    arriving_.clear();
    pending_.clear();
    return memory;
  }

  [[nodiscard]] SliceSpan span_of(SliceId slice) const {
    // As plait/run/engine/step_data.cpp cuts: equal, and one more for the first ones.
    const std::int64_t n = layout_.num_slices;
    const std::int64_t q = slice.value();
    const std::int64_t each = common_.shape.tokens / n;
    const std::int64_t extra = common_.shape.tokens % n;
    return {.index = slice.value(), .first = q * each + std::min(q, extra), .tokens = each + (q < extra ? 1 : 0)};
  }

  void execute(const Op& op) {
    Module& module = modules_[op.stage.index()];
    const SliceSpan slice = span_of(op.slice);
    Cache* cache = layout_.num_slices > 1 ? &caches_[{op.stage, op.microbatch}] : nullptr;
    if (op.kind != OpKind::kBackwardWeight && op.kind != OpKind::kRecompute) take_edges(op, slice);
    if (op.kind != OpKind::kBackwardWeight)
      for (const GroupId group : layout_.stages[op.stage.index()].groups) read_weight(group);
    const Value stash = Value::stash(op.stage, op.microbatch, op.slice);
    const Value weight_stash = Value::weight_stash(op.stage, op.microbatch, op.slice);
    const bool trains = layout_.mode == Mode::kTrain;
    const bool cuts = common_.recomputed.contains({op.stage, op.microbatch, op.slice});
    switch (op.kind) {
      case OpKind::kForward:
        put_edges(op, module.forward(slice, std::move(input_), trains ? &stashes_[stash] : nullptr, cache,
                                     cuts ? common_.rule : StashRule::kEverything));
        break;
      case OpKind::kRecompute: {
        Stash kept = take_stash(stash);
        stashes_[stash] = module.recompute(slice, std::move(kept), cache, common_.rule);
        break;
      }
      case OpKind::kBackward: {
        begin_contributions(op.stage);
        put_edges(op, module.backward(slice, std::move(input_), take_stash(stash), cache));
        break;
      }
      case OpKind::kBackwardInput: {
        Stash taken = take_stash(stash);
        put_edges(op, module.backward_input(slice, std::move(input_), std::move(taken), &weight_stashes_[weight_stash],
                                            cache));
        break;
      }
      case OpKind::kBackwardWeight: {
        begin_contributions(op.stage);
        const auto found = weight_stashes_.find(weight_stash);
        Stash taken = found == weight_stashes_.end() ? Stash{} : std::move(found->second);
        if (found != weight_stashes_.end()) weight_stashes_.erase(found);
        if (!taken.empty()) module.backward_weight(slice, std::move(taken));
        break;
      }
    }
    const bool ends =
        trains ? op.kind == OpKind::kBackward || op.kind == OpKind::kBackwardInput : op.kind == OpKind::kForward;
    if (cache != nullptr && ends && op.slice.value() == (trains ? 0 : layout_.num_slices - 1))
      caches_.erase({op.stage, op.microbatch});
  }

  /// A stash that came from elsewhere is made as the stage's own forward would make it.
  Stash take_stash(const Value& value) {
    const auto found = stashes_.find(value);
    if (found != stashes_.end()) {
      Stash stash = std::move(found->second);
      stashes_.erase(found);
      return stash;
    }
    const Layout& layout = layout_;
    Tensors input;
    for (const std::int64_t width : widths_before(common_.shape, layout.stages[value.stage().index()].parts.begin))
      input.push_back(make_block(
          ledger_, common_.shape.batch * span_of(value.slice()).tokens * width * common_.shape.element_bytes));
    Stash stash;
    const bool cuts = common_.recomputed.contains({value.stage(), value.microbatch(), value.slice()});
    modules_[value.stage().index()].forward(span_of(value.slice()), std::move(input), &stash, nullptr,
                                            cuts ? common_.rule : StashRule::kEverything);
    return stash;
  }

  [[nodiscard]] static bool goes_forward(const Op& op) { return op.kind == OpKind::kForward; }
  [[nodiscard]] Value edge_value(const Op& op, EdgeId edge) const {
    return goes_forward(op) ? Value::activation(edge, op.microbatch, op.slice)
                            : Value::gradient(edge, op.microbatch, op.slice);
  }

  void take_edges(const Op& op, const SliceSpan& slice) {
    const Stage& stage = layout_.stages[op.stage.index()];
    const std::vector<std::int64_t> widths =
        widths_before(common_.shape, goes_forward(op) ? stage.parts.begin : stage.parts.end);
    input_.assign(widths.size(), nullptr);
    for (const EdgeId edge : (goes_forward(op) ? common_.into : common_.out_of)[op.stage.index()]) {
      const EdgeTensors& tensors = common_.edges[edge.index()];
      const std::vector<std::size_t>& places = goes_forward(op) ? tensors.at_consumer : tensors.at_producer;
      const Value value = edge_value(op, edge);
      const auto bytes = [&](std::size_t place) {
        return common_.shape.batch * slice.tokens * widths[place] * common_.shape.element_bytes;
      };
      Tensors part;
      if (arriving_.erase(value) > 0) {
        for (const std::size_t place : places) part.push_back(make_block(ledger_, bytes(place), Use::kBuffers));
      } else {
        part = std::move(payloads_[value]);
        payloads_.erase(value);
      }
      for (std::size_t i = 0; i < part.size(); ++i) {
        Tensor& tensor = input_[places[i]];
        tensor = tensor == nullptr ? std::move(part[i]) : make_block(ledger_, bytes(places[i]));
      }
    }
  }

  void put_edges(const Op& op, Tensors output) {
    for (const EdgeId edge : (goes_forward(op) ? common_.out_of : common_.into)[op.stage.index()]) {
      const EdgeTensors& tensors = common_.edges[edge.index()];
      Tensors& part = payloads_[edge_value(op, edge)];
      if (output.empty()) continue;
      for (const std::size_t place : goes_forward(op) ? tensors.at_producer : tensors.at_consumer)
        part.push_back(output[place]);
    }
    input_.clear();
  }

  // ---- weights and gradients

  /// A reduction that was entered and not waited for.
  struct Open {
    CollectiveKind kind = CollectiveKind::kReduce;
    bool keeps = false;  ///< the rank has the sum, or a shard of it
    Tensors sum;
  };

  [[nodiscard]] bool is_resident(GroupId id) const {
    const ParamGroup& group = layout_.groups[id.index()];
    return std::binary_search(group.homes.begin(), group.homes.end(), rank_) &&
           (group.residency == Residency::kResident || group.homes.size() == 1);
  }
  /// The oldest copy arrives where it is first read.
  void read_weight(GroupId id) {
    if (!is_resident(id) && !copies_[id.index()].empty()) await_copy(id, copies_[id.index()].front());
  }
  enum class Copy : std::uint8_t { kReceived, kHere };
  void await_copy(GroupId id, Copy& copy) {
    if (std::exchange(copy, Copy::kHere) != Copy::kReceived) return;
    Group& group = groups_[id.index()];
    ledger_.add(Use::kBuffers, -group.weight_bytes());
    Tensors weights = group.new_weights(Use::kWeights);
    if (!group.is_whole()) group.bind(std::move(weights));
  }
  void begin_contributions(StageId stage) {
    for (const GroupId id : layout_.stages[stage.index()].groups) {
      Group& group = groups_[id.index()];
      if (group.is_whole()) std::erase_if(reductions_[id.index()], [](const Open& open) { return open.keeps; });
      group.begin_contribution();
    }
  }
  void add_arrivals(std::optional<GroupId> only, bool just_one = false) {
    for (auto at = pending_.begin(); at != pending_.end();) {
      if (only && *at != *only) {
        ++at;
        continue;
      }
      Group& group = groups_[at->index()];
      ledger_.add(Use::kBuffers, -group.gradient_bytes());
      group.add_partial(group.new_gradients(Use::kGradients));
      at = pending_.erase(at);
      if (just_one) return;
    }
  }

  // ---- the other instructions

  void execute(const Recv& recv) {
    if (recv.value.kind() == ValueKind::kWeight) {
      ledger_.add(Use::kBuffers, groups_[recv.value.group().index()].weight_bytes());
      copies_[recv.value.group().index()].push_back(Copy::kReceived);
    } else if (recv.value.kind() == ValueKind::kWeightGrad) {
      ledger_.add(Use::kBuffers, groups_[recv.value.group().index()].gradient_bytes());
      pending_.push_back(recv.value.group());
    } else if (recv.value.is_edge()) {
      arriving_.insert(recv.value);
    }
  }

  void execute(const Send& send) {
    const Value& value = send.value;
    switch (value.kind()) {
      case ValueKind::kWeight: read_weight(value.group()); return;  // a copy travels, charged to nobody here
      case ValueKind::kWeightGrad:
        add_arrivals(value.group());
        (void)groups_[value.group().index()].take_partial(Use::kBuffers, /*copies_here=*/false);
        return;
      case ValueKind::kStash: stashes_.erase(value); return;
      case ValueKind::kWeightStash: weight_stashes_.erase(value); return;
      default: break;
    }
    arriving_.erase(value);  // passed on
    const auto found = payloads_.find(value);
    if (found == payloads_.end()) return;
    // What is kept here is read by both from now on.
    for (const Tensor& tensor : found->second)
      if (tensor != nullptr && tensor.use_count() > 1) tensor->lend();
    payloads_.erase(found);
  }

  void execute(const Collective& collective) {
    if (collective.value.kind() == ValueKind::kNorm) {
      add_arrivals(std::nullopt);
      for (Group& group : groups_)
        if (group.is_whole()) group.fold();
      return;
    }
    if (!collective.value.is_group()) return;
    const GroupId id = collective.value.group();
    Group& group = groups_[id.index()];
    const std::vector<RankId>& members = layout_.rank_sets[collective.ranks.index()];
    if (collective.value.kind() == ValueKind::kWeight) {
      if (members.size() == 1 && is_resident(id)) return;
      const bool is_root = collective.kind == CollectiveKind::kBroadcast && collective.root == rank_;
      if (is_root) {
        read_weight(id);
      } else {
        copies_[id.index()].push_back(Copy::kHere);
        group.bind(group.new_weights(Use::kWeights));
      }
      return;
    }
    const bool keeps = collective.kind != CollectiveKind::kReduce || collective.root == rank_;
    if (keeps) group.begin_contribution();
    Open open{.kind = collective.kind, .keeps = keeps, .sum = {}};
    if (keeps && group.is_whole())
      group.fold();
    else
      open.sum = group.take_partial(Use::kBuffers, /*copies_here=*/true);
    reductions_[id.index()].push_back(std::move(open));
  }

  void execute(const WaitCollective& wait) {
    if (wait.value.kind() == ValueKind::kWeight) read_weight(wait.value.group());
    if (wait.value.kind() != ValueKind::kWeightGrad) return;
    std::deque<Open>& all = reductions_[wait.value.group().index()];
    const auto last = std::find_if(all.rbegin(), all.rend(), [&](const Open& open) { return open.kind == wait.kind; });
    if (last == all.rend()) return;
    const Open open = std::move(*last);
    all.erase(std::next(last).base());
    Group& group = groups_[wait.value.group().index()];
    if (open.keeps && !group.is_whole() && open.kind != CollectiveKind::kReduceScatter) group.add_partial(open.sum);
  }

  void execute(const Free& free) {
    const GroupId id = free.value.group();
    std::deque<Copy>& copies = copies_[id.index()];
    if (!copies.empty()) {
      await_copy(id, copies.front());
      copies.pop_front();
    } else if (is_resident(id)) {
      return;
    }
    if (!groups_[id.index()].is_whole()) groups_[id.index()].drop_weights();
  }
  void execute(const Add& add) { add_arrivals(add.group, /*just_one=*/true); }
  void execute(const Step& step) {
    add_arrivals(step.group);
    Group& group = groups_[step.group.index()];
    if (group.is_whole()) group.fold();
    if (steps_on_trial_ > 0) {
      --steps_on_trial_;
      group.keep_undo();
    }
  }
  void execute(const Validate& /*of all steps before it*/) {
    for (Group& group : groups_) group.drop_undo();
  }
  template <class Other>
  void execute(const Other& /*orders nothing*/) {}

  const Common& common_;
  const Layout& layout_;
  const Row& row_;
  RankId rank_;
  Ledger ledger_;
  std::deque<Group> groups_;
  std::deque<Module> modules_;
  Tensors fixed_;
  Tensors input_;
  std::map<Value, Tensors> payloads_;
  std::map<Value, Stash> stashes_;
  std::map<Value, Stash> weight_stashes_;
  std::map<std::pair<StageId, MicrobatchId>, Cache> caches_;
  std::set<Value> arriving_;
  std::vector<GroupId> pending_;          ///< gradients that arrive
  std::vector<std::deque<Copy>> copies_;  ///< per group, oldest first
  std::vector<std::deque<Open>> reductions_;
  std::ptrdiff_t steps_on_trial_ = 0;  ///< steps to come that are validated behind them
};

}  // namespace
}  // namespace plait::ledger

namespace plait {

Result<std::vector<RankMemory>> engine_memory(const Program& program, const ModelShape& shape,
                                              const ledger::KernelScratch& scratch) {
  PLAIT_TRY_VOID(check_shape(shape));
  const Layout& layout = program.layout;
  ledger::Common common{.program = program,
                        .shape = shape,
                        .scratch = scratch,
                        .edges = {},
                        .into = std::vector<std::vector<EdgeId>>(layout.stages.size()),
                        .out_of = std::vector<std::vector<EdgeId>>(layout.stages.size()),
                        .recomputed = {}};
  PLAIT_TRY(common.edges, edge_tensors(layout));
  for (std::size_t e = 0; e < layout.edges.size(); ++e) {
    common.into[layout.edges[e].consumer.index()].push_back(EdgeId{static_cast<std::int32_t>(e)});
    common.out_of[layout.edges[e].producer.index()].push_back(EdgeId{static_cast<std::int32_t>(e)});
  }
  if (layout.recompute == Recompute::kNoAttention) common.rule = ledger::StashRule::kInputsAndAttention;
  for (const Row& row : program.rows)
    for (const Instr& instr : row)
      if (const Op* op = std::get_if<Op>(&instr); op != nullptr && op->kind == OpKind::kRecompute)
        common.recomputed.emplace(op->stage, op->microbatch, op->slice);
  for (int part = 0; part < num_parts(layout.num_layers); ++part)
    for (const ledger::Storage& storage : ledger::storages_of(shape, part_at(layout.num_layers, part).kind))
      common.num_tensors += static_cast<std::int64_t>(storage.members.size());
  std::vector<RankMemory> ranks;
  for (int rank = 0; rank < layout.num_ranks; ++rank) ranks.push_back(ledger::RowMemory(common, RankId{rank}).run());
  return ranks;
}

}  // namespace plait
