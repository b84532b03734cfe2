#pragma once

#include "plait/base/result.h"
#include "plait/run/model/config.h"

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace plait {

/// Reads all weights of a model directory: model.safetensors, or the shards of model.safetensors.index.json. Keys are the
/// names of parameter_specs; values keep the type of the file.
///
/// GPT-2 files may lack the "transformer." prefix. Mask and rotary buffers of old files are ignored, and an lm_head.weight
/// beside a tied table if it is equal to it.
///
/// \errors kIo "weights.*": missing, unexpected or misshapen tensors (all of them named at once), NaN or infinity;
///         whatever SafetensorsFile finds
Result<std::map<std::string, at::Tensor>> read_model_weights(const std::filesystem::path& dir,
                                                             const ModelConfig& config);

/// config.json of a model directory whose tensors have this type.
std::string model_dir_config(const ModelConfig& config, at::ScalarType type);

struct ModelDirOptions {
  std::optional<at::ScalarType> type;                ///< of the tensors in the file; none: as they are
  std::uint64_t max_shard_bytes = 5'000'000'000ULL;  ///< transformers' default when it splits
};

/// Writes config.json and the weights, in shards with an index if one file would be larger than the limit. Everything is
/// written under temporary names first, then renamed; weights of an earlier save that would hide these are removed.
///
/// \param tensors  all of parameter_specs, by name
/// \errors kIo "io.write": nothing new is left behind
Result<> write_model_dir(const std::filesystem::path& dir, const ModelConfig& config,
                         const std::map<std::string, at::Tensor>& tensors, const ModelDirOptions& options = {});

}  // namespace plait
