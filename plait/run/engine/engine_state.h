#pragma once

#include "plait/base/result.h"
#include "plait/run/engine/engine.h"
#include "plait/run/engine/rank_worker.h"

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

/// Moves parameters and moments between the ranks and whole tensors by name.
namespace plait {

/// \errors kInvalidArgument "engine.state": names that are missing or not of the model, wrong shapes, moments of one kind only
Result<> check_state(const std::map<std::string, ParameterState>& state, const ModelConfig& config,
                     OptimizerKind optimizer);

/// Copies what the rank holds, whole or a shard; moments that are not given become zero. `state` was checked.
void load_rank(RankWorker& worker, const std::map<std::string, ParameterState>& state, std::int64_t steps_done);

/// Masters and moments; the tensors are the rank's own.
std::vector<HeldPart> held_state(const RankWorker& worker);
/// Gradients as they were before clipping.
std::vector<HeldPart> held_gradients(const RankWorker& worker);

/// Copies of what the rank writes into a checkpoint, into the tensors of `share` if it has some from a call before.
void copy_share(const RankWorker& worker, std::vector<HeldPart>& share);

std::string encode(const std::vector<HeldPart>& parts);
/// Adds the parts of one process to `parts`.
void decode(std::string_view bytes, std::vector<HeldPart>& parts);
/// Whole tensors by name, for processes that have none.
std::string encode(const std::map<std::string, ParameterState>& state);
std::map<std::string, ParameterState> decode_state(std::string_view bytes);

/// Whole tensors, as copies; of several copies of one, the first counts. Parts are in the order of the ranks.
std::map<std::string, ParameterState> merge_state(const std::vector<HeldPart>& parts);
std::map<std::string, at::Tensor> merge_gradients(const std::vector<HeldPart>& parts);
/// Names of weights of which two copies differ in some bit.
std::vector<std::string> diverged(const std::vector<HeldPart>& parts);

}  // namespace plait
