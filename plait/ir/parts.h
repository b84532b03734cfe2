#pragma once

#include "plait/base/ids.h"

#include <string>

namespace plait {

/// What a model is made of, in chain order: embed, then for each layer norm, qkv, attn, post, then head.
///   embed  token (and position) table
///   norm   first norm of a layer
///   qkv    QKV projection
///   attn   rotary and attention; owns no weights
///   post   output projection, residual, second norm, MLP, residual
///   head   final norm, LM head and loss
enum class PartKind : std::uint8_t { kEmbed, kNorm, kQkv, kAttn, kPost, kHead };

/// One part of the chain. `layer` counts from 0; embed belongs to layer 0 and head to the last layer.
struct Part {
  PartKind kind = PartKind::kEmbed;
  int layer = 0;
  friend bool operator==(const Part&, const Part&) = default;
};

/// Half-open range [begin, end) of indices into the chain of a model.
struct PartRange {
  int begin = 0;
  int end = 0;
  [[nodiscard]] int size() const { return end - begin; }
  [[nodiscard]] bool contains(int part_idx) const { return part_idx >= begin && part_idx < end; }
  friend bool operator==(const PartRange&, const PartRange&) = default;
};

inline constexpr int kPartsPerLayer = 4;

/// Length of the chain of a model of `num_layers` layers: 4 num_layers + 2.
int num_parts(int num_layers);
/// The part at chain index `part_idx` of a model of `num_layers` layers.
Part part_at(int num_layers, int part_idx);
/// Chain index of a part.
int part_index(int num_layers, Part part);
/// Whole layers [begin, end) with embed before the first layer and head behind the last.
PartRange layer_range(int num_layers, int begin_layer, int end_layer);

/// "embed", "norm.0", "qkv.0", "attn.0", "post.0", ..., "head".
std::string to_string(Part part);

}  // namespace plait
