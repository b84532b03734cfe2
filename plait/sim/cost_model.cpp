#include "plait/sim/cost_model.h"

#include <algorithm>

namespace plait {

CostModel zero_costs(const Layout& layout) {
  const auto num_slices = static_cast<std::size_t>(layout.num_slices);
  const std::size_t num_cells = layout.stages.size() * num_slices;
  return CostModel{.num_stages = layout.num_stages(),
                   .num_slices = layout.num_slices,
                   .ops = std::vector<OpCost>(kNumOpKinds * num_cells),
                   .edge_bytes = std::vector<Bytes>(layout.edges.size() * num_slices),
                   .stash_bytes = std::vector<Bytes>(num_cells),
                   .remade_bytes = std::vector<Bytes>(num_cells),
                   .logit_bytes = std::vector<Bytes>(num_cells),
                   .weight_stash_bytes = std::vector<Bytes>(num_cells),
                   .kv_bytes = std::vector<Bytes>(num_cells),
                   .groups = std::vector<GroupCost>(layout.groups.size())};
}

Result<> check_costs(const Layout& layout, const CostModel& costs) {
  const CostModel shape = zero_costs(layout);
  const bool fits = costs.num_stages == shape.num_stages && costs.num_slices == shape.num_slices &&
                    costs.ops.size() == shape.ops.size() && costs.edge_bytes.size() == shape.edge_bytes.size() &&
                    costs.stash_bytes.size() == shape.stash_bytes.size() &&
                    costs.remade_bytes.size() == shape.remade_bytes.size() &&
                    costs.logit_bytes.size() == shape.logit_bytes.size() &&
                    costs.weight_stash_bytes.size() == shape.weight_stash_bytes.size() &&
                    costs.kv_bytes.size() == shape.kv_bytes.size() && costs.groups.size() == shape.groups.size();
  if (!fits)
    return make_error(ErrorCode::kInvalidArgument, "sim.cost_shape",
                      "the costs are for {} stages, {} slices, {} groups; the program has {}, {}, {}", costs.num_stages,
                      costs.num_slices, costs.groups.size(), layout.num_stages(), layout.num_slices,
                      layout.groups.size());
  if (costs.ticks_per_unit < 1)
    return make_error(ErrorCode::kInvalidArgument, "sim.cost_shape", "{} ticks per unit; at least 1 is needed",
                      costs.ticks_per_unit);
  for (std::size_t i = 0; i < costs.ops.size(); ++i) {
    const OpCost& op = costs.ops[i];
    if (op.ticks < 0 || op.alloc < 0 || op.transient < 0 || op.freed < 0) {
      const std::size_t per_kind = costs.ops.size() / kNumOpKinds;
      return make_error(ErrorCode::kInvalidArgument, "sim.negative",
                        "{} of stage {} costs {} ticks and {}+{}-{} bytes; none may be negative",
                        to_string(static_cast<OpKind>(i / per_kind)),
                        i % per_kind / static_cast<std::size_t>(costs.num_slices), op.ticks, op.alloc, op.transient,
                        op.freed);
    }
  }
  const auto negative = [](Bytes b) { return b.value() < 0; };
  for (const auto* table : {&costs.edge_bytes, &costs.stash_bytes, &costs.remade_bytes, &costs.logit_bytes,
                            &costs.weight_stash_bytes, &costs.kv_bytes}) {
    if (std::any_of(table->begin(), table->end(), negative))
      return make_error(ErrorCode::kInvalidArgument, "sim.negative", "a value has a negative number of bytes");
  }
  for (const GroupCost& group : costs.groups) {
    if (negative(group.weight) || negative(group.gradient) || negative(group.optimizer) || group.step_ticks < 0 ||
        group.add_ticks < 0)
      return make_error(ErrorCode::kInvalidArgument, "sim.negative",
                        "a parameter group has a negative time or number of bytes");
  }
  if (costs.latency < 0)
    return make_error(ErrorCode::kInvalidArgument, "sim.negative", "latency {} is negative", costs.latency);
  if (costs.cluster) return check_cluster(*costs.cluster, layout.num_ranks);
  return {};
}

Bytes value_bytes(const CostModel& costs, const Value& value) {
  switch (value.kind()) {
    case ValueKind::kActivation:
    case ValueKind::kGradient: return costs.edge_bytes[costs.cell(value.edge().index(), value.slice())];
    case ValueKind::kStash: return costs.stash_bytes[costs.cell(value.stage().index(), value.slice())];
    case ValueKind::kWeightStash: return costs.weight_stash_bytes[costs.cell(value.stage().index(), value.slice())];
    case ValueKind::kKv:
    case ValueKind::kKvGrad: return costs.kv_bytes[costs.cell(value.stage().index(), value.slice())];
    case ValueKind::kWeight: return costs.groups[value.group().index()].weight;
    case ValueKind::kWeightGrad: return costs.groups[value.group().index()].gradient;
    case ValueKind::kNorm: return costs.norm_bytes;
  }
  return Bytes{};
}

}  // namespace plait
