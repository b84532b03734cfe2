#pragma once

#include "plait/base/result.h"
#include "plait/cli/run/bench/gemm_rate.h"
#include "plait/run/engine/engine.h"
#include "plait/run/model/config.h"
#include "plait/run/train/breakdown.h"
#include "plait/verify/verify.h"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace plait::bench {

struct StepBenchOptions {
  std::int64_t tokens = 512;         ///< of a sequence
  std::int64_t microbatch_size = 1;  ///< sequences of a micro-batch
  int warmup = 1;                    ///< steps before the one that records its kernels, which is not counted either
  int steps = 5;                     ///< that are counted
  std::uint64_t seed = 1;            ///< of the initial weights and the tokens
  double learning_rate = 3e-4;
  EngineOptions engine;
  std::function<void(const std::string&)> on_note = nullptr;  ///< what is being done
};

struct StepBench {
  std::vector<double> losses;      ///< of all steps, from the initial weights on
  std::vector<double> grad_norms;  ///< the same
  std::vector<double> seconds;     ///< of the steps that are counted, with the preparation of their data
  std::vector<double> bubbles;     ///< of the same
  std::int64_t tokens_per_step = 0;
  std::vector<Bytes> peak_bytes;  ///< per rank, as the allocator counts
  Bytes peak_resident;            ///< of the process, without the products that are timed alone
  double model_flops = 0;         ///< of a step; see model_flops()
  StepResult recorded;            ///< the step that recorded its kernels
  std::vector<Breakdown> breakdown;
  std::optional<GemmReplay> gemm;  ///< its weight products alone
};

/// Floating-point operations of a training step: 3 * (2 * elements of the weight matrices * tokens + 4 * layers * heads *
/// head size * visible pairs of query and key). The token table counts as the head's matrix alone; nothing that is
/// computed again counts.
double model_flops(const ModelConfig& config, std::int64_t sequences, std::int64_t tokens);

/// The micro-batches of step `step`: id i of the run is random_bits(seed, i) modulo the vocabulary (data/random.h), in rows
/// of tokens + 1 ids, whose first are the tokens and whose last are the targets.
std::vector<Microbatch> random_microbatches(const ModelConfig& config, const StepBenchOptions& options,
                                            int num_microbatches, std::int64_t step);

/// Runs warm-up steps, one that records its kernels, and those that are counted; behind each of these the products alone.
///
/// \param initial  weights by name; empty = drawn from the seed
/// \errors those of the engine
Result<StepBench> bench_step(const VerifiedProgram& program, const ModelConfig& config,
                             const std::map<std::string, ParameterState>& initial, const StepBenchOptions& options);

}  // namespace plait::bench
