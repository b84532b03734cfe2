#include "tests/sim/simulated.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

// Card of HelixPipe: bubble, its sensitivity to the parts' times, transfers and what of them stays exposed.
namespace plait::test {
namespace {

constexpr const char* kPartTimes = "pre=0.5,attn=4,post=0.5";

Simulated helixpipe(int ranks, int layers, int folds, int repeats, const std::string& times,
                    const std::string& latency = "0") {
  return simulate_schedule("helixpipe",
                           {.ranks = ranks, .microbatches = repeats * folds * ranks, .layers = layers, .folds = folds},
                           times, latency);
}

TEST(HelixPipe, Bubble) {
  const double expected[][4] = {{3, 3, 3, 3},     {6, 6, 7.5, 9},   {9, 12, 15, 18},  {12, 18, 24, 30},
                                {15, 24, 33, 42}, {18, 30, 42, 54}, {21, 36, 51, 66}, {24, 42, 60, 78}};
  for (int p = 2; p <= 9; ++p)
    for (int folds = 1; folds <= 4; ++folds)
      EXPECT_EQ(helixpipe(p, 2 * p, folds, 1, kPartTimes).bubble_max(), expected[p - 2][folds - 1])
          << p << " ranks, " << folds << " folds";
  for (const int repeats : {1, 2, 4}) {
    EXPECT_EQ(helixpipe(4, 8, 1, repeats, kPartTimes).bubble_max(), 9) << repeats;
    EXPECT_EQ(helixpipe(4, 8, 2, repeats, kPartTimes).bubble_max(), 12) << repeats;
  }
  EXPECT_EQ(simulate_schedule("1f1b", {.ranks = 4, .microbatches = 8, .layers = 8}, kPartTimes).bubble_max(), 90);
}

// Recompute without attention repeats pre and post: 4/3 of the bubble, with the projection on either side.
TEST(HelixPipe, BubbleWithRecompute) {
  const double expected[][4] = {{3, 3, 3, 3},     {6, 6, 7.5, 9},   {9, 12, 15, 18},  {12, 18, 24, 30},
                                {15, 24, 33, 42}, {18, 30, 42, 54}, {21, 36, 51, 66}, {24, 42, 60, 78}};
  for (const QkvPlace qkv : {QkvPlace::kPre, QkvPlace::kAttn}) {
    const auto bubble = [&](int p, int folds, const std::string& times) {
      return simulate_schedule("helixpipe",
                               {.ranks = p,
                                .microbatches = folds * p,
                                .layers = 2 * p,
                                .folds = folds,
                                .recompute = Recompute::kNoAttention,
                                .qkv = qkv},
                               times)
          .bubble_max();
    };
    for (int p = 2; p <= 9; ++p)
      for (int folds = 1; folds <= 4; ++folds)
        EXPECT_DOUBLE_EQ(bubble(p, folds, kPartTimes), expected[p - 2][folds - 1] * 4 / 3)
            << p << " ranks, " << folds << " folds";
    EXPECT_EQ(bubble(4, 2, "pre=0.5,attn=1,post=0.5"), 17);
    EXPECT_EQ(bubble(4, 2, "pre=0.5,attn=0.5,post=0.5"), 18.5);
  }
}

// m (L/p) 4 B T D on every rank; with the projection beside its weights attention keeps q, k, v and its output, 6 in all;
// without recompute 16.
TEST(HelixPipe, Memory) {
  const auto peaks = [](ScheduleShape shape) {
    return peak_elements(lower(*build_schedule("helixpipe", shape)).value());
  };
  const ScheduleShape base{
      .ranks = 4, .microbatches = 8, .layers = 8, .folds = 2, .recompute = Recompute::kNoAttention};
  EXPECT_THAT(peaks(base), testing::Each(64.0));
  ScheduleShape more = base;
  more.microbatches = 24;
  EXPECT_THAT(peaks(more), testing::Each(3 * 64.0));
  ScheduleShape pre = base;
  pre.qkv = QkvPlace::kPre;
  EXPECT_THAT(peaks(pre), testing::Each(96.0));
  ScheduleShape all = base;
  all.recompute = Recompute::kNone;
  EXPECT_THAT(peaks(all), testing::ElementsAre(256, 256, 256, 256));
  // 1F1B's first rank holds p micro-batches of L/p layers, 16 each: 16 L in all; last one a p-th of it.
  const Program program = lower(*build_schedule("1f1b", {.ranks = 4, .microbatches = 8, .layers = 8})).value();
  EXPECT_THAT(peak_elements(program), testing::ElementsAre(128, 96, 64, 32));
  EXPECT_EQ(in_microbatches(lower(*build_schedule("helixpipe", base))->layout, 1), std::nullopt);
}

TEST(HelixPipe, IterationsOfTheWorkedExamples) {
  EXPECT_EQ(helixpipe(4, 8, 1, 1, kPartTimes).makespan(), 129);
  EXPECT_EQ(helixpipe(4, 8, 2, 1, kPartTimes).makespan(), 252);
  EXPECT_EQ(helixpipe(2, 2, 1, 2, kPartTimes).makespan(), 63);
  EXPECT_EQ(helixpipe(2, 4, 2, 1, kPartTimes).makespan(), 123);
}

TEST(HelixPipe, SensitivityToTheParts) {
  const char* pre[] = {"0.1", "0.3", "0.5", "0.7", "0.9"};
  const char* post[] = {"0.9", "0.7", "0.5", "0.3", "0.1"};
  const double four_two[] = {13.8, 12, 12, 12, 13.8};
  const double four_three[] = {19.2, 15.6, 15, 15.6, 19.2};
  const double eight_three[] = {51.6, 51, 51, 51, 51.6};
  for (std::size_t i = 0; i < 5; ++i) {
    const std::string times = fmt::format("pre={},attn=4,post={}", pre[i], post[i]);
    EXPECT_DOUBLE_EQ(helixpipe(4, 8, 1, 1, times).bubble_max(), 9) << times;
    EXPECT_DOUBLE_EQ(helixpipe(4, 8, 2, 1, times).bubble_max(), four_two[i]) << times;
    EXPECT_DOUBLE_EQ(helixpipe(4, 8, 3, 1, times).bubble_max(), four_three[i]) << times;
    EXPECT_DOUBLE_EQ(helixpipe(8, 16, 2, 1, times).bubble_max(), 36) << times;
    EXPECT_DOUBLE_EQ(helixpipe(8, 16, 3, 1, times).bubble_max(), eight_three[i]) << times;
  }
  EXPECT_EQ(helixpipe(4, 8, 2, 1, "pre=0.5,attn=1,post=0.5").bubble_max(), 12);
  EXPECT_EQ(helixpipe(4, 8, 2, 1, "pre=0.5,attn=0.5,post=0.5").bubble_max(), 13.5);
  for (const char* attn : {"0.5", "1", "16"})
    EXPECT_EQ(helixpipe(4, 8, 1, 1, fmt::format("pre=0.5,attn={},post=0.5", attn)).bubble_max(), 9) << attn;
}

TEST(HelixPipe, Transfers) {
  EXPECT_EQ(helixpipe(4, 8, 2, 1, kPartTimes).result.transfers.count, 192);
  EXPECT_EQ(helixpipe(8, 16, 2, 1, kPartTimes).result.transfers.count, 896);
}

TEST(HelixPipe, ExposedTransfersWhereSwapsBlockUntilMatched) {
  struct Row {
    const char* latency;
    double naive, two_folds;
  };
  const auto makespan = [](int folds, int repeats, const char* latency) {
    return simulate_schedule("helixpipe",
                             {.ranks = 4, .microbatches = repeats * folds * 4, .layers = 8, .folds = folds}, kPartTimes,
                             latency, {.transfers = TransferMode::kRendezvous})
        .makespan();
  };
  for (const Row& row :
       {Row{"0.25", 16.5, 1.5}, Row{"0.5", 33, 3}, Row{"1", 67, 6}, Row{"2", 137, 20}, Row{"4", 277, 66}}) {
    EXPECT_EQ(makespan(1, 2, row.latency), 249 + row.naive) << row.latency;
    EXPECT_EQ(makespan(2, 1, row.latency), 252 + row.two_folds) << row.latency;
  }
}

TEST(HelixPipe, ExposedTransfersWhereSendsAreBuffered) {
  struct Row {
    const char* latency;
    double naive, two_folds;
  };
  for (const Row& row :
       {Row{"0.25", 15, 1.5}, Row{"0.5", 30, 3}, Row{"1", 61, 6}, Row{"2", 125, 19}, Row{"4", 253, 59}}) {
    EXPECT_EQ(helixpipe(4, 8, 1, 2, kPartTimes, row.latency).makespan(), 249 + row.naive) << row.latency;
    EXPECT_EQ(helixpipe(4, 8, 2, 1, kPartTimes, row.latency).makespan(), 252 + row.two_folds) << row.latency;
  }
}

}  // namespace
}  // namespace plait::test
