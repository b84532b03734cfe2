#include "plait/schedules/data_parallel.h"

namespace plait {
namespace {

/// Ops ahead for which weights are gathered where none are given: as many as a second buffer serves.
constexpr int kDefaultPrefetch = 1;

Result<> supports(const ScheduleShape& shape) {
  if (shape.prefetch && *shape.prefetch < 0)
    return make_error(ErrorCode::kInvalidArgument, "schedule.size", "fsdp: --prefetch is {}; 0 or more is needed",
                      *shape.prefetch);
  return check_data_parallel("fsdp", shape, GatherFlags::kTaken);
}

/// The next unit is gathered while this one computes; what the next ops need stays, so the turns at the last and the first
/// unit gather nothing.
Result<Schedule> build(const ScheduleShape& shape) {
  return write_data_parallel(
      "fsdp", shape,
      DataParallelPlan{.residency = Residency::kSharded,
                       .reduce = DataParallelPlan::Reduce::kEveryRound,
                       .wait = DataParallelPlan::Wait::kBehindNextOp,
                       .keep = shape.reshard == Reshard::kAfterBackward ? DataParallelPlan::Keep::kToBackward
                                                                        : DataParallelPlan::Keep::kWindow,
                       .ahead = shape.prefetch.value_or(kDefaultPrefetch)});
}

constexpr ScheduleInfo kInfo{
    .name = "fsdp",
    .summary =
        "ZeRO-3: weights, gradients and optimizer state are sharded; gathered before each use, scattered behind each "
        "backward",
    .needs = "m = R p; any chunks (units of p per chunk)",
    .forms =
        "bubble 0; at prefetch 1 R (2S - 2) + 1 all-gathers and R S reduce-scatters of S units; memory one "
        "micro-batch, all layers",
    .source = "Rajbhandari et al. 2020, arXiv:1910.02054, sec. 5.3; Zhao et al. 2023, arXiv:2304.11277",
    .supports = &supports,
    .build = &build,
    .expect = &expect_data_parallel};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
