#pragma once

#include "plait/schedules/schedule_info.h"

#include <string_view>

namespace plait {

/// Every rank runs whole micro-batches through all units (stages, p per chunk) and all ranks share every gradient. What
/// the systems choose is where weights and sums lie, and when they come.
struct DataParallelPlan {
  Residency residency = Residency::kResident;
  enum class Reduce : std::uint8_t {
    kEveryRound,  ///< behind the last backward of a group in every round
    kLastRound,   ///< in the last round only; the others add up on the rank
  };
  Reduce reduce = Reduce::kLastRound;
  enum class Wait : std::uint8_t {
    kBehindNextOp,  ///< one gradient under way beside the one that is written
    kAtEnd,         ///< all of the step's reductions may be under way
  };
  Wait wait = Wait::kAtEnd;
  enum class Keep : std::uint8_t {
    kWindow,      ///< gathered weights stay while one of the next `ahead` ops needs them
    kToBackward,  ///< also from a forward to its backward
    kWholeStep,   ///< gathered once a step
  };
  Keep keep = Keep::kWindow;
  int ahead = 1;  ///< ops of the row for which weights are gathered before this one starts
};

/// When weights come is what --prefetch and --reshard choose.
enum class GatherFlags : std::uint8_t { kRefused, kTaken };
/// Refuses what none of these systems takes.
Result<> check_data_parallel(std::string_view name, const ScheduleShape& shape, GatherFlags flags);

Result<Schedule> write_data_parallel(std::string_view name, const ScheduleShape& shape, const DataParallelPlan& plan);

/// Closed forms: the ranks never wait for each other where transfers take no time.
Expectation expect_data_parallel(const ScheduleShape& shape);

}  // namespace plait
