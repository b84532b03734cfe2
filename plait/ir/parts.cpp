#include "plait/ir/parts.h"

#include "plait/base/check.h"

#include <fmt/format.h>

namespace plait {
namespace {
constexpr PartKind kLayerParts[kPartsPerLayer] = {PartKind::kNorm, PartKind::kQkv, PartKind::kAttn, PartKind::kPost};
}

int num_parts(int num_layers) {
  return kPartsPerLayer * num_layers + 2;
}

Part part_at(int num_layers, int part_idx) {
  PLAIT_CHECK(part_idx >= 0 && part_idx < num_parts(num_layers), "part {} of {}", part_idx, num_parts(num_layers));
  if (part_idx == 0) return Part{.kind = PartKind::kEmbed, .layer = 0};
  if (part_idx == num_parts(num_layers) - 1) return Part{.kind = PartKind::kHead, .layer = num_layers - 1};
  return Part{.kind = kLayerParts[(part_idx - 1) % kPartsPerLayer], .layer = (part_idx - 1) / kPartsPerLayer};
}

int part_index(int num_layers, Part part) {
  switch (part.kind) {
    case PartKind::kEmbed: return 0;
    case PartKind::kHead: return num_parts(num_layers) - 1;
    case PartKind::kNorm: return 1 + kPartsPerLayer * part.layer;
    case PartKind::kQkv: return 2 + kPartsPerLayer * part.layer;
    case PartKind::kAttn: return 3 + kPartsPerLayer * part.layer;
    case PartKind::kPost: return 4 + kPartsPerLayer * part.layer;
  }
  return 0;
}

PartRange layer_range(int num_layers, int begin_layer, int end_layer) {
  return PartRange{.begin = begin_layer == 0 ? 0 : 1 + kPartsPerLayer * begin_layer,
                   .end = end_layer == num_layers ? num_parts(num_layers) : 1 + kPartsPerLayer * end_layer};
}

std::string to_string(Part part) {
  switch (part.kind) {
    case PartKind::kEmbed: return "embed";
    case PartKind::kHead: return "head";
    case PartKind::kNorm: return fmt::format("norm.{}", part.layer);
    case PartKind::kQkv: return fmt::format("qkv.{}", part.layer);
    case PartKind::kAttn: return fmt::format("attn.{}", part.layer);
    case PartKind::kPost: return fmt::format("post.{}", part.layer);
  }
  return "?";
}

}  // namespace plait
