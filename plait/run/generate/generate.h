#pragma once

#include "plait/base/result.h"
#include "plait/run/data/tokenizer.h"
#include "plait/run/model/config.h"
#include "plait/run/model/parameters.h"

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace plait {

struct GenerateOptions {
  std::int64_t max_new_tokens = 200;
  double temperature = 0;  ///< 0: greedy
  std::int64_t top_k = 0;  ///< draw among the k most likely; 0: among all
  std::uint64_t seed = 0;  ///< token i of a run is drawn from (seed, i)
};

/// All parameters of a model on one rank, filled from whole tensors by name.
/// \errors kIo "checkpoint.missing_tensor"
Result<ParameterSet> load_parameters(const ModelConfig& config, const std::map<std::string, at::Tensor>& tensors,
                                     ComputeType type);

/// Continues a prompt, one token at a time, with the keys and values of all earlier tokens kept.
///
/// \param on_token  called with each new token as it is made
/// \returns         the new tokens
/// \errors          kInvalidArgument "generate.empty_prompt", "generate.positions" (prompt and new tokens exceed the model's
///                  positions), "generate.temperature"; kIo "data.vocabulary"
Result<std::vector<TokenId>> generate(const ModelConfig& config, ParameterSet& parameters,
                                      std::span<const TokenId> prompt, const GenerateOptions& options,
                                      const std::function<void(TokenId)>& on_token = {});

/// The next token by the rule of the options: the most likely one (the lowest id among equals), or a draw.
/// \param uniform  in [0, 1)
TokenId choose_token(std::span<const double> logits, const GenerateOptions& options, double uniform);

}  // namespace plait
