#include "plait/sim/edge_bytes.h"

#include <algorithm>

namespace plait {
namespace {

/// The layer inside which a stage begins.
bool begins_inside(PartKind first) {
  return first == PartKind::kQkv || first == PartKind::kAttn || first == PartKind::kPost;
}

int stage_of(const Layout& layout, int part) {
  const auto found = std::find_if(layout.stages.begin(), layout.stages.end(), [&](const Stage& stage) {
    return stage.parts.begin <= part && part < stage.parts.end;
  });
  return static_cast<int>(found - layout.stages.begin());
}

}  // namespace

std::int64_t edge_bytes(const Layout& layout, const ModelShape& shape, const Sharding& sharding, EdgeId id) {
  const std::int64_t rows = shape.batch * shape.tokens / sharding.context;
  const std::int64_t t = sharding.tensor;
  const std::int64_t cut = sharding.sequence == SequenceParallel::kOn ? t : 1;
  const std::int64_t hidden = shape.element_bytes * rows * shape.hidden / cut;
  const std::int64_t query = shape.element_bytes * rows * shape.heads * shape.head_dim / t;
  const std::int64_t key = shape.element_bytes * rows * shape.kv_heads * shape.head_dim / t;

  const Edge& edge = layout.edges[id.index()];
  const int first_part = layout.stages[edge.consumer.index()].parts.begin;
  const Part first = part_at(layout.num_layers, first_part);
  if (!begins_inside(first.kind)) return hidden;
  const int norm = stage_of(layout, part_index(layout.num_layers, Part{.kind = PartKind::kNorm, .layer = first.layer}));
  const int post = stage_of(layout, part_index(layout.num_layers, Part{.kind = PartKind::kPost, .layer = first.layer}));
  const bool follows = layout.stages[edge.producer.index()].parts.end == first_part;
  if (!follows) return hidden;  // the residual alone, past attention
  const bool passes_by =
      post > norm + 1 && std::find(layout.edges.begin(), layout.edges.end(),
                                   Edge{.producer = StageId{norm}, .consumer = StageId{post}}) != layout.edges.end();
  const std::int64_t residual = passes_by ? 0 : hidden;
  switch (first.kind) {
    case PartKind::kQkv: return hidden + residual;
    case PartKind::kAttn: return query + 2 * key + residual;
    default: return query + residual;
  }
}

}  // namespace plait
