#pragma once

#include "plait/base/result.h"
#include "plait/run/data/sampler.h"
#include "plait/run/data/token_rows.h"
#include "plait/run/engine/engine.h"
#include "plait/run/train/breakdown.h"
#include "plait/run/train/checkpoint.h"
#include "plait/run/train/compare.h"
#include "plait/run/train/lr_schedule.h"
#include "plait/run/train/metrics.h"
#include "plait/verify/verify.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace plait {

enum class StartFrom : std::uint8_t { kScratch, kNewestCheckpoint };

/// What happens when the loss or a gradient of a step is NaN or infinity.
enum class OnNan : std::uint8_t {
  kStop,      ///< the run ends with an error
  kSkip,      ///< no update is made; goes on with the rows behind those of the step
  kRollback,  ///< goes back to the newest checkpoint, or the beginning, and on with the rows behind those of the step
};
std::string_view to_string(OnNan choice);

struct TrainOptions {
  std::filesystem::path out;  ///< the run folder; made when everything else is known to be good
  StartFrom start = StartFrom::kScratch;
  std::int64_t steps = 1;            ///< updates in all, those before a resume included
  std::int64_t microbatch_size = 1;  ///< rows of a micro-batch
  LrSchedule lr;
  std::uint64_t seed = 0;  ///< of the initial weights and the order of the rows
  RowOrder order = RowOrder::kShuffled;
  std::int64_t eval_every = 0;        ///< steps between evaluations; 0: only at the end
  std::int64_t checkpoint_every = 0;  ///< steps between checkpoints; 0: only at the end
  CheckpointOptions checkpoint;
  OnNan on_nan = OnNan::kStop;
  EngineOptions engine;
  std::string links = "none";       ///< the engine's emulated ones in words, which all processes must have alike
  std::string tokenizer = "bytes";  ///< for state.json
  /// A step that records its kernels.
  struct Profile {
    std::filesystem::path file;  ///< gets its trace; empty: profile.json in the run folder
    std::int64_t step = 0;       ///< counted as in the metrics; 0: the second of this call, or its only one
  };
  std::optional<Profile> profile;
};

/// What a run works on.
struct TrainJob {
  ModelConfig model;
  VerifiedProgram program;
  /// Its forwards alone, for evaluation on the same ranks; without it an evaluation runs on one rank, on a copy of the
  /// weights.
  std::optional<VerifiedProgram> forward;
  /// Runs a few steps beside the run's own at the end, for the report; as many micro-batches as the run's.
  std::optional<VerifiedProgram> other;
  TokenRows rows;
  Split split;
  /// Initial weights by name; empty = drawn from the seed.
  std::map<std::string, ParameterState> initial;
};

/// What a run says while it goes. Nothing in here may throw.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual void on_start(std::int64_t first_step, std::int64_t last_step) = 0;
  virtual void on_step(const StepMetrics& metrics) = 0;
  virtual void on_checkpoint(const std::filesystem::path& checkpoint) = 0;
  virtual void on_note(const std::string& note) = 0;
};

struct TrainSummary {
  std::int64_t steps_done = 0;  ///< in all
  std::int64_t steps_now = 0;   ///< by this call
  bool interrupted = false;
  std::optional<double> train_loss;  ///< of the last step
  std::optional<double> val_loss;
  double tokens_per_s = 0;              ///< over this call's steps, without evaluation and checkpoints
  std::optional<StepResult> last_step;  ///< with its trace
  std::filesystem::path checkpoint;
  /// Of the step that recorded its kernels.
  struct Profiled {
    std::filesystem::path file;
    std::int64_t step = 0;
    std::vector<Breakdown> ranks;
  };
  std::optional<Profiled> profile;
  std::optional<Comparison> comparison;  ///< with the job's other program, unless the run was interrupted
};

/// Trains, and leaves in the run folder: program.plait, metrics.jsonl, checkpoints/, trace.json of the last step, and of
/// the one that recorded its kernels.
/// `stop_requested` is asked between steps; when it says yes a checkpoint is written and the run ends.
///
/// With several processes (EngineOptions::processes) all call this, with the same job, and one that says yes stops all.
/// Process 0 alone writes; a resumed run reads its checkpoint on all.
///
/// \errors kInvalidArgument and kIo before anything is written, where the inputs do not fit together; kIo "train.diverged"
///         at a loss or gradient that is not finite, where OnNan says so, or at ten in a row; kIo at a full disk; the engine's;
///         kInvalidArgument "train.processes_differ", on all processes, if they were given different things. The newest checkpoint stays intact.
Result<TrainSummary> train(const TrainJob& job, const TrainOptions& options, TrainObserver& observer,
                           const std::function<bool()>& stop_requested);

}  // namespace plait
