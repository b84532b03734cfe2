#pragma once

#include "plait/ir/program.h"
#include "plait/sim/simulate.h"

#include <string>

namespace plait {

/// Sizes, stages, groups and every instruction of every rank; with `times` (of the same rows) also when each starts and ends,
/// in units of --times.
std::string program_as_json(const Layout& layout, const std::vector<Row>& rows, const SimResult* times = nullptr);

}  // namespace plait
