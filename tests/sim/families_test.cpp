#include "tests/sim/simulated.h"
#include <fmt/format.h>
#include <gmock/gmock.h>

// Expected values: the cards of the systems (golden tables "verified by replay"), and published measurements.
namespace plait::test {
namespace {

using ::testing::ElementsAreArray;
using ::testing::TestWithParam;
using ::testing::Values;
using ::testing::ValuesIn;

struct GoldenRow {
  std::string name;
  ScheduleShape shape;
  double makespan;
  std::vector<double> idle;
  std::vector<double> peaks;
};

ScheduleShape shape(int ranks, int microbatches, std::optional<int> chunks = {}, std::optional<int> slices = {},
                    Squeeze squeeze = Squeeze::kFull) {
  return ScheduleShape{
      .ranks = ranks, .microbatches = microbatches, .chunks = chunks, .slices = slices, .squeeze = squeeze};
}

std::string test_name(const std::string& name, const ScheduleShape& s) {
  std::string text =
      fmt::format("{}_p{}m{}v{}k{}", name, s.ranks, *s.microbatches, s.chunks.value_or(0), s.slices.value_or(0));
  for (char& c : text)
    if (c == '-') c = '_';
  return text;
}

// schedule-families, section 2: p = 4, m = 8, F = B = W = 1.
class GoldenTable : public TestWithParam<GoldenRow> {};

TEST_P(GoldenTable, MakespanIdleAndMemory) {
  const GoldenRow& row = GetParam();
  const Simulated run = simulate_schedule(row.name, row.shape, "F=1,B=1,W=1");
  EXPECT_EQ(run.makespan(), row.makespan);
  EXPECT_THAT(run.idle(), ElementsAreArray(row.idle));
  EXPECT_EQ(run.bubble_max(), *std::max_element(row.idle.begin(), row.idle.end()));
  EXPECT_THAT(run.peaks(), ElementsAreArray(row.peaks));
  for (const RankFigures& rank : run.result.ranks) EXPECT_EQ(run.unit(rank.busy), 24);
}

INSTANTIATE_TEST_SUITE_P(
    Families, GoldenTable,
    Values(GoldenRow{"gpipe", shape(4, 8), 33, {9, 6, 3, 0}, {8, 8, 8, 8}},
           GoldenRow{"1f1b", shape(4, 8), 33, {9, 6, 3, 0}, {4, 3, 2, 1}},
           GoldenRow{"interleaved-1f1b", shape(4, 8, 2), 28.5, {4.5, 3, 1.5, 0}, {5.5, 4.5, 3.5, 2.5}},
           GoldenRow{"interleaved-1f1b", shape(4, 8, 4), 26.25, {2.25, 1.5, 0.75, 0}, {4.75, 4.25, 3.75, 3.25}},
           GoldenRow{"zb-h1", shape(4, 8), 27, {3, 2, 1, 0}, {4, 4, 4, 4}},
           GoldenRow{"zb-h2", shape(4, 8), 27, {0, 0, 0, 0}, {7, 7, 7, 7}},
           GoldenRow{"zb-v", shape(4, 8), 25.5, {0, 0, 0, 0}, {4, 4, 4, 4}},
           GoldenRow{"dualpipe", shape(4, 8), 25, {1, 0, 0, 1}, {5, 5, 5, 5}},
           GoldenRow{"dualpipev", shape(4, 8), 25.5, {1.5, 1, 0.5, 0}, {4.5, 4.5, 4.5, 4.5}},
           GoldenRow{"seq1f1b", shape(4, 8, {}, 2), 28.5, {4.5, 3, 1.5, 0}, {2.5, 2, 1.5, 1}},
           GoldenRow{"seq1f1b", shape(4, 8, {}, 4), 26.25, {2.25, 1.5, 0.75, 0}, {1.75, 1.5, 1.25, 1}}),
    [](const auto& row) { return test_name(row.param.name, row.param.shape); });

// The same with F = 1, B = 1.2, W = 0.8: makespan and largest idle.
struct UnequalRow {
  std::string name;
  ScheduleShape shape;
  double makespan;
  double idle;
};
class UnequalTimes : public TestWithParam<UnequalRow> {};

TEST_P(UnequalTimes, MakespanAndIdle) {
  const UnequalRow& row = GetParam();
  const Simulated run = simulate_schedule(row.name, row.shape, "F=1,B=1.2,W=0.8");
  EXPECT_DOUBLE_EQ(run.makespan(), row.makespan);
  EXPECT_DOUBLE_EQ(run.bubble_max(), row.idle);
}

INSTANTIATE_TEST_SUITE_P(Families, UnequalTimes,
                         Values(UnequalRow{"gpipe", shape(4, 8), 33, 9}, UnequalRow{"1f1b", shape(4, 8), 33, 9},
                                UnequalRow{"interleaved-1f1b", shape(4, 8, 2), 28.5, 4.5},
                                UnequalRow{"zb-h1", shape(4, 8), 28.2, 4.2}, UnequalRow{"zb-h2", shape(4, 8), 27, 1.8},
                                UnequalRow{"zb-v", shape(4, 8), 25.8, 1.2},
                                UnequalRow{"dualpipev", shape(4, 8), 26.1, 2.1},
                                UnequalRow{"dualpipe", shape(4, 8), 25.4, 1.4},
                                UnequalRow{"dualpipe", shape(8, 20), 64.2, 4.2}),
                         [](const auto& row) { return test_name(row.param.name, row.param.shape); });

// Closed forms of section 2 over their ranges.
TEST(ClosedForms, GpipeAnd1f1b) {
  for (int p = 1; p <= 6; ++p) {
    for (int m = 1; m <= 14; ++m) {
      for (const char* name : {"gpipe", "1f1b"})
        EXPECT_EQ(simulate_schedule(name, shape(p, m), "F=1,B=1,W=1").makespan(), (m + p - 1) * 3)
            << name << p << ' ' << m;
      std::vector<double> peaks;
      for (int r = 0; r < p; ++r) peaks.push_back(std::min(m, p - r));
      EXPECT_THAT(simulate_schedule("1f1b", shape(p, m), "F=1,B=1,W=1").peaks(), ElementsAreArray(peaks));
    }
  }
}

TEST(ClosedForms, Interleaved) {
  for (int p = 2; p <= 6; ++p) {
    for (int v = 2; v <= 4; ++v) {
      for (int m = p; m <= 3 * p; m += p) {
        const Simulated run = simulate_schedule("interleaved-1f1b", shape(p, m, v), "F=1,B=1,W=1");
        EXPECT_DOUBLE_EQ(run.bubble_max(), (p - 1) * 3.0 / v);
        std::vector<double> peaks;
        for (int r = 0; r < p; ++r)
          peaks.push_back(static_cast<double>(std::min(2 * (p - r - 1) + (v - 1) * p + 1, m * v)) / v);
        EXPECT_THAT(run.peaks(), ElementsAreArray(peaks)) << p << ' ' << v << ' ' << m;
      }
    }
  }
}

TEST(ClosedForms, ZeroBubble) {
  for (int p = 2; p <= 6; ++p) {
    for (int m = 2 * p; m <= 3 * p + 2; ++m) {
      for (const auto& [times, f, b, w] :
           {std::tuple{"F=1,B=1,W=1", 1.0, 1.0, 1.0}, std::tuple{"F=1,B=1.2,W=0.8", 1.0, 1.2, 0.8}}) {
        const Simulated h1 = simulate_schedule("zb-h1", shape(p, m), times);
        const Simulated h2 = simulate_schedule("zb-h2", shape(p, m), times);
        EXPECT_NEAR(h1.bubble_max(), (p - 1) * (f + b - w), 1e-9);
        EXPECT_NEAR(h2.bubble_max(), std::max(0.0, (p - 1) * (f + b - 2 * w)), 1e-9);
        EXPECT_THAT(h1.peaks(), ElementsAreArray(std::vector<double>(static_cast<std::size_t>(p), p)));
        EXPECT_THAT(h2.peaks(), ElementsAreArray(std::vector<double>(static_cast<std::size_t>(p), 2 * p - 1)));
        const Simulated dual = simulate_schedule("dualpipev", shape(p, m), times);
        EXPECT_NEAR(dual.bubble_max(), (p - 1) * (f + b - w) / 2, 1e-9);
      }
      const Simulated v = simulate_schedule("zb-v", shape(p, m), "F=1,B=1,W=1");
      EXPECT_EQ(v.bubble_max(), 0);
      EXPECT_THAT(v.peaks(), ElementsAreArray(std::vector<double>(static_cast<std::size_t>(p), p)));
    }
  }
}

TEST(ClosedForms, Sliced) {
  for (int p = 1; p <= 6; ++p) {
    for (int m = 1; m <= 2 * p + 3; ++m) {
      for (int k = 1; k <= 4; ++k) {
        const Simulated run = simulate_schedule("seq1f1b", shape(p, m, {}, k), "F=1,B=1,W=1");
        EXPECT_DOUBLE_EQ(run.makespan(), m * 3.0 + (p - 1) * 3.0 / k);
        std::vector<double> peaks;
        for (int r = 0; r < p; ++r) peaks.push_back(static_cast<double>(std::min(p - r - 1 + k, m * k)) / k);
        EXPECT_THAT(run.peaks(), ElementsAreArray(peaks));
      }
    }
  }
}

// p = 8, m = 24.
TEST(GoldenRows, EightRanks) {
  EXPECT_EQ(simulate_schedule("1f1b", shape(8, 24), "F=1,B=1,W=1").makespan(), 93);
  EXPECT_EQ(simulate_schedule("zb-v", shape(8, 24), "F=1,B=1,W=1").makespan(), 75.5);
  EXPECT_EQ(simulate_schedule("zb-h1", shape(8, 24), "F=1,B=1,W=1").makespan(), 79);
  EXPECT_EQ(simulate_schedule("zb-h2", shape(8, 24), "F=1,B=1,W=1").makespan(), 79);
  EXPECT_EQ(simulate_schedule("dualpipev", shape(8, 24), "F=1,B=1,W=1").makespan(), 75.5);
}

// Section 5: with the pair as one unit of F + B the published bubble of DualPipe holds, (p/2 - 1)(F&B + B - 3W), B full.
TEST(GoldenRows, DualPipeWithPairsAsUnits) {
  for (const auto& [p, m] : {std::pair{4, 8}, std::pair{8, 20}}) {
    const Simulated run =
        simulate_schedule("dualpipe", shape(p, m), "F=1,B=1,W=1", "0", SimOptions{.pair_factor = 1.0});
    EXPECT_DOUBLE_EQ(run.bubble_max(), (p / 2 - 1) * (3 + 2 - 3));
  }
}

// Section 6: Chimera, D = N = 4.
TEST(GoldenRows, Chimera) {
  const Simulated equal = simulate_schedule("chimera", shape(4, 4), "F=1,B=0.5,W=0.5");
  EXPECT_EQ(equal.makespan(), 10);
  EXPECT_DOUBLE_EQ(equal.result.bubble_ratio, 0.2);
  EXPECT_THAT(equal.peaks(), ElementsAreArray({3, 4, 4, 3}));
  const Simulated twice = simulate_schedule("chimera", shape(4, 4), "F=1,B=1,W=1");
  EXPECT_EQ(twice.makespan(), 16);
  EXPECT_DOUBLE_EQ(twice.result.bubble_ratio, 0.25);
}

// The command of the documentation.
TEST(GoldenRows, UnequalBackward) {
  EXPECT_DOUBLE_EQ(simulate_schedule("1f1b", shape(4, 8), "F=1,B=1.2,W=0.8").makespan(), 33);
}

// Zero-bubble paper: bubble C of measured times, four decimals.
struct PublishedRow {
  int ranks, microbatches;
  std::string forward, backward, weight, transfer;
  double one_f_one_b, interleaved, h1, h2, zb1p, zb2p;
  int chunks;
};
class PublishedBubbles : public TestWithParam<PublishedRow> {};

TEST_P(PublishedBubbles, ToFourDecimals) {
  const PublishedRow& row = GetParam();
  const std::string times = fmt::format("F={},B={},W={}", row.forward, row.backward, row.weight);
  const auto bubble = [&](const char* name) {
    return simulate_schedule(name, shape(row.ranks, row.microbatches), times, row.transfer).result.bubble_c;
  };
  EXPECT_NEAR(bubble("1f1b"), row.one_f_one_b, 5e-5);
  EXPECT_NEAR(bubble("zb-1p"), row.zb1p, 5e-5);
  EXPECT_NEAR(bubble("zb-2p"), row.zb2p, 5e-5);
  EXPECT_NEAR(simulate_schedule("interleaved-1f1b", shape(row.ranks, row.microbatches, row.chunks), times, row.transfer)
                  .result.bubble_c,
              row.interleaved, 0.004);
}

INSTANTIATE_TEST_SUITE_P(
    ZeroBubblePaper, PublishedBubbles,
    Values(PublishedRow{8, 24, "18.522", "18.086", "9.337", ".601", .2431, .1055, .1585, .1083, .1585, .0433, 3},
           PublishedRow{8, 32, "18.513", "18.086", "9.331", ".626", .1985, .0818, .1242, .0837, .1242, .0039, 3},
           PublishedRow{8, 64, "18.546", "18.097", "9.321", ".762", .1240, .0443, .0674, .0444, .0674, .0026, 3},
           PublishedRow{8, 24, "29.718", "29.444", "19.927", ".527", .2347, .0808, .1323, .0698, .1323, .0029, 4},
           PublishedRow{8, 32, "29.802", "29.428", "19.530", ".577", .1898, .0628, .1045, .0559, .1045, .0022, 4},
           PublishedRow{8, 64, "29.935", "29.621", "19.388", ".535", .1091, .0320, .0554, .0294, .0554, .0010, 4},
           PublishedRow{16, 48, "11.347", "11.248", "8.132", ".377", .2552, .1104, .1397, .0672, .1397, .0066, 3},
           PublishedRow{16, 64, "11.307", "11.254", "8.101", ".379", .2082, .0852, .1088, .0516, .1088, .0054, 3},
           PublishedRow{16, 128, "11.325", "11.308", "8.109", ".378", .1251, .0445, .0576, .0266, .0576, .0028, 3}),
    [](const auto& row) {
      return fmt::format("p{}m{}f{}", row.param.ranks, row.param.microbatches, row.param.chunks);
    });

}  // namespace
}  // namespace plait::test
