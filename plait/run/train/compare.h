#pragma once

#include "plait/base/result.h"
#include "plait/run/engine/engine.h"

#include <vector>

namespace plait {

/// Steps of two programs on the same weights and rows: of each the one of median duration.
struct Comparison {
  StepResult own;
  StepResult other;
  VerifiedProgram other_program;
};

/// Steps that are compared; one more of each comes first and does not count.
inline constexpr int kComparedSteps = 5;

/// Takes turns between steps of `own` and of an engine for `other` that starts from its state. The learning rate is 0, so
/// no weight changes; the moments of the optimizer do, hence only for an engine whose training is over.
///
/// With several processes all call this. What a step tells on process 0 only is missing elsewhere here too, and each takes
/// its own median.
///
/// \param microbatches  of one step of either
/// \errors the engine's; kInvalidArgument "train.compare" if `other` runs another number of micro-batches
Result<Comparison> compare_steps(Engine& own, const VerifiedProgram& other, const ModelConfig& model,
                                 const EngineOptions& options, const std::vector<Microbatch>& microbatches);

}  // namespace plait
