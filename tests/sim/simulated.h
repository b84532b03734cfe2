#pragma once

#include "plait/ir/lower.h"
#include "plait/schedules/schedule_info.h"
#include "plait/sim/simulate.h"
#include "plait/sim/times.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

/// A schedule of the registry, lowered and timed; figures in the unit of the times.
namespace plait::test {

struct Simulated {
  Program program;
  CostModel costs;
  SimResult result;

  [[nodiscard]] double unit(std::int64_t ticks) const {
    return static_cast<double>(ticks) / static_cast<double>(result.ticks_per_unit);
  }
  [[nodiscard]] double makespan() const { return unit(result.makespan); }
  [[nodiscard]] double bubble_max() const { return unit(result.bubble_max); }
  [[nodiscard]] std::vector<double> idle() const {
    std::vector<double> all;
    for (const RankFigures& rank : result.ranks) all.push_back(unit(rank.idle));
    return all;
  }
  [[nodiscard]] std::vector<double> peaks() const {
    std::vector<double> all;
    for (const RankFigures& rank : result.ranks)
      all.push_back(in_microbatches(program.layout, rank.peak_stashes).value());
    return all;
  }
};

/// Times as `--times` takes them, and as the schedules that are built from times do.
inline Simulated simulate_schedule(const std::string& name, ScheduleShape shape, const std::string& times_text,
                                   const std::string& latency = "0", const SimOptions& options = {}) {
  TimesSpec times = parse_times(times_text).value();
  times.latency = parse_decimal(latency).value();
  const std::int64_t chunks = shape.chunks.value_or(1);
  std::int64_t ticks = ticks_per_unit(times, 2 * chunks * shape.slices.value_or(1)).value();
  if (times.form == TimesSpec::Form::kOps) {
    shape.times = OpTimes{.forward = to_ticks(times.forward, ticks).value(),
                          .backward = to_ticks(times.backward, ticks).value(),
                          .weight = to_ticks(times.weight, ticks).value(),
                          .transfer = to_ticks(times.latency, ticks).value()};
  }
  auto schedule = build_schedule(name, shape);
  if (!schedule) throw std::runtime_error(schedule.error().message);
  auto program = lower(*schedule);
  if (!program) throw std::runtime_error(program.error().message);
  ticks = exact_ticks(program->layout, times).value();
  auto costs = abstract_costs(program->layout, times, ticks);
  if (!costs) throw std::runtime_error(costs.error().message);
  auto result = simulate(*program, *costs, options);
  if (!result) throw std::runtime_error(result.error().message);
  return Simulated{.program = *std::move(program), .costs = *std::move(costs), .result = *std::move(result)};
}

}  // namespace plait::test
