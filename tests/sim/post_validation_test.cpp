// Steps that do not wait for the norm: times and bytes by hand.

#include "plait/sim/model_shape.h"

#include "tests/sim/simulated.h"
#include <gmock/gmock.h>

namespace plait::test {
namespace {

using ::testing::ElementsAre;

/// zb-h2 over four ranks and eight micro-batches with F = B = W = 1: rank r works from r to r + 24, without a pause.
struct ZeroBubble {
  explicit ZeroBubble(StepOrder order) {
    Schedule schedule = build_schedule("zb-h2", {.ranks = 4, .microbatches = 8, .layers = 4}).value();
    schedule.layout.steps = order;
    program = lower(schedule).value();
    costs = zero_costs(program.layout);
    for (const OpKind kind : {OpKind::kForward, OpKind::kBackwardInput, OpKind::kBackwardWeight})
      for (int stage = 0; stage < 4; ++stage) costs.op(kind, StageId{stage}, SliceId{0}).ticks = 1;
    for (GroupCost& group : costs.groups) group.step_ticks = 3;
  }
  [[nodiscard]] SimResult run() const { return simulate(program, costs, {.detail = Detail::kTimeline}).value(); }
  [[nodiscard]] std::vector<InstrTime> steps(const SimResult& result) const {
    std::vector<InstrTime> times;
    for (std::size_t rank = 0; rank < program.rows.size(); ++rank)
      for (std::size_t at = 0; at < program.rows[rank].size(); ++at)
        if (std::holds_alternative<Step>(program.rows[rank][at])) times.push_back(result.times[rank][at]);
    return times;
  }
  Program program;
  CostModel costs;
};

TEST(PostValidation, TurnsTheTrapezoidIntoAParallelogram) {
  // Behind the norm all ranks step when the last has its gradients, at 27; then the next step begins at 30.
  const ZeroBubble behind(StepOrder::kBehindNorm);
  const SimResult waits = behind.run();
  EXPECT_THAT(behind.steps(waits),
              ElementsAre(InstrTime{27, 30}, InstrTime{27, 30}, InstrTime{27, 30}, InstrTime{27, 30}));
  EXPECT_EQ(waits.makespan, 30);
  EXPECT_EQ(waits.period, 30);
  // Each rank steps when it is through, and begins its next step 27 behind the one before: 24 for its ops, 3 for the step.
  const ZeroBubble first(StepOrder::kPostValidated);
  const SimResult goes_on = first.run();
  EXPECT_THAT(first.steps(goes_on),
              ElementsAre(InstrTime{24, 27}, InstrTime{25, 28}, InstrTime{26, 29}, InstrTime{27, 30}));
  EXPECT_EQ(goes_on.makespan, 30);
  EXPECT_EQ(goes_on.period, 27);
}

TEST(PostValidation, TakesTheNormOffTheWayToTheStep) {
  const auto on_links = [](StepOrder order) {
    ZeroBubble program(order);
    const Link link{.latency_ticks = 1, .bytes_per_second = 1000};
    program.costs.cluster = make_cluster(4, 4, link, link, 1);
    return program;
  };
  const ZeroBubble behind = on_links(StepOrder::kBehindNorm);
  const SimResult waits = behind.run();
  const ZeroBubble first = on_links(StepOrder::kPostValidated);
  const SimResult goes_on = first.run();
  const std::int64_t last_gradient = first.steps(goes_on).back().start;
  // A ring over four ranks, of next to nothing: 2 (4 - 1) latencies. Behind them the step, or below them.
  EXPECT_EQ(behind.steps(waits).back(), (InstrTime{last_gradient + 6, last_gradient + 9}));
  EXPECT_EQ(waits.makespan, last_gradient + 9);
  EXPECT_EQ(first.steps(goes_on).back(), (InstrTime{last_gradient, last_gradient + 3}));
  EXPECT_EQ(goes_on.makespan, last_gradient + 6);
}

TEST(PostValidation, HoldsWhatUndoesTheStepsUntilThen) {
  const ModelShape shape = gpt_shape(4, 64, 4, 100, 8, 1);
  ZeroBubble program(StepOrder::kPostValidated);
  ASSERT_TRUE(add_memory(program.program.layout, shape, {}, {}, program.costs));
  const SimResult result = program.run();
  for (std::size_t rank = 0; rank < 4; ++rank) {
    const std::int64_t undo = program.costs.groups[rank].undo.value();
    // fp32 masters and two moments.
    EXPECT_EQ(undo, program.costs.groups[rank].optimizer.value());
    const Row& row = program.program.rows[rank];
    const std::vector<Held>& held = result.held[rank];
    const std::size_t last = row.size() - 1;
    ASSERT_EQ(row[last], Instr(Validate{}));
    ASSERT_TRUE(std::holds_alternative<Step>(row[last - 1]));
    EXPECT_EQ(held[last - 1].bytes - held[last - 2].bytes, undo);
    EXPECT_EQ(held[last - 1].bytes - held[last].bytes, undo);
    const RankId id{static_cast<std::int32_t>(rank)};
    EXPECT_EQ(memory_owners(program.program, program.costs, id, static_cast<int>(last - 1)).total(),
              held[last - 1].bytes);
    EXPECT_EQ(memory_owners(program.program, program.costs, id, static_cast<int>(last)).total(), held[last].bytes);
  }
}

}  // namespace
}  // namespace plait::test
