#pragma once

#include "plait/base/result.h"
#include "plait/run/engine/engine.h"
#include "plait/run/engine/rank_worker.h"

#include <cstdint>
#include <map>
#include <string>

/// Moves parameters and moments between the ranks and whole tensors by name.
namespace plait {

/// \errors kInvalidArgument "engine.state": names that are missing or not of the model, wrong shapes, moments of one kind only
Result<> check_state(const std::map<std::string, ParameterState>& state, const ModelConfig& config,
                     OptimizerKind optimizer);

/// Elements of the tensor of which a rank holds all or a shard.
std::int64_t whole_size(const Parameter& parameter);

/// Copies what the rank holds, whole or a shard; moments that are not given become zero. `state` was checked.
void load_rank(RankWorker& worker, const std::map<std::string, ParameterState>& state, std::int64_t steps_done);

/// Adds copies of what no earlier rank held: whole tensors, or this rank's shards of them.
void save_rank(const RankWorker& worker, std::map<std::string, ParameterState>& state);
void save_gradients(const RankWorker& worker, std::map<std::string, at::Tensor>& gradients);

}  // namespace plait
