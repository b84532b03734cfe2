#pragma once

#include "plait/base/result.h"
#include "plait/sim/device.h"

#include "tools/validate/rows.h"

#include <vector>

namespace plait::validate {

/// The constants that make the rows' mean absolute log error smallest, held near the defaults of Calibration by a penalty of
/// 0.002 (log x/x0)^2 each, so that few rows fix what they say something about and leave the rest. Nelder-Mead in logs;
/// deterministic.
Result<Calibration> fit(const std::vector<const PreparedRow*>& rows);

}  // namespace plait::validate
