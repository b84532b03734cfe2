#pragma once

#include "plait/base/result.h"
#include "plait/sim/device.h"

#include <string>

namespace plait::validate {

enum class WeightPassingConstants : std::uint8_t { kFromFile, kFitted };

/// The published throughputs of weight passing, FSDP and 1F1B on three nodes (DATA/validation/weight-passing.csv), simulated: a section of the
/// report. Constants come from DATA/validation/weight-passing.json; kFitted makes that file from the rows in
/// weight-passing-fit.csv first.
Result<std::string> weight_passing(const std::string& data, const Device& device, WeightPassingConstants constants);

}  // namespace plait::validate
