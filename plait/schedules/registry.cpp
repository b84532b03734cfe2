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

namespace {

Result<ScheduleShape> shape_of_one_replica(std::string_view name, ScheduleShape shape) {
  const int replicas = shape.replicas.value_or(1);
  const auto refuse = [&](std::string_view flag, int size) {
    return make_error(ErrorCode::kInvalidArgument, "schedule.replicas",
                      "{}: every replica takes the same share, got {} {} and --replicas {}; use a multiple of {}", name,
                      flag, size, replicas, replicas);
  };
  if (replicas < 1)
    return make_error(ErrorCode::kInvalidArgument, "schedule.replicas", "{}: --replicas is {}; at least 1 is needed",
                      name, replicas);
  if (shape.ranks % replicas != 0) return refuse("--ranks", shape.ranks);
  shape.ranks /= replicas;
  if (shape.microbatches) {
    if (*shape.microbatches % replicas != 0) return refuse("--microbatches", *shape.microbatches);
    *shape.microbatches /= replicas;
  }
  shape.replicas.reset();
  shape.replica_state = ReplicaState::kWhole;
  return shape;
}

}  // namespace

Result<Schedule> build_schedule(std::string_view name, const ScheduleShape& shape) {
  PLAIT_TRY(const ScheduleInfo* info, find_schedule(name));
  PLAIT_TRY(const ScheduleShape one, shape_of_one_replica(name, shape));
  PLAIT_TRY_VOID(info->supports(one));
  PLAIT_TRY(Schedule schedule, info->build(one));
  PLAIT_TRY(schedule, add_recompute(std::move(schedule), one.recompute));
  return replicate(schedule, shape.replicas.value_or(1), shape.replica_state);
}

}  // namespace plait
