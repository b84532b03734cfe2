#include "plait/run/data/sampler.h"

#include "plait/base/check.h"
#include "plait/run/data/random.h"

#include <numeric>
#include <utility>

namespace plait {

std::vector<std::uint32_t> shuffled_rows(std::uint32_t n, std::uint64_t seed, std::uint64_t epoch) {
  const std::uint64_t key = random_bits(random_bits(seed, 0), epoch);
  std::vector<std::uint32_t> rows(n);
  std::iota(rows.begin(), rows.end(), 0U);
  for (std::uint32_t i = n; i > 1; --i) {
    // The high 32 bits scaled to [0, i): the bias is below n / 2^32, far under what a shuffle needs.
    const std::uint64_t j = ((random_bits(key, i) >> 32U) * i) >> 32U;
    std::swap(rows[i - 1], rows[j]);
  }
  return rows;
}

Sampler::Sampler(std::int64_t num_rows, std::uint64_t seed, RowOrder order)
    : num_rows_(num_rows), seed_(seed), order_(order) {
  PLAIT_CHECK(num_rows > 0 && num_rows <= 0xffffffffLL, "{} rows", num_rows);
}

std::int64_t Sampler::row_at(std::int64_t position) {
  const std::int64_t within = position % num_rows_;
  if (order_ == RowOrder::kAsIs) return within;
  if (const std::int64_t epoch = epoch_of(position); epoch != cached_epoch_) {
    permutation_ = shuffled_rows(static_cast<std::uint32_t>(num_rows_), seed_, static_cast<std::uint64_t>(epoch));
    cached_epoch_ = epoch;
  }
  return permutation_[static_cast<std::size_t>(within)];
}

}  // namespace plait
