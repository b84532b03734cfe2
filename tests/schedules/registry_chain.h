#pragma once

#include "plait/schedules/schedule_info.h"

namespace plait {

enum class Outcome { kRefused, kRan };

/// Takes one schedule for one shape through supports, build, text and back, lower, text and back, verify under all transfer rules, simulate == expect, and
/// the tests' own replay == expect; fails the running test at the first step that does not hold.
Outcome run_chain(const ScheduleInfo& info, const ScheduleShape& shape);

/// "interleaved-1f1b p 4 m 8 v 2 k 1"
std::string describe(const ScheduleInfo& info, const ScheduleShape& shape);

}  // namespace plait
