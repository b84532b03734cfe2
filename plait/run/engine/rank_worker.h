#pragma once

#include "plait/base/result.h"
#include "plait/ir/program.h"
#include "plait/run/engine/binding.h"
#include "plait/run/engine/engine.h"
#include "plait/run/engine/late_totals.h"
#include "plait/run/engine/memory.h"
#include "plait/run/engine/optimizer.h"
#include "plait/run/engine/rank_device.h"
#include "plait/run/engine/rank_group.h"
#include "plait/run/engine/stage_kernels.h"
#include "plait/run/engine/transport.h"
#include "plait/run/engine/wait_state.h"
#include "plait/run/model/kernels/timing.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace plait {

class ProcessGroup;

/// What is the same for all ranks while one program runs once.
struct StepContext {
  const Program* program = nullptr;
  const BoundProgram* bound = nullptr;
  Transport* transport = nullptr;
  std::vector<SliceData> data;  ///< micro-batch x slices + slice
  double learning_rate = 0;
  std::optional<double> clip;
  Clock::time_point start;
  Clock::duration timeout{};
  Recording recording = Recording::kOff;
  WaitTable* waits = nullptr;
  ProcessGroup* processes = nullptr;  ///< null: this process runs all ranks
};

/// Storage of one rank for one bound program, kept between steps.
struct RankRun {
  RankRun(const BoundRow& bound_row, std::size_t num_data, std::int64_t num_parameters, const RankDevice& device = {});

  const BoundRow* row;
  std::vector<SliceData> data;     ///< of the step, on the rank's device; empty where that is the host
  std::optional<LateTotals> late;  ///< of ranks whose losses and norms are read at the end of the step
  std::vector<Payload> payloads;
  std::vector<Stash> stashes;
  std::vector<WeightStash> weight_stashes;
  std::vector<KvCache> caches;
  std::vector<TraceEvent> trace;
  std::vector<double> losses;            ///< per slice of data; 0 where another rank has the head
  at::Tensor squares;                    ///< [num parameters] fp64: square sums of the gradients that are counted here
  std::vector<std::int64_t> not_finite;  ///< places in the norm of gradients counted here that are not finite
  double grad_norm = 0;
  Bytes moved;
  int live_stashes = 0;
  int peak_stashes = 0;
};

/// One rank: its parameters, kernels and optimizer, and the interpreter of its row. All calls on the rank's own thread,
/// or while that rests.
class RankWorker {
 public:
  /// \param visited          stages that have ops here, wherever their homes are
  /// \param parameter_order  all names of the model in the order in which norms are summed
  RankWorker(RankId rank, const Layout& layout, const std::vector<StageId>& visited, const ModelConfig& config,
             const EngineOptions& options, const KernelFactory& kernels,
             const std::vector<std::string>& parameter_order, const RankDevice& device = {});

  /// Runs the rank's row once.
  /// \errors kTransport: an op failed, or what arrived is not what was expected; kTimeout; kInterrupted: another rank failed
  Result<> run(RankRun& run, const StepContext& context);

  void begin_training_step();
  /// The norm of this step is not finite: nothing is updated. Every rank finds that by itself, in the same bits.
  void refuse_update();

  [[nodiscard]] ParameterSet& parameters() { return parameters_; }
  [[nodiscard]] const ParameterSet& parameters() const { return parameters_; }
  [[nodiscard]] RankOptimizer* optimizer() { return optimizer_ ? &*optimizer_ : nullptr; }
  [[nodiscard]] const RankOptimizer* optimizer() const { return optimizer_ ? &*optimizer_ : nullptr; }
  /// What this rank keeps, whole or a shard, and no rank before it: over all ranks every element of the model once.
  [[nodiscard]] std::vector<const Parameter*> counted() const;
  [[nodiscard]] MemoryAccount& account() { return account_; }
  /// Highest bytes so far: the rank's own on the host, those of its whole device elsewhere.
  [[nodiscard]] Bytes peak_bytes() const { return device_.is_host() ? account_.peak() : device_.peak_bytes(); }
  /// Where kernels write down their times, if they do in this step; begun anew.
  KernelLog* begin_log(const StepContext& context);
  [[nodiscard]] const KernelLog& log() const { return log_; }
  /// Work of all kernels since the last call.
  KernelCounts take_counts();
  /// What gradients were multiplied with in the last step.
  [[nodiscard]] double clip_factor() const { return clip_factor_; }

 private:
  friend class RowRunner;
  RankId rank_;
  RankDevice device_;
  MemoryAccount& account_;
  ParameterSet parameters_;
  std::vector<std::unique_ptr<StageKernels>> kernels_;  ///< per stage; null where it never runs here
  KernelCounts taken_counts_;
  KernelLog log_;
  std::vector<RankGroup> groups_;
  std::optional<RankOptimizer> optimizer_;
  double clip_factor_ = 1;
  bool refuses_update_ = false;
};

/// Where bytes are charged that were sent and not yet received.
MemoryAccount& in_flight_account();

}  // namespace plait
