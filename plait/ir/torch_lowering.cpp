#include "plait/ir/torch_lowering.h"

#include "plait/ir/lower.h"
#include "plait/ir/torch_rules.h"
#include "plait/ir/torch_sends.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <utility>

namespace plait {
namespace {

/// What PyTorch calls an action: an op, or a pair with its two. Rows here hold nothing else, no idle cells.
struct Unit {
  std::size_t begin = 0;
  std::size_t end = 0;
};

std::vector<Unit> units_of(const Row& row) {
  std::vector<Unit> units;
  for (std::size_t at = 0; at < row.size();) {
    const std::size_t size = std::holds_alternative<Pair>(row[at]) ? 3 : 1;
    units.push_back(Unit{.begin = at, .end = at + size});
    at += size;
  }
  return units;
}

template <class Visit>
void for_each_op(const Row& row, const Unit& unit, const Visit& visit) {
  for (std::size_t at = unit.begin; at < unit.end; ++at)
    if (const Op* op = std::get_if<Op>(&row[at])) visit(*op);
}

Row without_idle(const Row& row) {
  Row result;
  for (const Instr& instr : row)
    if (!std::holds_alternative<Idle>(instr)) result.push_back(instr);
  return result;
}

GroupId group_of(const Layout& layout, StageId stage) {
  return layout.stages[stage.index()].groups.front();
}

/// UNSHARD and RESHARD of one rank. Two windows over the coming actions, the current one included: the next
/// max_active_stages distinct stages may stay, the next `lookahead` ones are gathered. An action is atomic: a window that
/// takes one of its stages takes all of them.
class GatherPass {
 public:
  GatherPass(const Layout& layout, std::size_t rank, const Row& row)
      : layout_(layout), rank_(rank), row_(row), units_(units_of(row)) {
    // Where each stage of the rank is used, in order; the uses of one stage are consumed as the row is walked.
    for (std::size_t u = 0; u < units_.size(); ++u) {
      for_each_op(row_, units_[u], [&](const Op& op) {
        const auto [at, is_new] = index_.try_emplace(op.stage.value(), stages_.size());
        if (is_new) stages_.push_back(Uses{.stage = op.stage});
        stages_[at->second].units.push_back(u);
      });
    }
  }

  Result<Row> run(std::size_t max_active, std::size_t lookahead) {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      std::size_t own_stages = 0;
      order_.clear();
      for (std::size_t s = 0; s < stages_.size(); ++s) {
        Uses& uses = stages_[s];
        while (uses.next < uses.units.size() && uses.units[uses.next] < u) ++uses.next;
        if (uses.next == uses.units.size()) continue;
        order_.push_back(s);
        if (uses.units[uses.next] == u) ++own_stages;
      }
      if (own_stages > max_active)
        return make_error(ErrorCode::kInvalidArgument, "lowering.max_active_stages",
                          "rank {}: a pair works on {} stages at once, but --max-active-stages is {}; allow {}", rank_,
                          own_stages, max_active, own_stages);
      // In the order of first use; the stages of one pair in the order of its parts.
      std::sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) { return next_use(a) < next_use(b); });
      evict_all_but(window(max_active));
      gather(window(lookahead));
      for (std::size_t at = units_[u].begin; at < units_[u].end; ++at) out_.push_back(row_[at]);
    }
    evict_all_but(0);
    return std::move(out_);
  }

 private:
  struct Uses {
    StageId stage;
    std::vector<std::size_t> units;  ///< ascending
    std::size_t next = 0;            ///< first of them that is not behind the current action
    bool active = false;
  };

  [[nodiscard]] std::pair<std::size_t, std::size_t> next_use(std::size_t s) const {
    const std::size_t unit = stages_[s].units[stages_[s].next];
    const std::size_t first_op =
        units_[unit].end - units_[unit].begin == 1 ? units_[unit].begin : units_[unit].begin + 1;
    return {unit, std::get<Op>(row_[first_op]).stage == stages_[s].stage ? 0 : 1};
  }

  /// How many of order_ the window holds.
  [[nodiscard]] std::size_t window(std::size_t limit) const {
    std::size_t size = std::min(limit, order_.size());
    while (size > 0 && size < order_.size() && next_use(order_[size]).first == next_use(order_[size - 1]).first) ++size;
    return size;
  }

  void evict_all_but(std::size_t window_size) {
    const auto window_end = order_.begin() + static_cast<std::ptrdiff_t>(std::min(window_size, order_.size()));
    std::vector<std::size_t> kept;
    for (const std::size_t s : active_) {
      if (std::find(order_.begin(), window_end, s) != window_end) {
        kept.push_back(s);
        continue;
      }
      stages_[s].active = false;
      out_.emplace_back(Free{.value = Value::weight(group_of(layout_, stages_[s].stage))});
    }
    active_ = std::move(kept);
  }

  void gather(std::size_t window_size) {
    for (std::size_t i = 0; i < window_size; ++i) {
      Uses& uses = stages_[order_[i]];
      if (uses.active) continue;
      uses.active = true;
      active_.push_back(order_[i]);
      out_.emplace_back(Collective{.kind = CollectiveKind::kAllGather,
                                   .ranks = torch_rules::own_set(rank_),
                                   .root = {},
                                   .value = Value::weight(group_of(layout_, uses.stage))});
    }
  }

  const Layout& layout_;
  std::size_t rank_;
  const Row& row_;
  std::vector<Unit> units_;
  std::unordered_map<std::int32_t, std::size_t> index_;
  std::vector<Uses> stages_;
  std::vector<std::size_t> order_;   ///< stages still to come, by first use
  std::vector<std::size_t> active_;  ///< gathered stages, in the order in which they were
  Row out_;
};

/// REDUCE_GRAD behind the last BW or W of a stage, its wait right behind it, or, deferred, before the rank's next one.
Row add_reductions(const Layout& layout, std::size_t rank, const Row& row, bool defer_wait) {
  std::unordered_map<std::int32_t, int> done;
  std::optional<GroupId> pending;
  Row out;
  out.reserve(row.size() + 2 * layout.stages.size());
  std::vector<GroupId> complete;
  for (const Unit& unit : units_of(row)) {
    complete.clear();
    for (std::size_t at = unit.begin; at < unit.end; ++at) {
      out.push_back(row[at]);
      const Op* op = std::get_if<Op>(&row[at]);
      if (op == nullptr || (op->kind != OpKind::kBackward && op->kind != OpKind::kBackwardWeight)) continue;
      if (++done[op->stage.value()] == layout.num_microbatches) complete.push_back(group_of(layout, op->stage));
    }
    for (const GroupId group : complete) {
      if (pending) out.emplace_back(torch_rules::reduction_wait(*pending));
      out.emplace_back(torch_rules::reduction(rank, group));
      pending = group;
      if (defer_wait) continue;
      out.emplace_back(torch_rules::reduction_wait(group));
      pending.reset();
    }
  }
  if (pending) out.emplace_back(torch_rules::reduction_wait(*pending));
  return out;
}

Result<std::vector<int>> resolve_lookahead(const TorchLoweringOptions& options, int num_ranks) {
  if (options.max_active_stages < 1)
    return make_error(ErrorCode::kInvalidArgument, "lowering.max_active_stages",
                      "--max-active-stages is {}; at least 1 is needed", options.max_active_stages);
  std::vector<int> result(static_cast<std::size_t>(num_ranks), options.max_active_stages);
  const auto& distance = options.unshard_lookahead.distance;
  if (std::holds_alternative<UnshardLookahead::Auto>(distance)) {
    for (int rank = 0; rank < num_ranks; ++rank)
      result[static_cast<std::size_t>(rank)] = std::min(rank + 2, options.max_active_stages);
  } else if (const auto* list = std::get_if<std::vector<int>>(&distance)) {
    if (list->size() != result.size())
      return make_error(ErrorCode::kInvalidArgument, "lowering.unshard_lookahead",
                        "--unshard-lookahead lists {} numbers for {} ranks; give one per rank", list->size(),
                        num_ranks);
    for (std::size_t rank = 0; rank < list->size(); ++rank) {
      if ((*list)[rank] < 1 || (*list)[rank] > options.max_active_stages)
        return make_error(ErrorCode::kInvalidArgument, "lowering.unshard_lookahead",
                          "--unshard-lookahead of rank {} is {}; expected 1..{} (--max-active-stages)", rank,
                          (*list)[rank], options.max_active_stages);
    }
    result = *list;
  }
  return result;
}

}  // namespace

Result<UnshardLookahead> parse_unshard_lookahead(std::string_view text) {
  if (text == "full") return UnshardLookahead{.distance = UnshardLookahead::Full{}};
  if (text == "auto") return UnshardLookahead{.distance = UnshardLookahead::Auto{}};
  std::vector<int> numbers;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  for (;;) {
    int number = 0;
    const auto [stop, status] = std::from_chars(at, end, number);
    const bool more = stop != end && *stop == ',';
    if (status != std::errc{} || number < 1 || (stop != end && !more))
      return make_error(
          ErrorCode::kInvalidArgument, "lowering.unshard_lookahead",
          "'{}' is no unshard lookahead; expected full, auto, or a positive number for each rank such as 2,3,3,3",
          text);
    numbers.push_back(number);
    if (!more) return UnshardLookahead{.distance = std::move(numbers)};
    at = stop + 1;
  }
}

Result<Program> lower_as_torch(const Schedule& schedule, const TorchLoweringOptions& options) {
  PLAIT_TRY_VOID(torch_rules::check_layout(schedule.layout));
  PLAIT_TRY_VOID(torch_rules::check_schedule(schedule));
  PLAIT_TRY_VOID(torch_rules::check_groups(schedule.layout));
  PLAIT_TRY_VOID(check_ops(schedule));
  PLAIT_TRY(const auto lookahead, resolve_lookahead(options, schedule.layout.num_ranks));
  if (options.max_outstanding_sends.value_or(0) < 0)
    return make_error(ErrorCode::kInvalidArgument, "lowering.max_outstanding_sends",
                      "--max-outstanding-sends is {}; 0 is the least", *options.max_outstanding_sends);

  Program program{.layout = schedule.layout, .rows = {}};
  torch_rules::make_sharded(program.layout);
  const bool reduces = options.version.has_reduce_grad();
  std::vector<Row> rows;
  for (std::size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    const Row ops = without_idle(schedule.rows[rank]);
    GatherPass gather(program.layout, rank, ops);
    PLAIT_TRY(Row gathered, gather.run(static_cast<std::size_t>(options.max_active_stages),
                                       static_cast<std::size_t>(lookahead[rank])));
    rows.push_back(reduces ? add_reductions(program.layout, rank, gathered, options.defer_reduce_grad_wait)
                           : std::move(gathered));
  }
  PLAIT_TRY(rows, add_transfers(program.layout, rows, PairSends::kBehindPair));
  rows = add_send_waits(program.layout, std::move(rows));
  if (options.defer_recv) rows = defer_receives(program.layout, rows);
  if (options.max_outstanding_sends) {
    PLAIT_TRY(rows, limit_outstanding_sends(program.layout, rows, *options.max_outstanding_sends));
  }
  program.rows = std::move(rows);
  torch_rules::append_implicit(program,
                               reduces ? torch_rules::Reductions::kInRows : torch_rules::Reductions::kImplicit);
  return program;
}

Schedule merge_backwards(const Schedule& schedule) {
  Schedule merged{.layout = schedule.layout, .rows = {}};
  for (const Row& row : schedule.rows) {
    Row out;
    Op* last = nullptr;  // the op that stands last in `out`, unless it is part of a pair
    for (std::size_t at = 0; at < row.size(); ++at) {
      if (std::holds_alternative<Idle>(row[at])) continue;
      if (std::holds_alternative<Pair>(row[at])) {
        const std::size_t end = std::min(at + 3, row.size());
        for (; at < end; ++at) out.push_back(row[at]);
        --at;
        last = nullptr;
        continue;
      }
      const Op* op = std::get_if<Op>(&row[at]);
      if (op != nullptr && last != nullptr && op->kind == OpKind::kBackwardWeight &&
          *last == Op{.kind = OpKind::kBackwardInput,
                      .stage = op->stage,
                      .microbatch = op->microbatch,
                      .slice = op->slice}) {
        last->kind = OpKind::kBackward;
        continue;
      }
      out.push_back(row[at]);
      last = std::get_if<Op>(&out.back());
    }
    merged.rows.push_back(std::move(out));
  }
  return merged;
}

}  // namespace plait
