#include "plait/ir/lower.h"
#include "plait/schedules/schedule_info.h"
#include "plait/verify/verify.h"

#include <benchmark/benchmark.h>

#include <cstdint>

namespace plait {
namespace {

ScheduleShape shape(const benchmark::State& state) {
  return {.ranks = static_cast<int>(state.range(0)), .microbatches = static_cast<int>(state.range(1))};
}

std::int64_t num_instrs(const Program& program) {
  std::int64_t count = 0;
  for (const Row& row : program.rows) count += static_cast<std::int64_t>(row.size());
  return count;
}

/// 1F1B: generate, lower, verify. Goals: p=8 m=32 under 1 ms, p=64 m=256 under 50 ms, p=1024 m=4096 under 10 s in 8 GiB.
void generate_and_verify(benchmark::State& state) {
  for (auto _ : state) {
    const auto program = lower(*build_schedule("1f1b", shape(state)));
    const auto findings = verify(*program);
    if (!findings.empty()) state.SkipWithError(findings.front().message.c_str());
  }
}
BENCHMARK(generate_and_verify)->Args({8, 32})->Args({64, 256})->Unit(benchmark::kMillisecond);
BENCHMARK(generate_and_verify)->Args({1024, 4096})->Unit(benchmark::kSecond)->Iterations(1);

/// Verification alone, in instructions per second. Goal: 10 million.
void verify_alone(benchmark::State& state, TransferRule transfers) {
  const auto program = lower(*build_schedule("1f1b", shape(state)));
  for (auto _ : state) {
    const auto findings = verify(*program, {.transfers = transfers});
    if (!findings.empty()) state.SkipWithError(findings.front().message.c_str());
  }
  state.counters["instructions/s"] =
      benchmark::Counter(static_cast<double>(num_instrs(*program) * state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK_CAPTURE(verify_alone, buffered, TransferRule::kBuffered)
    ->Args({8, 32})
    ->Args({64, 256})
    ->Args({256, 1024})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(verify_alone, bounded, TransferRule::kBounded)->Args({64, 256})->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(verify_alone, rendezvous, TransferRule::kRendezvous)->Args({64, 256})->Unit(benchmark::kMillisecond);

/// A program that is wrong at every receive: findings must not cost more than the program is long.
void verify_broken(benchmark::State& state) {
  auto program = lower(*build_schedule("1f1b", shape(state)));
  for (Row& row : program->rows)
    std::erase_if(row, [](const Instr& instr) { return std::holds_alternative<Recv>(instr); });
  std::size_t found = 0;
  for (auto _ : state) found = verify(*program).size();
  state.counters["findings"] = static_cast<double>(found);
  state.counters["instructions/s"] =
      benchmark::Counter(static_cast<double>(num_instrs(*program) * state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK(verify_broken)->Args({8, 32})->Args({64, 256})->Args({256, 1024})->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace plait
