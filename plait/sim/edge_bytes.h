#pragma once

#include "plait/ir/program.h"
#include "plait/sim/model_shape.h"

#include <cstdint>

namespace plait {

/// Bytes of an activation (or its gradient) on an edge, one micro-batch of whole sequences, one of the t x context devices.
/// What crosses a cut inside a layer, in units of B T D for as many key heads as heads:
///
///   norm | qkv     the norm's output and the residual: 2
///   qkv | attn     q, k, v and the residual: 4
///   attn | post    the attention's output and the residual: 2
///   between layers the hidden states: 1
///
/// Where an edge leads from the stage of the norm past attention to that of the post, the residual takes it (1), and the
/// others carry 1 less. Tensor parallelism cuts q, k, v and the output; sequence parallelism cuts the rest too.
std::int64_t edge_bytes(const Layout& layout, const ModelShape& shape, const Sharding& sharding, EdgeId edge);

}  // namespace plait
