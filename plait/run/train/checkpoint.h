#pragma once

#include "plait/base/result.h"
#include "plait/run/engine/engine.h"
#include "plait/run/model/config.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace plait {

/// Which rows a run learns from; a resumed run must see the same ones.
struct DataIdentity {
  std::int64_t num_rows = 0;  ///< training rows
  std::int64_t row_size = 0;
  std::uint64_t crc = 0;  ///< crc64 of the training tokens
  friend bool operator==(const DataIdentity&, const DataIdentity&) = default;
};

/// Where a run stands. Nothing in it depends on the layout: samples are counted, not steps of some size, and there is no
/// generator state, since everything random is keyed by the seed.
struct RunState {
  std::int64_t step = 0;     ///< updates done
  std::int64_t samples = 0;  ///< rows consumed so far
  std::int64_t epoch = 0;    ///< samples / rows, for information
  std::uint64_t seed = 0;
  bool shuffled = true;
  DataIdentity data;
  std::string optimizer;  ///< "adamw", "sgd"
  std::string dtype;      ///< "fp32", "bf16", "fp64"
  std::string tokenizer;  ///< "bytes", "sentencepiece", "ids"
  std::string schedule;   ///< for information only, as is ranks
  int ranks = 1;
  friend bool operator==(const RunState&, const RunState&) = default;
};

struct Checkpoint {
  RunState state;
  ModelConfig config;
  std::map<std::string, ParameterState> parameters;
};

enum class CheckpointWriting : std::uint8_t {
  kAside,     ///< beside the next steps, from a copy of the state
  kInBetween  ///< the next step waits
};

struct CheckpointOptions {
  int keep = 2;  ///< newest ones to keep; 0 keeps all
  CheckpointWriting writing = CheckpointWriting::kAside;
  std::optional<std::filesystem::path> sentencepiece;  ///< copied along as tokenizer.model
};

/// Writes RUN/checkpoints/step-000100 with a CheckpointWriter: config.json, model.safetensors (a Hugging Face directory), optimizer.safetensors
/// with the moments as NAME.exp_avg and so on, state.json, and MANIFEST.json with the size and CRC-64 of each and one of its own. The folder
/// grows under a temporary name, every file and folder is fsynced, then it is renamed: it is there whole or not at all.
///
/// \returns its path
/// \errors  kIo "checkpoint.write": disk full and the like, nothing is left behind; "checkpoint.not_finite" names the tensor
Result<std::filesystem::path> write_checkpoint(const std::filesystem::path& run, const Checkpoint& checkpoint,
                                               const CheckpointOptions& options);

/// The newest checkpoint of a run that is intact.
struct FoundCheckpoint {
  std::filesystem::path path;            ///< empty: the run has none
  std::optional<Checkpoint> checkpoint;  ///< likewise
  std::string note;  ///< which newer ones were damaged, in what, and which one is used; empty: none was
};
/// Found by looking, not by a marker that could be wrong. What a killed run left under a temporary name is ignored.
/// \errors kIo "checkpoint.damaged" if there are checkpoints, but none is intact
Result<FoundCheckpoint> read_newest_checkpoint(const std::filesystem::path& run);

/// Removes what a killed run left in the middle of writing.
Result<> remove_temporaries(const std::filesystem::path& run);

/// \errors kIo "checkpoint.damaged": a file is missing, cut short or differs in any bit; "checkpoint.not_finite": a tensor holds NaN or infinity, with its
///         name; and whatever reading the model finds
Result<Checkpoint> read_checkpoint(const std::filesystem::path& checkpoint);

/// state.json of a checkpoint.
std::string run_state_json(const RunState& state);
Result<RunState> read_run_state(const std::filesystem::path& checkpoint);

/// "checkpoint.not_finite" if the tensor holds NaN or infinity; `where` heads the message.
Result<> check_finite(const at::Tensor& tensor, const std::string& name, const std::string& where);
/// "checkpoint.not_finite" with the name of the first tensor that holds NaN or infinity; `where` heads the message.
Result<> check_finite(const std::map<std::string, ParameterState>& parameters, const std::string& where);

/// Bytes that a checkpoint of this model takes on disk, to a few kilobytes.
std::uint64_t checkpoint_bytes(const ModelConfig& config, ComputeType type, OptimizerKind optimizer);

}  // namespace plait
