#include "tests/sim/simulated.h"
#include <gmock/gmock.h>

// Card of BPipe.
namespace plait::test {
namespace {

using ::testing::Each;
using ::testing::ElementsAreArray;
using ::testing::Le;

TEST(BPipe, MemoryStaysUnderTheBound) {
  for (const auto& [p, bound] : {std::pair{4, 3}, std::pair{8, 5}, std::pair{16, 9}}) {
    const ScheduleShape shape{.ranks = p, .microbatches = 2 * p};
    std::vector<double> raw;
    for (int x = 0; x < p; ++x) raw.push_back(p - x);
    EXPECT_THAT(simulate_schedule("1f1b", shape, "F=1,B=1,W=1").peaks(), ElementsAreArray(raw));
    for (int x = 0; x < p / 2; ++x)
      EXPECT_EQ(raw[static_cast<std::size_t>(x)] + raw[static_cast<std::size_t>(p - 1 - x)], p + 1);
    EXPECT_THAT(simulate_schedule("bpipe", shape, "F=1,B=1,W=1").peaks(), Each(Le(bound)));
  }
}

/// Stashes that each rank sends away and gets back: its evictions.
std::vector<int> evictions(const Program& program) {
  std::vector<int> all;
  for (std::size_t rank = 0; rank < program.rows.size() / 2; ++rank) {
    int count = 0;
    for (const Instr& instr : program.rows[rank])
      if (const Send* send = std::get_if<Send>(&instr); send != nullptr && send->value.kind() == ValueKind::kStash)
        ++count;
    all.push_back(count);
  }
  return all;
}

TEST(BPipe, EvictionsFollowTheClosedForm) {
  const auto count = [](int p, int m) {
    return evictions(simulate_schedule("bpipe", {.ranks = p, .microbatches = m}, "F=1,B=1,W=1").program);
  };
  EXPECT_THAT(count(4, 8), ElementsAreArray({2, 0}));
  EXPECT_THAT(count(8, 16), ElementsAreArray({6, 4, 3, 0}));
  EXPECT_THAT(count(8, 64), ElementsAreArray({27, 20, 12, 0}));
}

TEST(BPipe, AddsNothingToFreeTransfers) {
  for (const auto& [p, m] : {std::pair{4, 8}, std::pair{8, 16}})
    EXPECT_EQ(simulate_schedule("bpipe", {.ranks = p, .microbatches = m}, "F=1,B=1,W=1").makespan(), (m + p - 1) * 3);
}

// The estimator: time of B samples in micro-batches of x is proportional to (B + x (p - 1)) / MFU_stage(x), so one stage
// measured at two sizes predicts the whole run within 5 %, and a flat curve predicts a loss.
TEST(BPipe, EstimatorPredictsTheWholeRun) {
  for (const int p : {4, 8}) {
    for (const int samples : {64, 128}) {
      for (const auto& [steep, gains] : {std::pair{1.25, true}, std::pair{1.0, false}}) {
        // A stage takes 2 ticks a sample at size 1, and `steep` times less at size 2.
        const auto time_of = [&, s = samples](int size, const std::string& times) {
          return simulate_schedule(size == 1 ? "1f1b" : "bpipe", {.ranks = p, .microbatches = s / size}, times)
              .makespan();
        };
        const double one = time_of(1, "F=1,B=1,W=1");
        const double two = time_of(2, steep > 1 ? "F=1.6,B=1.6,W=1.6" : "F=2,B=2,W=2");
        const double estimate = (samples + 1.0 * (p - 1)) / (samples + 2.0 * (p - 1)) * steep;  // MFU(2) / MFU(1)
        EXPECT_NEAR(one / two / estimate, 1, 0.05) << p << ' ' << samples;
        EXPECT_EQ(one > two, gains);
        EXPECT_EQ(estimate > 1, gains);
      }
    }
  }
}

}  // namespace
}  // namespace plait::test
