#include "plait/ir/recompute.h"
#include "plait/schedules/schedule_info.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

namespace plait {
namespace {

std::vector<const ScheduleInfo*>& registry() {
  static std::vector<const ScheduleInfo*> schedules;
  return schedules;
}

std::string lower_case(std::string_view text) {
  std::string lowered(text);
  for (char& c : lowered) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lowered;
}

}  // namespace

namespace detail {

ScheduleRegistrar::ScheduleRegistrar(const ScheduleInfo& info) {
  auto& schedules = registry();
  const auto place = std::lower_bound(schedules.begin(), schedules.end(), info.name,
                                      [](const ScheduleInfo* a, std::string_view name) { return a->name < name; });
  if (place != schedules.end() && (*place)->name == info.name) {
    std::fputs(fmt::format("two schedules are named {}\n", info.name).c_str(), stderr);
    std::abort();
  }
  schedules.insert(place, &info);
}

}  // namespace detail

const std::vector<const ScheduleInfo*>& all_schedules() {
  return registry();
}

Result<const ScheduleInfo*> find_schedule(std::string_view name) {
  const std::string wanted = lower_case(name);
  std::string known;
  for (const ScheduleInfo* info : registry()) {
    if (info->name == wanted) return info;
    known += (known.empty() ? "" : ", ") + std::string(info->name);
  }
  return make_error(ErrorCode::kInvalidArgument, "schedule.unknown", "no schedule is named '{}'; there are: {}", name,
                    known);
}

Result<Schedule> build_schedule(std::string_view name, const ScheduleShape& shape) {
  PLAIT_TRY(const ScheduleInfo* info, find_schedule(name));
  PLAIT_TRY_VOID(info->supports(shape));
  PLAIT_TRY(Schedule schedule, info->build(shape));
  return add_recompute(std::move(schedule), shape.recompute);
}

}  // namespace plait
