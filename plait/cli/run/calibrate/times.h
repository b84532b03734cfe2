#pragma once

#include "plait/run/model/parameters.h"
#include "plait/sim/host.h"

#include <functional>
#include <string>
#include <vector>

namespace plait::calibrate {

struct TimeOptions {
  double seconds_per_point = 0.15;                            ///< of repetitions, for each size
  std::function<void(const std::string&)> on_note = nullptr;  ///< what is being timed
};

/// Seconds per operation of matrix products over a grid of sizes.
host::Products time_products(ComputeType type, const TimeOptions& options);

/// Seconds per parameter of what an optimizer step does: gradients zeroed, their squares summed, clipped, AdamW.
void time_steps(ComputeType type, const TimeOptions& options, host::TypeCosts& costs);

/// The measured times of single parts over work_seconds, for models of one kind of MLP.
void time_parts(ComputeType type, MlpKind mlp, const TimeOptions& options, const host::TypeCosts& type_costs,
                host::PartCosts& costs);

/// From ringing a sleeping thread's bell to its first instruction.
double time_hand_over();

}  // namespace plait::calibrate
