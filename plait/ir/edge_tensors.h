#pragma once

#include "plait/base/result.h"
#include "plait/ir/program.h"

#include <cstddef>
#include <vector>

namespace plait {

/// Which tensors of a payload (plait/run/model/stage_module.h) travel along an edge: those at `at_producer` in what the producer's last part
/// writes, which stand at `at_consumer` in what the consumer's first part reads. The gradient takes the same way back.
struct EdgeTensors {
  std::vector<std::size_t> at_producer;
  std::vector<std::size_t> at_consumer;
  friend bool operator==(const EdgeTensors&, const EdgeTensors&) = default;
};

/// An edge between neighbours of the chain carries the payload of their cut. An edge that bypasses stages carries the
/// residual of one layer from where it is made, or last needed, past the layer's norm, QKV projection or attention; the
/// edges that it bypasses carry the rest. Where the first bypassed part is the norm, which needs the residual too, the
/// producer sends it both ways and sums the two gradients.
///
/// \returns one per edge
/// \errors  kUnsupported "engine.branches": an edge backwards, or one that bypasses anything else
Result<std::vector<EdgeTensors>> edge_tensors(const Layout& layout);

}  // namespace plait
