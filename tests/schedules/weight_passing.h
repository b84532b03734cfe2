#pragma once

#include "plait/ir/lower.h"
#include "plait/schedules/schedule_info.h"
#include "plait/sim/simulate.h"
#include "plait/verify/verify.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace plait::testing {

inline Schedule built(std::string_view name, const ScheduleShape& shape) {
  auto schedule = build_schedule(name, shape);
  EXPECT_TRUE(schedule) << (schedule ? "" : schedule.error().message);
  return schedule ? *std::move(schedule) : Schedule{};
}

inline Program program_of(std::string_view name, const ScheduleShape& shape) {
  auto program = lower(built(name, shape));
  EXPECT_TRUE(program) << (program ? "" : program.error().message);
  return program ? *std::move(program) : Program{};
}

inline std::vector<std::string> rules_found(const Program& program, TransferRule rule = TransferRule::kBuffered) {
  std::vector<std::string> rules;
  for (const Finding& finding : verify(program, {.transfers = rule}))
    rules.push_back(finding.rule + ": " + finding.message);
  return rules;
}

/// A row cut at its turns; what stands behind the last turn is the last piece.
inline std::vector<Row> turns_of(const Row& row) {
  std::vector<Row> turns(1);
  for (const Instr& instr : row) {
    if (std::holds_alternative<Turn>(instr))
      turns.emplace_back();
    else
      turns.back().push_back(instr);
  }
  return turns;
}

/// Every op of a shard takes the same: F = 1, B and W = 1 each.
inline CostModel unit_costs(const Layout& layout) {
  CostModel costs = zero_costs(layout);
  for (int s = 0; s < layout.num_stages(); ++s) {
    costs.op(OpKind::kForward, StageId{s}, SliceId{}).ticks = 1;
    costs.op(OpKind::kBackwardInput, StageId{s}, SliceId{}).ticks = 1;
    costs.op(OpKind::kBackwardWeight, StageId{s}, SliceId{}).ticks = 1;
    costs.op(OpKind::kBackward, StageId{s}, SliceId{}).ticks = 2;
  }
  return costs;
}

inline SimResult simulated(const Program& program, Turns turns, const CostModel& costs) {
  auto result = simulate(program, costs, {.turns = turns});
  EXPECT_TRUE(result) << (result ? "" : result.error().message);
  return result ? *std::move(result) : SimResult{};
}

/// Most weights and gradients that a rank holds at a time, its own weight among them, each of one byte.
inline std::vector<std::int64_t> shards_held(const Program& program, Bytes weight, Bytes gradient) {
  CostModel costs = zero_costs(program.layout);
  for (GroupCost& group : costs.groups) {
    group.weight = weight;
    group.gradient = gradient;
  }
  std::vector<std::int64_t> peaks;
  for (const RankFigures& rank : simulated(program, Turns::kIgnored, costs).ranks) peaks.push_back(rank.peak_bytes);
  return peaks;
}

}  // namespace plait::testing
