#pragma once

#include "plait/base/result.h"
#include "plait/sim/model_shape.h"

#include <string>
#include <string_view>

namespace plait {

/// What costs need of a model: the sizes in a Hugging Face config.json (Llama, Mistral, Qwen2, GPT-2). Keys that do not
/// matter here are ignored. `tokens` is the longest sequence, `batch` 1, the attention kernel flash, elements of 2 bytes.
///
/// \errors kIo "model.config": no JSON, a size that is missing or no positive whole number; kUnsupported "model.type"
Result<ModelShape> parse_model(std::string_view json);

/// The same from NAME|FILE|DIR: a model that comes with the program (data/models), a config.json, a folder that holds one,
/// or the folder of a run of `plait train`, whose newest checkpoint holds one.
///
/// \errors those of parse_model; "model.unknown"; kIo if nothing can be read there
Result<ModelShape> read_model(const std::string& where);

}  // namespace plait
