#pragma once

#include "plait/cli/run/bench/step_bench.h"
#include "plait/run/train/breakdown.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace plait::bench {

/// Shares of a step per rank: its instructions, parts and kernels, and what none of them covers.
nlohmann::ordered_json breakdown_json(const std::vector<Breakdown>& ranks);
/// The same as tables; parts and kernels over all ranks.
std::string breakdown_tables(const std::vector<Breakdown>& ranks);

/// \param setup  what ran: model, schedule, data type, machine
nlohmann::ordered_json step_json(const StepBench& bench, nlohmann::ordered_json setup);
std::string step_tables(const StepBench& bench);

}  // namespace plait::bench
