#pragma once

#include "plait/base/result.h"

#include <vector>

namespace plait {

/// What a slice of `l` tokens costs that ends `prefix` tokens into the sequence (its own included):
///
///     per_token l + per_pair (l prefix - l^2 / 2)
///
/// The second term is causal attention: every token meets those before it.
struct SliceCost {
  double per_token = 1;
  double per_pair = 0;
  [[nodiscard]] double of(double length, double prefix) const {
    return per_token * length + per_pair * (length * prefix - length * length / 2);
  }
};

/// FLOPs of a transformer with a two-matrix MLP: projections 8 H N D and MLP 4 H F per token and layer, LM head 2 H V per
/// token, attention (4 D + 3) N per pair of tokens and layer. H hidden size, N heads, D head size, F width of the MLP,
/// V vocabulary.
struct SliceModel {
  int layers = 1;
  int hidden = 1;
  int heads = 1;
  int head_size = 1;
  int mlp = 1;
  int vocabulary = 0;
};
SliceCost slice_cost(const SliceModel& model);

/// Lengths of k slices of equal cost, first slice first, solved from the end of the sequence; they sum up to `length`.
/// \source Sun et al. 2024, arXiv:2406.03488, sec. 3.2
std::vector<double> balanced_shares(double length, int num_slices, const SliceCost& cost);

/// The same in whole tokens: every length but the first is rounded down to a multiple of `multiple` (the tensor-parallel
/// degree under sequence parallelism), and the first takes the rest.
/// \errors kInvalidArgument "slices.too_many" if a slice would be empty
Result<std::vector<int>> balanced_slice_lengths(int num_tokens, int num_slices, const SliceCost& cost,
                                                int multiple = 1);

}  // namespace plait
