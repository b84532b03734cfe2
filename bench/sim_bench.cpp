#include "plait/ir/lower.h"
#include "plait/schedules/schedule_info.h"
#include "plait/sim/simulate.h"
#include "plait/sim/times.h"

#include <benchmark/benchmark.h>

#include <cstdlib>
#include <string>

namespace {

using plait::CostModel;
using plait::Program;

struct Case {
  Program program;
  CostModel costs;
  std::int64_t instructions = 0;
};

/// 1F1B with transfers that take time and memory accounted: every value has bytes.
Case make_case(const std::string& name, int ranks, int microbatches) {
  const plait::Schedule schedule = plait::build_schedule(name, {.ranks = ranks, .microbatches = microbatches}).value();
  Case made{.program = plait::lower(schedule).value(), .costs = {}};
  made.costs = plait::abstract_costs(made.program.layout, plait::parse_times("F=1,B=1.2,W=0.8").value()).value();
  made.costs.latency = 3;
  for (auto& op : made.costs.ops) op = {.ticks = op.ticks, .alloc = 3000, .transient = 100, .freed = 3000};
  for (auto& bytes : made.costs.edge_bytes) bytes = plait::Bytes{1000};
  for (const auto& row : made.program.rows) made.instructions += static_cast<std::int64_t>(row.size());
  return made;
}

void simulate_1f1b(benchmark::State& state) {
  const Case c = make_case("1f1b", static_cast<int>(state.range(0)), static_cast<int>(state.range(1)));
  for (auto _ : state) {
    auto result = plait::simulate(c.program, c.costs);
    if (!result) std::abort();
    benchmark::DoNotOptimize(result->makespan);
  }
  state.counters["instr/s"] =
      benchmark::Counter(static_cast<double>(c.instructions * state.iterations()), benchmark::Counter::kIsRate);
  state.counters["instructions"] = static_cast<double>(c.instructions);
}
BENCHMARK(simulate_1f1b)->Args({8, 32})->Args({64, 256})->Args({256, 1024})->Unit(benchmark::kMillisecond);

}  // namespace
