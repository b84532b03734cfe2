#pragma once

#include "plait/base/ids.h"
#include "plait/base/result.h"
#include "plait/ir/program.h"
#include "plait/run/engine/process_group.h"
#include "plait/run/engine/rank_device.h"
#include "plait/run/engine/stage_kernels.h"
#include "plait/run/engine/transport.h"
#include "plait/run/model/config.h"
#include "plait/run/model/kernels/timing.h"
#include "plait/run/model/parameters.h"
#include "plait/run/model/stage_module.h"
#include "plait/verify/verify.h"

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace plait {

enum class OptimizerKind : std::uint8_t { kAdamW, kSgd };
enum class DecayRule : std::uint8_t { kMatricesOnly, kAll };  ///< which tensors weight decay applies to

struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  DecayRule decay = DecayRule::kMatricesOnly;
  std::optional<double> clip = 1.0;  ///< global norm; none = no clipping
};

struct EngineOptions {
  ComputeType type = ComputeType::kFloat32;
  OptimizerOptions optimizer;
  Placement placement;
  double timeout_seconds = 60;  ///< a peer silent for longer ends the step
  /// Tokens of each slice, where the program cuts sequences; empty = equal, and one more for the first ones.
  std::vector<std::int64_t> slice_lengths;
  /// The token that ends a document: attention does not look beyond it, positions start anew behind it, and what stands
  /// there is no target. None: a row is one document. Not for programs that cut sequences.
  std::optional<std::int64_t> document_end;
  TransportWrapper
      wrap_transport;  ///< puts an emulated link or a test's fault in front of the transport; none = as it is
  /// The processes that run the program's ranks together, each its share; none: this process runs all. All make the same
  /// calls with the same arguments.
  std::shared_ptr<ProcessGroup> processes;
  StageOptions stage;     ///< chunks of the model's own kernels
  KernelFactory kernels;  ///< none = the model's own; benchmarks and tests bring others
};

/// What of a step is written down beside its instructions.
enum class Recording : std::uint8_t {
  kOff,
  kKernels,  ///< each kernel call and each pass through a part
};

/// The data of one micro-batch: rows of equal length.
struct Microbatch {
  at::Tensor tokens;   ///< [B, T] int64
  at::Tensor targets;  ///< [B, T] int64, kIgnoredTarget where masked
};

/// One executed instruction of one rank.
struct TraceEvent {
  int position = 0;  ///< index into the rank's row of the program
  Nanos start;       ///< since the start of the step; of an op: when all it reads had arrived
  Nanos end;
  Bytes moved;  ///< bytes handed over, for sends and collectives
};

/// With several processes, what is said per rank or over all ranks is complete on process 0 and missing elsewhere.
struct StepResult {
  double loss = 0;       ///< mean over the valid tokens of the step, before the update
  double grad_norm = 0;  ///< global norm before clipping
  /// What was NaN or infinity, and on which rank: the loss, or the gradients of which parameters. Empty: nothing was. All
  /// processes know it.
  std::string not_finite;
  /// Were weights and moments stepped? Not where something was not finite, unless the program steps before its norm is known.
  bool updated = true;
  std::int64_t valid_tokens = 0;
  Nanos duration;
  std::vector<std::vector<TraceEvent>> trace;  ///< per rank, in row order
  std::vector<Bytes> peak_bytes;             ///< per rank, highest since the engine was made; on a GPU that of the GPU
  std::vector<Bytes> bytes_moved;            ///< per rank, sent in this step
  std::map<ValueKind, Bytes> moved_by_kind;  ///< the same over all ranks, for each kind of value that moved
  std::vector<KernelCounts> kernels;         ///< per rank, work of this step
  std::vector<int> peak_stashes;  ///< per rank: most (stage, micro-batch, slice) between F and BW or W at once
  /// Per rank, in the order of their starts; empty unless they were asked for.
  std::vector<std::vector<KernelEvent>> kernel_events;
};

/// Outcome of one forward-only pass.
struct EvalResult {
  double loss_sum = 0;  ///< summed cross entropy over the valid tokens
  std::int64_t valid_tokens = 0;
  Nanos duration;
  friend bool operator==(const EvalResult&, const EvalResult&) = default;
};

/// State of one parameter that a checkpoint holds, keyed by Hugging Face name.
struct ParameterState {
  at::Tensor master;
  std::map<std::string, at::Tensor> moments;  ///< "exp_avg", "exp_avg_sq" for AdamW; empty for SGD
};

/// What a rank holds of a tensor: all of it, or the elements from `begin` on.
struct HeldPart {
  std::string name;
  std::string what;                 ///< a moment's name; empty for weights and gradients
  std::vector<std::int64_t> shape;  ///< of the whole
  std::int64_t begin = 0;
  at::Tensor part;
};

/// By rank, empty where another process runs it: what each writes into a checkpoint. Every element of the model's weights
/// and moments is in one rank's share.
using StateShares = std::vector<std::vector<HeldPart>>;

/// Executes a verified program with one thread per rank, in one process or several. Interprets instructions only: no
/// schedule is known here.
///
/// With several processes every call is a call of all; what is returned by name is complete on process 0, empty elsewhere.
class Engine {
 public:
  static Result<std::unique_ptr<Engine>> create(const VerifiedProgram& program, const ModelConfig& config,
                                                const EngineOptions& options);
  virtual ~Engine() = default;

  [[nodiscard]] virtual const Program& program() const = 0;
  /// What users should know of how the ranks are connected; empty: nothing.
  [[nodiscard]] virtual std::string note() const = 0;

  /// Same initial weights for every layout.
  virtual void initialize(std::uint64_t seed) = 0;
  /// Sets weights (and moments) by name; every name of the model must be there, none else.
  virtual Result<> load(const std::map<std::string, ParameterState>& state, std::int64_t steps_done) = 0;
  /// Copies of everything, whole tensors by name, on the host.
  /// \errors those of the process group
  [[nodiscard]] virtual Result<std::map<std::string, ParameterState>> save() const = 0;
  /// Copies of the shares of this process's ranks, each by its own thread. Nothing travels. The tensors of an earlier call
  /// are used again.
  virtual void copy_shares(StateShares& shares) const = 0;

  /// One training step over exactly num_microbatches micro-batches. If the loss or a gradient is not finite on any rank, no
  /// rank updates anything: the reduction of the norm tells all of them.
  /// \errors kTransport, kTimeout with rank, op, peer and waited time; the engine is dead afterwards
  virtual Result<StepResult> train_step(const std::vector<Microbatch>& microbatches, double learning_rate) = 0;
  /// What the steps from now on write down.
  virtual void record(Recording recording) = 0;
  /// One forward-only pass of `forward` (Mode::kForward) on the engine's weights, which stay as they are. Its stages, their
  /// homes and its ranks are those of the engine's own program; its number of micro-batches is its own.
  /// \errors as train_step; kInvalidSchedule if the layouts do not fit
  virtual Result<EvalResult> eval_step(const VerifiedProgram& forward, const std::vector<Microbatch>& microbatches) = 0;
  /// Gradients of the last train_step by name, summed over uses and before clipping (where clipping scaled them, the
  /// scale is divided out again: exact to one rounding). Valid until the next step.
  [[nodiscard]] virtual Result<std::map<std::string, at::Tensor>> last_gradients() const = 0;
  /// Tensors of which two ranks hold copies that differ in some bit: always none, unless something is broken.
  [[nodiscard]] virtual Result<std::vector<std::string>> diverged_copies() const = 0;
};

}  // namespace plait
