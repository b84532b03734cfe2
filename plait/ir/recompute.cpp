#include "plait/ir/recompute.h"

#include <algorithm>
#include <utility>

namespace plait {
namespace {

bool is_backward(const Op& op) {
  return op.kind == OpKind::kBackward || op.kind == OpKind::kBackwardInput;
}

PartKind kind_of(const Layout& layout, int part) {
  return part_at(layout.num_layers, part).kind;
}

bool is_attention_alone(const Layout& layout, StageId stage) {
  const PartRange parts = layout.stages[stage.index()].parts;
  return parts.size() == 1 && kind_of(layout, parts.begin) == PartKind::kAttn;
}

/// What comes in over the edges of a stage that begins with the part.
int input_elements(const Layout& layout, int first_part) {
  switch (kind_of(layout, first_part)) {
    case PartKind::kEmbed: return 0;
    case PartKind::kNorm:
    case PartKind::kQkv:
    case PartKind::kHead: return 1;
    case PartKind::kAttn: return 3;
    case PartKind::kPost: return 2;
  }
  return 0;
}

}  // namespace

Result<Schedule> add_recompute(Schedule schedule, Recompute what) {
  if (what == Recompute::kNone || schedule.layout.mode != Mode::kTrain) return schedule;
  const Layout& layout = schedule.layout;
  const auto again = [&](const Op& op) {
    return is_backward(op) && !(what == Recompute::kNoAttention && is_attention_alone(layout, op.stage));
  };
  const auto recompute_of = [](Op op) {
    op.kind = OpKind::kRecompute;
    return op;
  };
  for (std::size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    Row row;
    row.reserve(schedule.rows[rank].size() * 3 / 2);
    const Row& old = schedule.rows[rank];
    std::size_t served = 0;  // ops before this position are part of a pair whose recomputes stand
    for (std::size_t at = 0; at < old.size(); ++at) {
      const auto serve = [&](std::size_t position) {
        const Op* op = position < old.size() ? std::get_if<Op>(&old[position]) : nullptr;
        if (op != nullptr && again(*op)) row.push_back(recompute_of(*op));
      };
      if (const Op* op = std::get_if<Op>(&old[at])) {
        if (op->kind == OpKind::kRecompute)
          return make_error(ErrorCode::kInvalidSchedule, "schedule.recompute",
                            "rank {}, position {}: the schedule recomputes already; leave --recompute out", rank, at);
        if (at >= served) serve(at);
      } else if (std::holds_alternative<Pair>(old[at])) {
        serve(at + 1);
        serve(at + 2);
        served = at + 3;
      }
      row.push_back(old[at]);
    }
    schedule.rows[rank] = std::move(row);
  }
  schedule.layout.recompute = what;
  return schedule;
}

int kept_elements(const Layout& layout, StageId stage, Recompute what) {
  const PartRange parts = layout.stages[stage.index()].parts;
  int elements = what == Recompute::kNone ? 0 : input_elements(layout, parts.begin);
  for (int part = parts.begin; part < parts.end; ++part) {
    const PartKind kind = kind_of(layout, part);
    if (what == Recompute::kNoAttention && kind == PartKind::kAttn) ++elements;
    if (what != Recompute::kNone) continue;
    switch (kind) {
      case PartKind::kNorm:
      case PartKind::kQkv: elements += 1; break;
      case PartKind::kAttn: elements += 3; break;
      case PartKind::kPost: elements += 11; break;
      case PartKind::kEmbed:
      case PartKind::kHead: break;
    }
  }
  return elements;
}

}  // namespace plait
