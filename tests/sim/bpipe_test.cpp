#include "tests/sim/simulated.h"
#include <fmt/format.h>
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

/// Only stashes take time, `transfer` ticks each; F = B = W = 10 ticks. Every edge weighs 1 byte, every stash 1000.
SimResult simulate_stash_transfers(int p, int m, Eviction eviction, std::int64_t transfer) {
  const auto schedule = build_schedule("bpipe", {.ranks = p, .microbatches = m, .eviction = eviction});
  const auto program = lower(*schedule);
  constexpr std::int64_t kStashBytes = 1000;
  CostModel costs = zero_costs(program->layout);
  for (int s = 0; s < p; ++s) {
    costs.op(OpKind::kForward, StageId{s}, SliceId{0}).ticks = 10;
    costs.op(OpKind::kBackward, StageId{s}, SliceId{0}).ticks = 20;
  }
  for (Bytes& bytes : costs.edge_bytes) bytes = Bytes{transfer == 0 ? 1 : 0};
  for (Bytes& bytes : costs.stash_bytes) bytes = Bytes{kStashBytes};
  if (transfer > 0) {
    const Link link{.latency_ticks = 0, .bytes_per_second = kStashBytes};
    costs.cluster = make_cluster(p, p / 2, link, link, transfer);  // a stash takes one second, which is so many ticks
    costs.cluster->outer_ports = p / 2;                            // partners meet on cards of their own
  }
  auto result = simulate(*program, costs);
  EXPECT_TRUE(result) << result.error().message;
  return *std::move(result);
}

TEST(BPipe, TrafficIsTwoStashesPerEviction) {
  const auto bytes = [](int p, int m) {
    return simulate_stash_transfers(p, m, Eviction::kLate, 0).transfers.bytes - 2 * (p - 1) * m;
  };
  EXPECT_EQ(bytes(4, 8), 2 * 2 * 1000);
  EXPECT_EQ(bytes(8, 16), 2 * (6 + 4 + 3) * 1000);
  EXPECT_EQ(bytes(8, 64), 2 * (27 + 20 + 12) * 1000);
}

TEST(BPipe, EarlyEvictionHidesWhatLateEvictionAdds) {
  for (const auto& [p, m] : {std::pair{4, 8}, std::pair{8, 16}, std::pair{8, 64}, std::pair{16, 32}}) {
    for (const std::int64_t transfer : {1, 5, 10}) {
      EXPECT_EQ(simulate_stash_transfers(p, m, Eviction::kEarly, transfer).makespan, 30 * (m + p - 1));
      EXPECT_GT(simulate_stash_transfers(p, m, Eviction::kLate, transfer).makespan, 30 * (m + p - 1));
    }
  }
}

TEST(BPipe, AddsNothingToFreeTransfers) {
  for (const auto& [p, m] : {std::pair{4, 8}, std::pair{8, 16}})
    EXPECT_EQ(simulate_schedule("bpipe", {.ranks = p, .microbatches = m}, "F=1,B=1,W=1").makespan(), (m + p - 1) * 3);
}

// The estimator: time of B samples in micro-batches of x is proportional to (B + x (p - 1)) / MFU_stage(x), so one stage
// measured at two sizes predicts the whole run within 5 %, and a flat curve predicts a loss.
TEST(BPipe, EstimatorPredictsTheWholeRun) {
  for (const int p : {4, 8, 16}) {
    for (const int samples : {64, 128, 256}) {
      for (const auto& [small, large] : {std::pair{1, 2}, std::pair{1, 4}, std::pair{2, 4}}) {
        for (const int steep : {0, 1}) {
          // MFU of one stage: flat, or rising by half with each doubling. A stage takes 360 / MFU ticks per sample.
          const auto mfu = [s = steep](int size) { return s == 0 ? 4 : size == 1 ? 4 : size == 2 ? 6 : 9; };
          const auto time_of = [&, b = samples, ranks = p](const char* name, int size) {
            const std::string op = std::to_string(360 / mfu(size) * size);
            return simulate_schedule(name, {.ranks = ranks, .microbatches = b / size},
                                     fmt::format("F={0},B={0},W={0}", op))
                .makespan();
          };
          const double one = time_of("1f1b", small);
          const double two = time_of("bpipe", large);
          const double estimate = (samples + small * (p - 1.0)) / (samples + large * (p - 1.0)) * mfu(large) /
                                  mfu(small);  // MFU(large) / MFU(small)
          EXPECT_NEAR(one / two / estimate, 1, 0.05) << p << ' ' << samples << ' ' << small << ' ' << large;
          EXPECT_EQ(one > two, steep == 1) << p << ' ' << samples << ' ' << small << ' ' << large;
        }
      }
    }
  }
}

}  // namespace
}  // namespace plait::test
