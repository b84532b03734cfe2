#include "plait/ir/edge_tensors.h"

#include <set>

namespace plait {
namespace {

/// Position of the residual in the payload in front of a part, and how many tensors there are.
struct Cut {
  std::size_t residual = 0;
  std::size_t size = 1;
};

Cut cut_before(PartKind kind) {
  switch (kind) {
    case PartKind::kQkv:
    case PartKind::kAttn:
    case PartKind::kPost: return {.residual = 1, .size = 2};
    case PartKind::kEmbed:
    case PartKind::kNorm:
    case PartKind::kHead: break;
  }
  return {};
}

Error refuse(const Layout& layout, std::size_t edge, std::string_view why) {
  return make_error(ErrorCode::kUnsupported, "engine.branches", "edge {} from stage {} to stage {}: {}", edge,
                    layout.edges[edge].producer.value(), layout.edges[edge].consumer.value(), why);
}

/// Are the parts [begin, end) of one layer, and before its residual is added?
bool keep_residual(int num_layers, int begin, int end) {
  const int layer = part_at(num_layers, begin).layer;
  for (int idx = begin; idx < end; ++idx) {
    const Part part = part_at(num_layers, idx);
    const bool passes = part.kind == PartKind::kNorm || part.kind == PartKind::kQkv || part.kind == PartKind::kAttn;
    if (!passes || part.layer != layer) return false;
  }
  return true;
}

}  // namespace

Result<std::vector<EdgeTensors>> edge_tensors(const Layout& layout) {
  std::set<int> bypassed;  // cuts, by the part behind them, whose residual takes another way
  for (std::size_t e = 0; e < layout.edges.size(); ++e) {
    const int from = layout.edges[e].producer.value();
    const int to = layout.edges[e].consumer.value();
    if (to <= from) return refuse(layout, e, "leads back in the chain");
    if (to == from + 1) continue;
    const int begin = layout.stages[static_cast<std::size_t>(from)].parts.end;
    const int end = layout.stages[static_cast<std::size_t>(to)].parts.begin;
    if (!keep_residual(layout.num_layers, begin, end))
      return refuse(layout, e, "only the residual may bypass stages, within one layer and before it is added");
    for (int stage = from + 1; stage <= to; ++stage) {
      const int cut = layout.stages[static_cast<std::size_t>(stage)].parts.begin;
      // The norm needs the residual itself.
      if (part_at(layout.num_layers, cut).kind == PartKind::kNorm) continue;
      if (!bypassed.insert(cut).second) return refuse(layout, e, "two edges bypass the same stage");
    }
  }
  std::vector<EdgeTensors> edges;
  for (std::size_t e = 0; e < layout.edges.size(); ++e) {
    const int first = layout.stages[layout.edges[e].producer.index()].parts.end;
    const int second = layout.stages[layout.edges[e].consumer.index()].parts.begin;
    const Cut out = cut_before(part_at(layout.num_layers, first).kind);
    const Cut in = cut_before(part_at(layout.num_layers, second).kind);
    EdgeTensors& tensors = edges.emplace_back();
    if (first != second) {
      tensors = {.at_producer = {out.residual}, .at_consumer = {in.residual}};
      continue;
    }
    for (std::size_t i = 0; i < out.size; ++i)
      if (i != out.residual || !bypassed.contains(first)) tensors.at_producer.push_back(i);
    tensors.at_consumer = tensors.at_producer;
  }
  return edges;
}

}  // namespace plait
