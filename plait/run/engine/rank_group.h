#pragma once

#include "plait/ir/program.h"
#include "plait/run/engine/transport.h"
#include "plait/run/model/config.h"
#include "plait/run/model/parameters.h"

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace plait {

/// How a rank holds the tensors of the allocation that begins with `first`; none = not at all. Homes keep the whole, or a
/// shard of it; where stages run that use the group of the tensors, their weights visit.
///
/// \param runs_here  per stage: it has ops or a home on the rank
std::optional<Holding> holding_on(RankId rank, const Layout& layout, const ModelConfig& config,
                                  const std::vector<bool>& runs_here, const ParameterSpec& first);

/// A parameter group on one rank: what it keeps of it between its uses, the weights that visit, the partial gradient.
/// Lists of tensors have one per storage, in the order of the specs, undefined where the rank has no part in it.
class RankGroup {
 public:
  /// \param parameter_order  all names of the model in the order in which norms are summed
  RankGroup(RankId rank, const Layout& layout, GroupId id, const ModelConfig& config, ParameterSet& set,
            const std::vector<std::string>& parameter_order);

  [[nodiscard]] const Share& share() const { return share_; }
  [[nodiscard]] bool is_whole() const { return share_.is_whole(); }
  /// What the rank keeps and steps.
  [[nodiscard]] const std::vector<Parameter*>& parameters() const { return parameters_; }
  /// (Place in the norm, parameter) of what this rank counts.
  [[nodiscard]] const std::vector<std::pair<std::int64_t, Parameter*>>& counted() const { return counted_; }

  // Weights.
  [[nodiscard]] std::vector<at::Tensor> weights() const;
  void bind_weights(const std::vector<at::Tensor>& weights);
  /// Buffers for weights that come; with this rank's shard in its place if it keeps one.
  void begin_gather();
  void drop_weights();

  // The partial gradient. A group that is whole always has one, in place; others while something contributed.
  /// Call before a weight gradient is added: there is something to add to.
  void begin_contribution();
  /// A parameter with several uses has one accumulator for each; added once, in the order of the uses.
  void fold();
  [[nodiscard]] std::vector<at::Tensor> partial() const;
  /// Folds and gives it away; copies and zeroes where it is in place.
  std::vector<at::Tensor> take_partial();
  /// Adds to it, or takes over where there is none.
  void add_partial(std::vector<at::Tensor>&& partial);
  void begin_step();

  /// Rows of storages as tensors of the model: what is cut into shards one by one.
  [[nodiscard]] std::vector<at::Tensor> as_parameters(const std::vector<at::Tensor>& storages) const;
  /// Adds this rank's shards of a sum, as as_parameters cuts it, to their gradients.
  void add_shards(const std::vector<at::Tensor>& sum);

  /// Bytes of the weights in the compute type, and of a partial gradient, as the allocator counts them.
  [[nodiscard]] std::int64_t weight_bytes() const { return weight_bytes_; }
  [[nodiscard]] std::int64_t gradient_bytes() const { return gradient_bytes_; }
  /// What is wrong with tensors that should be the group's weights or partial gradient; empty if nothing is.
  [[nodiscard]] std::string check(const Message& message, Value value) const;

  /// Reductions under way that leave a result here, in these tensors.
  struct Reduction {
    CollectiveId collective;
    std::vector<at::Tensor> result;
  };
  std::vector<Reduction> reductions;
  /// Broadcasts of resident weights: to be through before these change.
  std::vector<CollectiveId> lent;

 private:
  Share share_;
  at::Device device_;
  at::ScalarType compute_type_;
  at::ScalarType master_type_;
  std::vector<ParameterStorage*> storages_;
  std::vector<Parameter*> parameters_;
  std::vector<std::pair<std::int64_t, Parameter*>> counted_;
  std::int64_t weight_bytes_ = 0;
  std::int64_t gradient_bytes_ = 0;
  bool folded_ = false;  ///< accumulators of all uses are added into the first
};

}  // namespace plait
