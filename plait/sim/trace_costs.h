#pragma once

#include "plait/base/result.h"
#include "plait/sim/cost_model.h"

#include <string_view>

namespace plait {

/// Costs of a layout as measured in a step: of each kind of op, stage and slice the median over the micro-batches, of each
/// parameter group the longest of its steps; in nanoseconds (unit "s"). Transfers take no time, values have no bytes.
///
/// \param trace  trace.json of `plait train`
/// \errors kIo "costs.trace": no such trace; kInvalidArgument "costs.missing": an op of the program that the trace has
///         no time of
Result<CostModel> trace_costs(const Program& program, std::string_view trace);

}  // namespace plait
