#pragma once

#include "plait/cli/cost_flags.h"
#include "plait/cli/schedule_source.h"
#include "plait/sim/simulate.h"

#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace plait {

/// The flags of DESIGN section 7 that say how transfers, pairs and turns are timed.
struct TimingFlags {
  std::string transfers = "buffered";
  int buffers = 1;
  std::optional<double> pair_factor;
  bool lock_step = false;
};
void add_timing_flags(CLI::App& app, TimingFlags& flags);

/// A program with the times of a step of it.
struct TimedProgram {
  Program program;
  CostModel costs;
  SimResult result;
};

/// Lowers and simulates under the times that were loaded with it.
Result<TimedProgram> time_step(LoadedSchedule loaded, const TimingFlags& timing, Detail detail);

/// What NAME|FILE and the flags say, lowered and simulated: under the times that come with it, or the costs of --device or
/// --costs.
/// \errors those of load_schedule, lower, resolve_costs and simulate
Result<TimedProgram> time_source(const std::string& name_or_file, const ScheduleFlags& flags, const TimingFlags& timing,
                                 const CostFlags& cost_flags, const TorchCsvOptions& csv, Detail detail);

}  // namespace plait
