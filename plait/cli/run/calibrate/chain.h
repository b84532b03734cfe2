#pragma once

#include "plait/run/engine/memory.h"
#include "plait/run/model/config.h"
#include "plait/run/model/parameters.h"
#include "plait/run/model/stage_module.h"
#include "plait/sim/host.h"

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace plait::calibrate {

/// Seconds of each part in each phase of one pass: embed, norm, qkv, attn, post and head of a model of one layer.
using PassSeconds = std::array<std::array<double, host::kNumPhases>, host::kNumPartKinds>;

/// A model of one layer, cut into its single parts, that are run one behind the other as a stage would run them: each finds
/// in the caches what the one before it left there.
///
/// \threads  of one thread; several chains may run on several threads
class Chain {
 public:
  Chain(const ModelConfig& config, ComputeType type, std::int64_t batch, std::int64_t tokens);

  /// Forward without a stash; forward, backward and weight gradients; forward and both gradients at once. Each for a few
  /// micro-batches before the next begins, as a stage has several layers: what a backward reads was made long ago and is no
  /// longer in the first caches. Seconds are means over the micro-batches.
  PassSeconds run();

 private:
  ModelConfig config_;
  MemoryAccount& account_;
  ParameterSet parameters_;
  std::vector<StageModule> parts_;
  SliceData data_;
};

/// A model of one layer with these sizes.
ModelConfig one_layer(const ModelShape& shape);

}  // namespace plait::calibrate
