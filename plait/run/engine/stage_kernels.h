#pragma once

#include "plait/ir/parts.h"
#include "plait/run/model/config.h"
#include "plait/run/model/parameters.h"
#include "plait/run/model/stage_module.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace plait {

/// What a rank runs for the ops of one stage. The engine's own are a StageModule; tests and benchmarks bring others.
class StageKernels {
 public:
  virtual ~StageKernels() = default;
  /// \param rule  what to leave in the stash: everything, unless a recompute stands before the backward
  virtual ForwardResult forward(const SliceData& data, Payload input, Stash* stash, KvCache* cache, StashRule rule) = 0;
  virtual Stash recompute(const SliceData& data, Stash kept, KvCache* cache, int slice_idx, StashRule rule) = 0;
  virtual BackwardResult backward_input(const SliceData& data, Payload output_grad, Stash stash,
                                        WeightStash* weight_stash, KvCache* cache, int slice_idx) = 0;
  virtual void backward_weight(WeightStash weight_stash) = 0;
  /// Both at once.
  virtual BackwardResult backward(const SliceData& data, Payload output_grad, Stash stash, KvCache* cache,
                                  int slice_idx);
  /// Since the kernels were made.
  [[nodiscard]] virtual KernelCounts counts() const { return {}; }

  /// Last extents of the tensors [B,T,*] that come in and go out; what arrives from another rank is compared with them.
  [[nodiscard]] virtual std::vector<std::int64_t> input_widths() const = 0;
  [[nodiscard]] virtual std::vector<std::int64_t> output_widths() const = 0;
};

using KernelFactory = std::function<std::unique_ptr<StageKernels>(const ModelConfig&, PartRange, ParameterSet&)>;

std::unique_ptr<StageKernels> make_module_kernels(const ModelConfig& config, PartRange parts, ParameterSet& parameters,
                                                  const StageOptions& options = {});

/// Last extents of the payload in front of the part at chain index `part_idx` (stage_module.h); none before embed and
/// behind head.
std::vector<std::int64_t> payload_widths(const ModelConfig& config, int part_idx);

}  // namespace plait
