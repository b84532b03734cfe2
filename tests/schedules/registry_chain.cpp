#include "registry_chain.h"

#include "plait/ir/lower.h"
#include "plait/ir/text.h"
#include "plait/sim/simulate.h"
#include "plait/verify/verify.h"

#include "replay.h"
#include <gtest/gtest.h>

namespace plait {
namespace {

CostModel costs_of(const Schedule& schedule, const OpTimes& times) {
  CostModel costs = zero_costs(schedule.layout);
  const Ticks parts = Ticks{chunks_of(schedule)} * schedule.layout.num_slices;
  for (int s = 0; s < schedule.layout.num_stages(); ++s) {
    for (int q = 0; q < schedule.layout.num_slices; ++q) {
      costs.op(OpKind::kForward, StageId{s}, SliceId{q}).ticks = times.forward / parts;
      costs.op(OpKind::kBackwardInput, StageId{s}, SliceId{q}).ticks = times.backward / parts;
      costs.op(OpKind::kBackwardWeight, StageId{s}, SliceId{q}).ticks = times.weight / parts;
      costs.op(OpKind::kBackward, StageId{s}, SliceId{q}).ticks = (times.backward + times.weight) / parts;
    }
  }
  return costs;
}

std::string first_finding(const Program& program, TransferRule rule) {
  const std::vector<Finding> findings = verify(program, {.transfers = rule});
  return findings.empty() ? "" : fmt::format("{}: {}", findings[0].rule, findings[0].message);
}

bool weights_travel(const Schedule& schedule) {
  for (const Row& row : schedule.rows)
    for (const Instr& instr : row)
      if (const Send* send = std::get_if<Send>(&instr); send != nullptr && send->value.kind() == ValueKind::kWeight)
        return true;
  return false;
}

void expect_refusal_with_fix(const Error& error, std::string_view name) {
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.rule.rfind("schedule.", 0), 0U) << error.rule;
  EXPECT_EQ(error.message.rfind(name, 0), 0U) << error.message;
  EXPECT_NE(error.message.find("; "), std::string::npos) << "no fix: " << error.message;
}

}  // namespace

std::string describe(const ScheduleInfo& info, const ScheduleShape& shape) {
  return fmt::format("{} p {} m {} v {} k {} order {}", info.name, shape.ranks, shape.microbatches.value_or(0),
                     shape.chunks.value_or(0), shape.slices.value_or(0),
                     shape.order == Order::kTorch ? "torch" : "megatron");
}

Outcome run_chain(const ScheduleInfo& info, const ScheduleShape& shape) {
  SCOPED_TRACE(describe(info, shape));
  if (const Result<> supported = info.supports(shape); !supported) {
    expect_refusal_with_fix(supported.error(), info.name);
    return Outcome::kRefused;
  }
  const Result<Schedule> schedule = info.build(shape);
  EXPECT_TRUE(schedule) << schedule.error().message;
  if (!schedule) return Outcome::kRan;
  EXPECT_EQ(schedule->layout.name, info.name);
  const auto read_back = parse_text(print_text(*schedule), "round trip");
  EXPECT_TRUE(read_back) << read_back.error().message;
  if (read_back) {
    EXPECT_TRUE(std::get<Schedule>(*read_back) == *schedule) << "the text form reads back differently";
  }
  const Result<Program> program = lower(*schedule);
  EXPECT_TRUE(program) << program.error().message;
  if (!program) return Outcome::kRan;
  const auto program_back = parse_text(print_text(*program), "round trip");
  EXPECT_TRUE(program_back) << program_back.error().message;
  if (program_back) {
    EXPECT_TRUE(std::get<Program>(*program_back) == *program) << "the program's text form reads back differently";
  }
  EXPECT_EQ(first_finding(*program, TransferRule::kBuffered), "");
  EXPECT_EQ(first_finding(*program, TransferRule::kBounded), "");
  EXPECT_EQ(first_finding(*program, TransferRule::kRendezvous), "");

  const Expectation expected = info.expect(shape);
  const auto played = replay(*schedule, shape.times);
  EXPECT_TRUE(played) << "the replay is stuck";
  const auto simulated = simulate(*program, costs_of(*schedule, shape.times));
  EXPECT_TRUE(simulated) << simulated.error().message;
  if (!played || !simulated) return Outcome::kRan;
  if (weights_travel(*schedule)) {
    // The replay knows ops only; weights in finite buffers tie the ranks to each other.
    EXPECT_GE(simulated->makespan, played->makespan);
  } else {
    EXPECT_EQ(simulated->makespan, played->makespan);
    EXPECT_EQ(simulated->bubble_max, played->max_idle());
  }
  if (expected.makespan) {
    EXPECT_EQ(simulated->makespan, *expected.makespan);
  }
  if (expected.max_idle) {
    EXPECT_EQ(simulated->bubble_max, *expected.max_idle);
  }
  if (expected.sends) {
    EXPECT_EQ(simulated->transfers.count, *expected.sends);
  }
  if (expected.peak_activation_units) {
    EXPECT_EQ(played->peak, *expected.peak_activation_units);
    std::vector<int> peaks;
    for (const RankFigures& rank : simulated->ranks) peaks.push_back(rank.peak_stashes);
    EXPECT_EQ(peaks, *expected.peak_activation_units);
  }
  return Outcome::kRan;
}

}  // namespace plait
