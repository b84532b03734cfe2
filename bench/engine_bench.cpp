// What the executor itself costs: kernels that do nothing.

#include "plait/ir/lower.h"
#include "plait/run/engine/engine.h"
#include "plait/run/engine/memory.h"
#include "plait/run/engine/transport.h"
#include "plait/schedules/schedule_info.h"

#include <ATen/ops/empty.h>
#include <benchmark/benchmark.h>

#include <memory>
#include <thread>

namespace plait {
namespace {

/// Hands an empty payload on, and keeps nothing.
class NoKernels final : public StageKernels {
 public:
  ForwardResult forward(const SliceData&, Payload, Stash*, KvCache*, StashRule) override { return {}; }
  Stash recompute(const SliceData&, Stash, KvCache*, int, StashRule) override { return {}; }
  BackwardResult backward_input(const SliceData&, Payload, Stash, WeightStash*, KvCache*, int) override { return {}; }
  void backward_weight(WeightStash) override {}
  [[nodiscard]] std::vector<std::int64_t> input_widths() const override { return {}; }
  [[nodiscard]] std::vector<std::int64_t> output_widths() const override { return {}; }
};

ModelConfig smallest_model(int num_layers) {
  return ModelConfig{.num_layers = num_layers,
                     .hidden_size = 8,
                     .ffn_size = 8,
                     .num_heads = 1,
                     .num_kv_heads = 1,
                     .head_dim = 8,
                     .vocab_size = 8};
}

/// A whole step of 1F1B on state.range(0) ranks with state.range(1) micro-batches.
void step_without_kernels(benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0));
  const int microbatches = static_cast<int>(state.range(1));
  const auto schedule = build_schedule("1f1b", ScheduleShape{.ranks = ranks, .microbatches = microbatches});
  auto program = prove(*lower(*schedule));
  std::int64_t instructions = 0;
  for (const Row& row : program->program().rows) instructions += static_cast<std::int64_t>(row.size());
  EngineOptions options{.optimizer = {.kind = OptimizerKind::kSgd, .weight_decay = 0, .clip = std::nullopt}};
  options.kernels = [](const ModelConfig&, PartRange, ParameterSet&) { return std::make_unique<NoKernels>(); };
  auto engine = Engine::create(*program, smallest_model(ranks), options);
  if (!engine) {
    state.SkipWithError(engine.error().message.c_str());
    return;
  }
  std::vector<Microbatch> data(static_cast<std::size_t>(microbatches));
  for (Microbatch& microbatch : data) {
    microbatch.tokens = at::empty({1, 1}, at::kLong).zero_();
    microbatch.targets = at::empty({1, 1}, at::kLong).zero_();
  }
  Nanos ran{0};
  for (auto _ : state) {
    const auto result = (*engine)->train_step(data, 0.1);
    if (!result) state.SkipWithError(result.error().message.c_str());
    ran += result->duration;
  }
  state.SetItemsProcessed(state.iterations() * instructions);
  // A rank's own share: with one core for each rank they run side by side.
  state.counters["ns_per_instruction_of_a_rank"] = benchmark::Counter(
      static_cast<double>(ran.value()) * ranks / static_cast<double>(instructions * state.iterations()));
}
BENCHMARK(step_without_kernels)->Args({1, 1000})->Args({2, 1000})->Args({4, 1000})->UseRealTime();

/// One message there and back between two threads; halve it for one hand-over.
void hand_over_there_and_back(benchmark::State& state) {
  constexpr int kRounds = 1000;
  Routes routes{.num_ranks = 2, .transfers = {}, .collectives = {}};
  for (int i = 0; i < kRounds; ++i) {
    const Value value = Value::activation(EdgeId{0}, MicrobatchId{i}, SliceId{0});
    routes.transfers.push_back(Transfer{.source = RankId{0}, .destination = RankId{1}, .value = value});
    routes.transfers.push_back(Transfer{.source = RankId{1}, .destination = RankId{0}, .value = value});
  }
  const auto transport = make_in_process_transport(std::move(routes));
  for (auto _ : state) {
    transport->begin_step();
    const auto deadline = Clock::now() + std::chrono::seconds(60);
    std::thread peer([&] {
      Message message;
      for (int i = 0; i < kRounds; ++i) {
        (void)transport->receive(2 * i, message, deadline);
        transport->send(2 * i + 1, std::move(message));
      }
    });
    Message message;
    message.tensors.push_back(at::empty({1024}));
    for (int i = 0; i < kRounds; ++i) {
      transport->send(2 * i, std::move(message));
      (void)transport->receive(2 * i + 1, message, deadline);
    }
    peer.join();
  }
  state.SetItemsProcessed(state.iterations() * kRounds);
}
BENCHMARK(hand_over_there_and_back)->UseRealTime();

/// A tensor made and dropped, which the cache serves.
void make_and_drop_a_tensor(benchmark::State& state) {
  install_accounting_allocator();
  for (auto _ : state) benchmark::DoNotOptimize(at::empty({state.range(0)}));
}
BENCHMARK(make_and_drop_a_tensor)->Arg(1024)->Arg(16 << 20);

}  // namespace
}  // namespace plait
