#include "plait/sim/simulate.h"

#include "plait/base/check.h"
#include "plait/ir/recompute.h"
#include "plait/sim/replay.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>

namespace plait {

Result<SimResult> simulate(const Program& program, const CostModel& costs, const SimOptions& options) {
  PLAIT_TRY_VOID(check_costs(program.layout, costs));
  bool fits = costs.known_memory.empty() || costs.known_memory.size() == program.rows.size();
  for (std::size_t rank = 0; fits && rank < costs.known_memory.size(); ++rank)
    fits = costs.known_memory[rank].during.size() == program.rows[rank].size() &&
           costs.known_memory[rank].behind.size() == program.rows[rank].size();
  if (!fits)
    return make_error(ErrorCode::kInvalidArgument, "sim.cost_shape", "the known memory is that of another program");
  return sim_detail::Replay(program, costs, options).run();
}

std::optional<double> in_microbatches(const Layout& layout, int stashes) {
  for (const Stage& stage : layout.stages) {
    const int begin = stage.parts.begin;
    const bool at_layer = begin == 0 || part_at(layout.num_layers, begin).kind == PartKind::kNorm;
    if (!at_layer) return std::nullopt;
  }
  // A stage is 1/S of the model, a slice 1/k of a micro-batch.
  return static_cast<double>(stashes) * layout.num_ranks /
         (static_cast<double>(layout.num_stages()) * layout.num_slices);
}

std::vector<double> peak_elements(const Program& program) {
  const Layout& layout = program.layout;
  const auto num_microbatches = static_cast<std::size_t>(layout.num_microbatches);
  const auto num_slices = static_cast<std::size_t>(layout.num_slices);
  const auto cell = [&](StageId stage, MicrobatchId m, SliceId q) {
    return (stage.index() * num_microbatches + m.index()) * num_slices + q.index();
  };
  std::vector<bool> again(layout.stages.size() * num_microbatches * num_slices);
  for (const Row& row : program.rows)
    for (const Instr& instr : row)
      if (const Op* op = std::get_if<Op>(&instr); op != nullptr && op->kind == OpKind::kRecompute)
        again[cell(op->stage, op->microbatch, op->slice)] = true;
  const Recompute what = layout.recompute == Recompute::kNone ? Recompute::kFull : layout.recompute;
  std::vector<int> with_recompute;
  std::vector<int> without;
  for (int s = 0; s < layout.num_stages(); ++s) {
    const PartRange parts = layout.stages[static_cast<std::size_t>(s)].parts;
    const bool attention_alone = parts.size() == 1 && part_at(layout.num_layers, parts.begin).kind == PartKind::kAttn;
    with_recompute.push_back(kept_elements(layout, StageId{s}, what));
    // Without attention there is nothing to make again in a stage of attention alone; it keeps what the others do of it.
    const bool keeps_output = layout.recompute == Recompute::kNoAttention && attention_alone;
    without.push_back(kept_elements(layout, StageId{s}, keeps_output ? Recompute::kNoAttention : Recompute::kNone));
  }
  const auto elements = [&](StageId stage, MicrobatchId m, SliceId q) {
    return (again[cell(stage, m, q)] ? with_recompute : without)[stage.index()];
  };
  std::vector<double> peaks;
  for (const Row& row : program.rows) {
    std::int64_t held = 0;
    std::int64_t most = 0;
    for (const Instr& instr : row) {
      if (const Op* op = std::get_if<Op>(&instr)) {
        if (op->kind == OpKind::kForward && layout.mode == Mode::kTrain)
          held += elements(op->stage, op->microbatch, op->slice);
        if (op->kind == OpKind::kBackward || op->kind == OpKind::kBackwardWeight)
          held -= elements(op->stage, op->microbatch, op->slice);
      }
      const Send* send = std::get_if<Send>(&instr);
      const Recv* recv = std::get_if<Recv>(&instr);
      const Value* value = send != nullptr ? &send->value : recv != nullptr ? &recv->value : nullptr;
      const bool stash =
          value != nullptr && (value->kind() == ValueKind::kStash || value->kind() == ValueKind::kWeightStash);
      if (stash)
        held += std::int64_t{send != nullptr ? -1 : 1} * elements(value->stage(), value->microbatch(), value->slice());
      most = std::max(most, held);
    }
    peaks.push_back(static_cast<double>(most) / layout.num_slices);
  }
  return peaks;
}

std::vector<CriticalStep> critical_path(const Program& program, const SimResult& result) {
  PLAIT_CHECK(result.times.size() == program.rows.size(), "the result has no timeline");
  const Layout& layout = program.layout;
  using Key = std::tuple<int, int, int, int>;  // phase (0 F, 1 B, 2 W), stage, micro-batch, slice
  struct KeyHash {
    std::size_t operator()(const Key& k) const noexcept {
      const auto [phase, stage, m, q] = k;
      return ((static_cast<std::size_t>(stage) * 1000003 + static_cast<std::size_t>(m)) * 1009 +
              static_cast<std::size_t>(q)) *
                 3 +
             static_cast<std::size_t>(phase);
    }
  };
  const auto phase_of = [](OpKind kind) {
    return kind == OpKind::kForward || kind == OpKind::kRecompute ? 0 : kind == OpKind::kBackwardWeight ? 2 : 1;
  };
  std::unordered_map<Key, CriticalStep, KeyHash> where;
  std::vector<std::vector<int>> op_before(program.rows.size());
  std::optional<CriticalStep> last;
  std::int64_t end = -1;
  for (std::size_t rank = 0; rank < program.rows.size(); ++rank) {
    int previous = -1;
    for (std::size_t at = 0; at < program.rows[rank].size(); ++at) {
      op_before[rank].push_back(previous);
      const Op* op = std::get_if<Op>(&program.rows[rank][at]);
      if (op == nullptr) continue;
      const CriticalStep here{.rank = RankId{static_cast<std::int32_t>(rank)}, .position = static_cast<int>(at)};
      previous = here.position;
      if (op->kind != OpKind::kRecompute)
        where[{phase_of(op->kind), op->stage.value(), op->microbatch.value(), op->slice.value()}] = here;
      if (result.times[rank][at].end > end) {
        end = result.times[rank][at].end;
        last = here;
      }
    }
  }
  std::vector<CriticalStep> path;
  while (last) {
    path.push_back(*last);
    const std::size_t rank = last->rank.index();
    const auto at = static_cast<std::size_t>(last->position);
    const Op& op = std::get<Op>(program.rows[rank][at]);
    // What could have held it up: its inputs' producers and the op before it in the row; the latest to end did.
    std::optional<CriticalStep> cause;
    std::int64_t latest = -1;
    const auto consider = [&](const CriticalStep& step) {
      const std::int64_t t = result.times[step.rank.index()][static_cast<std::size_t>(step.position)].end;
      if (t > latest && t <= result.times[rank][at].start) {
        latest = t;
        cause = step;
      }
    };
    if (op_before[rank][at] >= 0) consider({.rank = last->rank, .position = op_before[rank][at]});
    const bool lane_bound = latest == result.times[rank][at].start;
    const auto consider_op = [&](int phase, StageId stage, int slice) {
      const auto found = where.find({phase, stage.value(), op.microbatch.value(), slice});
      if (found != where.end() && !(found->second == *last)) consider(found->second);
    };
    if (!lane_bound) {
      latest = -1;
      const int q = op.slice.value();
      if (op.kind == OpKind::kForward) {
        for (const EdgeId e : layout.edges_into(op.stage)) consider_op(0, layout.edges[e.index()].producer, q);
        if (q > 0) consider_op(0, op.stage, q - 1);
      } else if (op.kind == OpKind::kBackwardWeight) {
        consider_op(1, op.stage, q);
      } else {
        for (const EdgeId e : layout.edges_out_of(op.stage)) consider_op(1, layout.edges[e.index()].consumer, q);
        if (q + 1 < layout.num_slices) consider_op(1, op.stage, q + 1);
        consider_op(0, op.stage, q);
      }
      if (latest < 0 && op_before[rank][at] >= 0) consider({.rank = last->rank, .position = op_before[rank][at]});
    }
    last = cause;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace plait
