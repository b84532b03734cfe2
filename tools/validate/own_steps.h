#pragma once

#include "plait/base/result.h"

#include <string>

namespace plait::validate {

/// Steps of plait train on one machine beside their predictions, as scripts/compare-step left them in
/// DATA/validation/own-steps.csv: a section of the report; empty where there is no such file.
/// \errors kInvalidArgument "validate.row"
Result<std::string> own_steps(const std::string& data);

}  // namespace plait::validate
