#include "plait/ir/swaps.h"

#include "plait/ir/lower.h"
#include "plait/ir/recompute.h"
#include "plait/ir/text.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace plait {
namespace {

using testing::HasSubstr;

/// A schedule from its text, with a header for `ranks` ranks, one layer per stage.
Schedule schedule_of(const std::string& header, const std::string& rows) {
  auto parsed = parse_text("plait 1 schedule\nname \"t\"\n" + header + "\n" + rows, "t");
  EXPECT_TRUE(parsed) << (parsed ? "" : parsed.error().message);
  return std::get<Schedule>(*parsed);
}

/// The rows of a program's text, one line each.
std::string rows_of(const std::string& text) {
  std::istringstream lines(text.substr(text.find("\nrank 0:")));
  std::string joined;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("rank")) joined += joined.empty() ? "" : "\n";
    if (line.starts_with("  ")) joined += (joined.empty() || joined.back() == '\n' ? "" : " ") + line.substr(2);
  }
  return joined;
}

std::string swapped(const Schedule& schedule) {
  auto rows = add_transfers(schedule.layout, schedule.rows, PairSends::kBehindOp);
  EXPECT_TRUE(rows);
  auto swaps = add_swaps(schedule.layout, *rows);
  EXPECT_TRUE(swaps) << (swaps ? "" : swaps.error().message);
  return rows_of(print_text(Program{.layout = schedule.layout, .rows = *swaps}));
}

constexpr const char* kLoop =
    "mode forward\nranks 2\nmicrobatches 2\nlayers 3\nexchanges swaps\nstage 0 embed..post.0 @0\n"
    "stage 1 norm.1..post.1 @1\nstage 2 norm.2..head @0\n";

TEST(AddSwaps, WhatTwoRanksSendEachOtherMovesTogetherWhereTheOrderAllowsIt) {
  // 0F1 is read behind 1F0, and 1F0's result behind 0F1: a swap. What is sent before and behind finds no partner, and is
  // received as far ahead of its reader as what is swapped: right before it.
  EXPECT_EQ(
      swapped(schedule_of(kLoop, "rank 0:\n 0F0 0F1 2F0 2F1\nrank 1:\n 1F0 1F1\n")),
      "0F0 batch(1) send(act,0>1,0)->1 wait(send,act,0>1,0)->1 0F1 batch(2) send(act,0>1,1)->1 recv(act,1>2,0)<-1 "
      "wait(send,act,0>1,1)->1 2F0 batch(1) recv(act,1>2,1)<-1 2F1\n"
      "batch(1) recv(act,0>1,0)<-0 1F0 batch(2) send(act,1>2,0)->0 recv(act,0>1,1)<-0 wait(send,act,1>2,0)->0 1F1 "
      "batch(1) send(act,1>2,1)->0 wait(send,act,1>2,1)->0");
}

TEST(AddSwaps, NothingIsSwappedThatTheOtherRankReadsFirst) {
  EXPECT_EQ(swapped(schedule_of(kLoop, "rank 0:\n 0F0 2F0 0F1 2F1\nrank 1:\n 1F0 1F1\n")),
            "0F0 batch(1) send(act,0>1,0)->1 batch(1) recv(act,1>2,0)<-1 wait(send,act,0>1,0)->1 2F0 0F1 "
            "batch(1) send(act,0>1,1)->1 batch(1) recv(act,1>2,1)<-1 wait(send,act,0>1,1)->1 2F1\n"
            "batch(1) recv(act,0>1,0)<-0 1F0 batch(1) send(act,1>2,0)->0 batch(1) recv(act,0>1,1)<-0 "
            "wait(send,act,1>2,0)->0 1F1 batch(1) send(act,1>2,1)->0 wait(send,act,1>2,1)->0");
}

TEST(AddSwaps, AnOpWaitsForWhatItsOwnFoldHasUnderWay) {
  // Two folds: micro-batches 0 and 1 take turns, so each transfer has an op of the other to hide behind, its send too.
  const std::string header = std::string("folds 2\n") + kLoop;
  EXPECT_EQ(swapped(schedule_of(header, "rank 0:\n 0F0 0F1 2F0 2F1\nrank 1:\n 1F0 1F1\n")),
            "0F0 batch(1) send(act,0>1,0)->1 0F1 batch(1) send(act,0>1,1)->1 batch(1) recv(act,1>2,0)<-1 batch(1) "
            "recv(act,1>2,1)<-1 wait(send,act,0>1,0)->1 2F0 wait(send,act,0>1,1)->1 2F1\n"
            "batch(1) recv(act,0>1,0)<-0 batch(1) recv(act,0>1,1)<-0 1F0 batch(1) send(act,1>2,0)->0 1F1 "
            "batch(1) send(act,1>2,1)->0 wait(send,act,1>2,0)->0 wait(send,act,1>2,1)->0");
}

TEST(AddSwaps, PairsAreRefused) {
  const Schedule schedule = schedule_of(kLoop, "rank 0:\n & 0F0 0F1 2F0 2F1\nrank 1:\n 1F0 1F1\n");
  const auto program = lower(schedule);
  ASSERT_FALSE(program);
  EXPECT_EQ(program.error().rule, "lower.swaps");
}

constexpr const char* kTrained =
    "ranks 2\nmicrobatches 2\nlayers 2\nstage 0 embed..post.0 @0\nstage 1 norm.1..head @1\n";

TEST(AddRecompute, StandsRightBeforeEachBackwardOrBeforeItsPair) {
  const Schedule plain = schedule_of(kTrained, "rank 0:\n 0F0 0F1 0BW0 0B1 0W1\nrank 1:\n 1F0 & 1F1 1BW0 1BW1\n");
  const Schedule again = add_recompute(plain, Recompute::kNoAttention).value();
  EXPECT_EQ(again.layout.recompute, Recompute::kNoAttention);
  EXPECT_EQ(rows_of(print_text(again)), "0F0 0F1 0R0 0BW0 0R1 0B1 0W1\n1F0 1R0 & 1F1 1BW0 1R1 1BW1");
  EXPECT_THAT(print_text(again), HasSubstr("\nrecompute no-attention\n"));
  EXPECT_EQ(std::get<Schedule>(parse_text(print_text(again), "again").value()), again);
  EXPECT_EQ(add_recompute(plain, Recompute::kNone).value(), plain);
  EXPECT_EQ(add_recompute(again, Recompute::kFull).error().rule, "schedule.recompute");
}

TEST(AddRecompute, AttentionAloneIsRecomputedInFullOnly) {
  const char* header =
      "ranks 2\nmicrobatches 1\nlayers 1\nstage 0 embed..qkv.0 @0\nstage 1 attn.0 @none\nstage 2 post.0..head @0\n";
  const Schedule plain = schedule_of(header, "rank 0:\n 0F0 2F0 2BW0 0BW0\nrank 1:\n 1F0 1BW0\n");
  EXPECT_EQ(rows_of(print_text(add_recompute(plain, Recompute::kNoAttention).value())),
            "0F0 2F0 2R0 2BW0 0R0 0BW0\n1F0 1BW0");
  EXPECT_EQ(rows_of(print_text(add_recompute(plain, Recompute::kFull).value())),
            "0F0 2F0 2R0 2BW0 0R0 0BW0\n1F0 1R0 1BW0");
  // Published count: 16 a layer kept in all; without attention r and o here, and with the projection there x and o.
  const auto kept = [&](Recompute what) {
    std::vector<int> elements;
    for (int stage = 0; stage < 3; ++stage) elements.push_back(kept_elements(plain.layout, StageId{stage}, what));
    return elements;
  };
  EXPECT_EQ(kept(Recompute::kNone), (std::vector{2, 3, 11}));
  EXPECT_EQ(kept(Recompute::kFull), (std::vector{0, 3, 2}));
  EXPECT_EQ(kept(Recompute::kNoAttention), (std::vector{0, 4, 2}));
}

}  // namespace
}  // namespace plait
