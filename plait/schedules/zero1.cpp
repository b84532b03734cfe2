#include "plait/schedules/data_parallel.h"

namespace plait {
namespace {

Result<> supports(const ScheduleShape& shape) {
  return check_data_parallel("zero1", shape, GatherFlags::kRefused);
}

/// A step starts with shards, as the optimizer left them: the gather that would end the last step hides under the first
/// forwards of this one. From then on a rank holds the whole model and its whole gradient.
Result<Schedule> build(const ScheduleShape& shape) {
  return write_data_parallel("zero1", shape,
                             DataParallelPlan{.residency = Residency::kSharded,
                                              .reduce = DataParallelPlan::Reduce::kLastRound,
                                              .wait = DataParallelPlan::Wait::kAtEnd,
                                              .keep = DataParallelPlan::Keep::kWholeStep,
                                              .ahead = 1});
}

constexpr ScheduleInfo kInfo{
    .name = "zero1",
    .summary = "data parallel with sharded optimizer state: weights are gathered once a step, sums scattered once",
    .needs = "m = R p; any chunks (units of p per chunk)",
    .forms = "bubble 0; one all-gather and one reduce-scatter per unit and step; memory one micro-batch, all layers",
    .source = "Rajbhandari et al. 2020, arXiv:1910.02054, sec. 5.1",
    .supports = &supports,
    .build = &build,
    .expect = &expect_data_parallel};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
