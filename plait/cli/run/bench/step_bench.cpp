#include "plait/cli/run/bench/step_bench.h"

#include "plait/cli/run/bench/machine.h"
#include "plait/run/data/random.h"
#include "plait/run/train/trace.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <chrono>
#include <memory>
#include <utility>

namespace plait::bench {

double model_flops(const ModelConfig& config, std::int64_t sequences, std::int64_t tokens) {
  std::int64_t elements = config.hidden_size * config.vocab_size;  // the head's, tied or not
  const std::string head = "lm_head.weight";
  for (const ParameterSpec& spec : parameter_specs(config)) {
    const bool is_table = spec.part == 0;  // of tokens or positions: gathered, not multiplied
    if (spec.shape.size() == 2 && !is_table && spec.name != head) elements += spec.shape[0] * spec.shape[1];
  }
  const auto rows = static_cast<double>(sequences * tokens);
  const double visible = static_cast<double>(sequences) * static_cast<double>(tokens * (tokens + 1)) / 2;
  const auto width = static_cast<double>(config.num_layers * config.num_heads * config.head_dim);
  return 3 * (2 * static_cast<double>(elements) * rows + 4 * width * visible);
}

std::vector<Microbatch> random_microbatches(const ModelConfig& config, const StepBenchOptions& options,
                                            int num_microbatches, std::int64_t step) {
  const std::int64_t row = options.tokens + 1;
  auto next = static_cast<std::uint64_t>(step * num_microbatches * options.microbatch_size * row);
  std::vector<Microbatch> microbatches;
  for (int m = 0; m < num_microbatches; ++m) {
    const at::Tensor ids = at::empty({options.microbatch_size, row}, at::TensorOptions().dtype(at::kLong));
    auto* data = ids.mutable_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < ids.numel(); ++i)
      data[i] =
          static_cast<std::int64_t>(random_bits(options.seed, next++) % static_cast<std::uint64_t>(config.vocab_size));
    microbatches.push_back({.tokens = ids.narrow(1, 0, options.tokens).contiguous(),
                            .targets = ids.narrow(1, 1, options.tokens).contiguous()});
  }
  return microbatches;
}

namespace {

void note(const StepBenchOptions& options, const std::string& what) {
  if (options.on_note) options.on_note(what);
}

}  // namespace

Result<StepBench> bench_step(const VerifiedProgram& program, const ModelConfig& config,
                             const std::map<std::string, ParameterState>& initial, const StepBenchOptions& options) {
  const Layout& layout = program.program().layout;
  PLAIT_TRY(const std::unique_ptr<Engine> engine, Engine::create(program, config, options.engine));
  if (initial.empty())
    engine->initialize(options.seed);
  else
    PLAIT_TRY_VOID(engine->load(initial, 0));
  StepBench bench;
  bench.tokens_per_step = layout.num_microbatches * options.microbatch_size * options.tokens;
  bench.model_flops = model_flops(config, layout.num_microbatches * options.microbatch_size, options.tokens);
  std::int64_t done = 0;
  double seconds = 0;
  const auto run_step = [&]() -> Result<StepResult> {
    const auto microbatches = random_microbatches(config, options, layout.num_microbatches, done++);
    const auto start = std::chrono::steady_clock::now();
    PLAIT_TRY(StepResult step, engine->train_step(microbatches, options.learning_rate));
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    bench.losses.push_back(step.loss);
    bench.grad_norms.push_back(step.grad_norm);
    return step;
  };
  for (int i = 0; i < options.warmup; ++i) {
    note(options, "warm-up");
    PLAIT_TRY([[maybe_unused]] const StepResult step, run_step());
  }
  note(options, "a step that records its kernels");
  engine->record(Recording::kKernels);
  PLAIT_TRY(bench.recorded, run_step());
  engine->record(Recording::kOff);
  bench.breakdown = break_down(program.program(), bench.recorded);
  bench.peak_resident = peak_resident_bytes();
  bench.gemm.emplace(bench.breakdown, config, options.engine.type);
  bench.gemm->pass();
  for (int i = 0; i < options.steps; ++i) {
    note(options, "a step, then its weight products alone");
    PLAIT_TRY(const StepResult step, run_step());
    bench.seconds.push_back(seconds);
    bench.bubbles.push_back(trace_figures(program.program(), step).bubble_ratio);
    bench.peak_bytes = step.peak_bytes;
    bench.gemm->pass();
  }
  return bench;
}

}  // namespace plait::bench
