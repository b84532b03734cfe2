#pragma once

#include "plait/base/result.h"
#include "plait/ir/program.h"
#include "plait/run/engine/engine.h"

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <vector>

namespace plait {

/// The slices of a step's micro-batches.
struct StepData {
  std::vector<SliceData> slices;  ///< micro-batch x num_slices + slice; loss_scale is 1 / valid_tokens
  std::int64_t valid_tokens = 0;  ///< of the whole step: what losses and gradients are normalised by
};

/// Checks micro-batches and cuts them into the program's slices.
///
/// \errors kInvalidArgument "engine.data": wrong number or shape, ids outside the vocabulary, sequences that are too long
///         for learned positions or shorter than the number of slices; documents in slices; no valid token at all
Result<StepData> cut_microbatches(const std::vector<Microbatch>& microbatches, const Layout& layout,
                                  const ModelConfig& config, const EngineOptions& options);

/// The slices with their ids on a device, by one copy.
std::vector<SliceData> on_device(const std::vector<SliceData>& slices, at::Device device);

}  // namespace plait
