#pragma once

#include <cstdint>
#include <vector>

namespace plait {

enum class RowOrder : std::uint8_t { kShuffled, kAsIs };

/// A permutation of [0, n): Fisher-Yates, drawn from a counter-based generator keyed by (seed, epoch).
std::vector<std::uint32_t> shuffled_rows(std::uint32_t n, std::uint64_t seed, std::uint64_t epoch);

/// Which row is the i-th sample of a run. Samples are counted over the whole run: sample p belongs to epoch p / rows,
/// and every epoch visits every row once. Nothing here knows ranks or micro-batches, so no layout changes the order.
class Sampler {
 public:
  Sampler(std::int64_t num_rows, std::uint64_t seed, RowOrder order);
  /// Row of sample `position`; positions may come in any order, ascending ones are cheap.
  std::int64_t row_at(std::int64_t position);
  [[nodiscard]] std::int64_t epoch_of(std::int64_t position) const { return position / num_rows_; }

 private:
  std::int64_t num_rows_;
  std::uint64_t seed_;
  RowOrder order_;
  std::int64_t cached_epoch_ = -1;
  std::vector<std::uint32_t> permutation_;  ///< of cached_epoch_
};

}  // namespace plait
