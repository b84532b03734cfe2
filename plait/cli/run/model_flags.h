#pragma once

#include "plait/base/result.h"
#include "plait/cli/run/flags.h"
#include "plait/ir/program.h"
#include "plait/run/model/config.h"

#include <cstdint>
#include <optional>
#include <string>

namespace plait::cli {

/// Sizes of a new model. Zero: derived, as the help says.
struct ModelFlags {
  std::string family = "llama";
  std::int64_t hidden = 128;
  std::int64_t heads = 4;
  std::int64_t kv_heads = 0;
  std::int64_t ffn = 0;
  std::int64_t vocab = 0;
  std::int64_t max_positions = 0;
  double rope_theta = 10000.0;
  void add_to(FlagSet& flags);
};

/// \param layers, tying  from the schedule's flags --layers and --head
/// \param vocab_size     of the tokenizer; unset where the source is ids, and then --vocab must be given
/// \param row_positions  positions that the rows need
/// \errors kInvalidArgument "model.flags"
Result<ModelConfig> make_model_config(const ModelFlags& model, int layers, HeadTying tying,
                                      std::optional<std::int64_t> vocab_size, std::int64_t row_positions);

/// The first model size flag on the line, or empty: they do not go with a model that is read.
std::string first_size_flag(const FlagSet& flags);

}  // namespace plait::cli
