#pragma once

#include "plait/base/result.h"
#include "plait/schedules/schedule_info.h"
#include "plait/sim/times.h"

#include <cstdint>
#include <optional>
#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming): the library's own
class App;
}

namespace plait {

/// The flags of DESIGN section 7 that say which schedule is meant and mean the same in every command, as given.
struct ScheduleFlags {
  std::optional<int> ranks;
  std::optional<int> microbatches;
  std::optional<int> chunks;
  std::optional<int> slices;
  std::optional<int> layers;
  std::optional<int> folds;
  std::optional<int> repeats;
  std::optional<int> groups;
  std::optional<int> rounds;
  std::optional<int> prefetch;
  std::optional<int> replicas;
  std::optional<std::string> replica_state;
  std::optional<std::string> reshard;
  std::optional<int> memory_limit;
  std::optional<std::string> order;
  std::optional<std::string> recompute;
  std::optional<std::string> qkv;
  std::optional<std::string> residual;
  std::optional<std::string> weights;
  std::optional<std::string> slice_cut;
  std::optional<std::string> eviction;
  std::optional<std::string> head;
  std::optional<std::string> times;
  std::optional<std::string> latency;
  bool pattern_only = false;
  bool post_validation = false;
};

/// Adds the flags to a command; `flags` must outlive the parse.
void add_schedule_flags(CLI::App& app, ScheduleFlags& flags);

/// What the flags ask for. The times of the shape are in ticks, of which `ticks_per_unit` make one unit of --times.
struct ScheduleRequest {
  ScheduleShape shape;
  TimesSpec times;
  std::int64_t ticks_per_unit = 1;
};

/// Checks the flags against each other and makes the times exact. Sizes themselves are the schedules' to judge.
///
/// \errors kInvalidArgument: "flags.missing" (no --ranks or --microbatches), "flags.conflict" (--repeats, --rounds and
///         --microbatches disagree), "times.*"; kIo if --times names a file that cannot be read
Result<ScheduleRequest> resolve_flags(const ScheduleFlags& flags);

/// What --recompute asks for.
Recompute recompute_of(const ScheduleFlags& flags);

/// --times and --latency as exact numbers: F=..., or pre=..., or the name of a JSON file.
Result<TimesSpec> resolve_times(const ScheduleFlags& flags);

}  // namespace plait
