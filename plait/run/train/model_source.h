#pragma once

#include "plait/base/result.h"
#include "plait/run/engine/engine.h"
#include "plait/run/model/config.h"
#include "plait/run/train/checkpoint.h"

#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace plait {

/// A model that lies on disk.
struct ModelSource {
  std::filesystem::path path;  ///< where its config.json is
  ModelConfig config;
  std::map<std::string, ParameterState> parameters;  ///< weights alone
  std::optional<RunState> state;                     ///< of a checkpoint
  std::string note;                                  ///< about damaged checkpoints that were passed over; empty: none
};

/// Reads the newest checkpoint of a run folder, a checkpoint, or any Hugging Face model directory. Every weight is finite.
/// \errors those of read_checkpoint and of reading a model directory; kIo "model.missing"
Result<ModelSource> load_model(const std::filesystem::path& folder);

}  // namespace plait
