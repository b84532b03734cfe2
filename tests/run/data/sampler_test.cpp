#include "plait/run/data/sampler.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <vector>

namespace plait {
namespace {

std::vector<std::int64_t> rows_from(Sampler& sampler, std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> rows;
  for (std::int64_t p = first; p < first + count; ++p) rows.push_back(sampler.row_at(p));
  return rows;
}

TEST(Sampler, EveryEpochVisitsEveryRowOnce) {
  constexpr std::uint32_t kRows = 1000;
  std::vector<std::uint32_t> expected(kRows);
  std::iota(expected.begin(), expected.end(), 0U);
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::uint32_t> result = shuffled_rows(kRows, 7, epoch);
    EXPECT_NE(result, expected);
    std::sort(result.begin(), result.end());
    EXPECT_EQ(result, expected);
  }
}

TEST(Sampler, SeedAndEpochChangeTheOrder) {
  EXPECT_EQ(shuffled_rows(100, 1, 0), shuffled_rows(100, 1, 0));
  EXPECT_NE(shuffled_rows(100, 1, 0), shuffled_rows(100, 1, 1));
  EXPECT_NE(shuffled_rows(100, 1, 0), shuffled_rows(100, 2, 0));
}

// All six orders of three rows, each within four standard deviations of a sixth of 6000 draws.
TEST(Sampler, OrdersAreEquallyLikely) {
  std::array<int, 6> seen{};
  for (std::uint64_t seed = 0; seed < 6000; ++seed) {
    const std::vector<std::uint32_t> rows = shuffled_rows(3, seed, 0);
    seen.at(rows[0] * 2 + (rows[1] > rows[2] ? 1 : 0))++;
  }
  for (const int count : seen) EXPECT_NEAR(count, 1000, 116);
}

TEST(Sampler, AsIsWrapsAtTheEnd) {
  Sampler sampler(5, 0, RowOrder::kAsIs);
  EXPECT_THAT(rows_from(sampler, 3, 9), testing::ElementsAre(3, 4, 0, 1, 2, 3, 4, 0, 1));
}

TEST(Sampler, ResumingAtAPositionContinuesTheOrder) {
  Sampler undisturbed(7, 3, RowOrder::kShuffled);
  const std::vector<std::int64_t> all = rows_from(undisturbed, 0, 21);
  for (const std::int64_t position : {1, 6, 7, 13}) {
    Sampler resumed(7, 3, RowOrder::kShuffled);
    EXPECT_EQ(rows_from(resumed, position, 21 - position),
              std::vector<std::int64_t>(all.begin() + position, all.end()));
  }
}

}  // namespace
}  // namespace plait
