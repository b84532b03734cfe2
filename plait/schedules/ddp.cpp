#include "plait/schedules/data_parallel.h"

namespace plait {
namespace {

Result<> supports(const ScheduleShape& shape) {
  return check_data_parallel("ddp", shape, GatherFlags::kRefused);
}

/// One bucket per unit, reduced behind its last backward of the step while the units before it run theirs.
Result<Schedule> build(const ScheduleShape& shape) {
  return write_data_parallel("ddp", shape,
                             DataParallelPlan{.residency = Residency::kResident,
                                              .reduce = DataParallelPlan::Reduce::kLastRound,
                                              .wait = DataParallelPlan::Wait::kAtEnd});
}

constexpr ScheduleInfo kInfo{
    .name = "ddp",
    .summary = "every rank holds the whole model; one all-reduce per unit, under the backwards that are left",
    .needs = "m = R p; any chunks (units of p per chunk)",
    .forms = "bubble 0; one all-reduce per unit and step; memory one micro-batch, all layers",
    .source = "Li et al. 2020, arXiv:2006.15704 (PyTorch DDP)",
    .supports = &supports,
    .build = &build,
    .expect = &expect_data_parallel};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
