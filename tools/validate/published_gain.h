#pragma once

#include "plait/base/result.h"
#include "plait/sim/device.h"

#include <string>

namespace plait::validate {

/// The section of docs/validation.md that holds HelixPipe against its baselines in the published setting, and along
/// sequence length, pipeline size and link speed.
///
/// \param device       the H20 of data/devices
/// \param calibration  what a stack makes of it, fitted on other rows
Result<std::string> published_gain(const Device& device, const Calibration& calibration);

}  // namespace plait::validate
