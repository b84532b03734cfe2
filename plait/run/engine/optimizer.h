#pragma once

#include "plait/run/model/parameters.h"

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace plait {

struct OptimizerOptions;

/// First and second moments of one parameter; undefined for SGD.
struct Moments {
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
};

/// The optimizer state of one rank, and its step of one parameter group at a time. Lists of tensors are made once.
///
/// AdamW decouples weight decay; SGD has no momentum and adds the decay to the gradient. Both are torch's fused kernels.
/// \threads  of its rank only
class RankOptimizer {
 public:
  /// \param groups  per parameter group of the layout, its parameters on this rank
  RankOptimizer(const OptimizerOptions& options, const std::vector<std::vector<Parameter*>>& groups,
                at::Device device = at::kCPU);

  /// One more step has begun.
  void begin_step();
  /// The step that has begun updates nothing and does not count.
  void take_back_step();
  /// The same where `not_finite` ([1] fp32 on the rank's device) is 1.
  void take_back_step_if(const at::Tensor& not_finite);
  /// Updates masters from the first gradient accumulators, then the copies that kernels read.
  ///
  /// \param not_finite  where it is 1 nothing is updated; none = it is finite
  void step(std::size_t group, double learning_rate, const std::optional<at::Tensor>& not_finite = std::nullopt);

  /// Copies the group's masters and moments, until they are undone to or forgotten. What was copied before is replaced.
  void keep(std::size_t group);
  /// The group is to the bit what it was at the last keep; on a condition that lies on the device ([] bool) if one is given.
  void undo(std::size_t group, const std::optional<at::Tensor>& condition = std::nullopt);
  void forget(std::size_t group);

  void set_steps_done(std::int64_t steps);
  [[nodiscard]] Moments moments(const Parameter& parameter) const;
  void reset_moments();

 private:
  /// Parameters of one group with one rule of decay, as the fused kernels want them.
  struct Batch {
    double weight_decay = 0;
    std::vector<Parameter*> parameters;
    std::vector<at::Tensor> masters;
    std::vector<at::Tensor> grads;
    std::vector<at::Tensor> exp_avgs;
    std::vector<at::Tensor> exp_avg_sqs;
    std::vector<at::Tensor> steps;  ///< the same one-element tensor for all
    std::vector<at::Tensor> kept;   ///< of keep: masters, exp_avgs, exp_avg_sqs one behind the other; else none
    /// What a step changes, in that order.
    [[nodiscard]] std::vector<at::Tensor> state() const;
    void refresh_compute() const;
  };
  void step_batch(Batch& batch, double learning_rate, const std::optional<at::Tensor>& not_finite);

  const OptimizerOptions& options_;
  at::Tensor steps_done_;  ///< [1] fp32, as the fused kernel reads it
  std::vector<std::vector<Batch>> groups_;
};

/// Sum of squares in fp64, in an order that depends on nothing but the number of elements.
double square_sum(const at::Tensor& tensor);

}  // namespace plait
