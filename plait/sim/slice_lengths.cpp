#include "plait/sim/slice_lengths.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace plait {
namespace {

/// Length of the slice that ends at `prefix` and costs `target`: the smaller root of
/// per_pair/2 l^2 - (per_token + per_pair prefix) l + target = 0, in the form that stays exact when per_pair is small.
double length_of(double target, double prefix, const SliceCost& cost) {
  const double slope = cost.per_token + cost.per_pair * prefix;
  return 2 * target / (slope + std::sqrt(slope * slope - 2 * cost.per_pair * target));
}

}  // namespace

SliceCost slice_cost(const SliceModel& model) {
  const auto layers = static_cast<double>(model.layers);
  const auto hidden = static_cast<double>(model.hidden);
  const auto heads = static_cast<double>(model.heads);
  return SliceCost{.per_token = layers * (8 * hidden * heads * model.head_size + 4 * hidden * model.mlp) +
                                2 * hidden * model.vocabulary,
                   .per_pair = layers * (4.0 * model.head_size + 3) * heads};
}

std::vector<double> balanced_shares(double length, int num_slices, const SliceCost& cost) {
  const double target = cost.of(length, length) / num_slices;
  std::vector<double> shares;  // last slice first
  double prefix = length;
  for (int slice = num_slices - 1; slice > 0; --slice) {
    shares.push_back(length_of(target, prefix, cost));
    prefix -= shares.back();
  }
  shares.push_back(prefix);
  std::reverse(shares.begin(), shares.end());
  return shares;
}

Result<std::vector<int>> balanced_slice_lengths(int num_tokens, int num_slices, const SliceCost& cost, int multiple) {
  if (num_slices < 1 || multiple < 1)
    return make_error(ErrorCode::kInvalidArgument, "slices.size",
                      "{} slices in multiples of {}; both must be at least 1", num_slices, multiple);
  const double target = cost.of(num_tokens, num_tokens) / num_slices;
  std::vector<int> lengths;  // last slice first
  int prefix = num_tokens;
  for (int slice = num_slices - 1; slice > 0; --slice) {
    lengths.push_back(static_cast<int>(length_of(target, prefix, cost)) / multiple * multiple);
    prefix -= lengths.back();
  }
  lengths.push_back(prefix);
  std::reverse(lengths.begin(), lengths.end());
  for (const int length : lengths) {
    if (length < 1)
      return make_error(
          ErrorCode::kInvalidArgument, "slices.too_many",
          "{} tokens in multiples of {} do not make {} slices of equal cost; use fewer slices or longer sequences",
          num_tokens, multiple, num_slices);
  }
  return lengths;
}

}  // namespace plait
