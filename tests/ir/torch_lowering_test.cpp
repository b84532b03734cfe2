/// The worked examples of the format: their lowerings by each rule, and options.
#include "plait/ir/torch_lowering.h"

#include "plait/ir/lower.h"
#include "plait/ir/torch_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace plait {
namespace {

constexpr std::string_view kOneF = "0F0,0F1,,0B0,0F2,,0B1,,0B2\n,1F0,1B0,1F1,1B1,1F2,1B2\n";
constexpr std::string_view kZbv =
    "0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0F3,0I0,0W0,3F2,3I2,3W2,0I1,0W1,3F3,3I3,3W3,0I2,0W2,0I3,0W3\n"
    "1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1F3,1I1,1W1,2F3,2I2,2W2,1I2,2I3,1I3,1W2,2W3,1W3\n";

Schedule schedule_of(std::string_view csv) {
  auto imported = import_torch_csv(csv, "example");
  EXPECT_TRUE(imported) << imported.error().message;
  return std::get<Schedule>(imported->content);
}

/// Without the waiting actions, as torch 2.14 writes it.
std::string lowered_by_old_torch(std::string_view csv) {
  const auto program = lower_as_torch(schedule_of(csv));
  return program ? *export_torch_csv(*program, {2, 14}) : program.error().message;
}

/// Rule 3 alone.
std::string with_transfers_only(std::string_view csv) {
  Schedule schedule = schedule_of(csv);
  Program program{.layout = schedule.layout,
                  .rows = *add_transfers(schedule.layout, schedule.rows, PairSends::kBehindPair)};
  torch_rules::make_sharded(program.layout);
  torch_rules::append_implicit(program, torch_rules::Reductions::kInRows);
  return *export_torch_csv(program, {2, 14});
}

TEST(TorchLowering, OneForwardOneBackward) {
  EXPECT_EQ(with_transfers_only(kOneF),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0F2,0SEND_F2,0RECV_B1,0B1,0RECV_B2,0B2\n"
            "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1RECV_F2,1B1,1SEND_B1,1F2,1B2,1SEND_B2\n");
  EXPECT_EQ(
      lowered_by_old_torch(kOneF),
      "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0F2,0SEND_F2,0RECV_B1,0B1,0RECV_B2,0B2,0REDUCE_GRAD,0RESHARD\n"
      "1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1RECV_F2,1B1,1SEND_B1,1F2,1B2,1SEND_B2,1REDUCE_GRAD,1RESHARD\n");
}

TEST(TorchLowering, ZeroBubbleInAV) {
  EXPECT_EQ(
      with_transfers_only(kZbv),
      "0F0,0SEND_F0,0F1,0SEND_F1,3RECV_F0,0F2,0SEND_F2,3F0,3RECV_F1,3I0,3SEND_B0,3W0,3F1,3I1,3SEND_B1,0RECV_B0,3W1,0F3,"
      "0SEND_F3,3RECV_F2,0I0,0W0,3F2,3I2,3SEND_B2,0RECV_B1,3W2,0I1,3RECV_F3,0W1,3F3,3I3,3SEND_B3,0RECV_B2,3W3,0I2,"
      "0RECV_B3,0W2,0I3,0W3\n"
      "1RECV_F0,1F0,1RECV_F1,2F0,2SEND_F0,1RECV_F2,1F1,2F1,2SEND_F1,2RECV_B0,2I0,2W0,1F2,2RECV_B1,1I0,1SEND_B0,1W0,"
      "1RECV_F3,2F2,2SEND_F2,2I1,2W1,1F3,2RECV_B2,1I1,1SEND_B1,1W1,2F3,2SEND_F3,2I2,2W2,2RECV_B3,1I2,1SEND_B2,2I3,1I3,"
      "1SEND_B3,1W2,2W3,1W3\n");
  EXPECT_EQ(
      lowered_by_old_torch(kZbv),
      "0UNSHARD,3UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,3RECV_F0,0F2,0SEND_F2,3F0,3RECV_F1,3I0,3SEND_B0,3W0,3F1,3I1,3SEND_"
      "B1,"
      "0RECV_B0,3W1,0F3,0SEND_F3,3RECV_F2,0I0,0W0,3F2,3I2,3SEND_B2,0RECV_B1,3W2,0I1,3RECV_F3,0W1,3F3,3I3,3SEND_B3,"
      "0RECV_B2,3W3,3REDUCE_GRAD,0RECV_B3,3RESHARD,0I2,0W2,0I3,0W3,0REDUCE_GRAD,0RESHARD\n"
      "1UNSHARD,2UNSHARD,1RECV_F0,1F0,1RECV_F1,2F0,2SEND_F0,1RECV_F2,1F1,2F1,2SEND_F1,2RECV_B0,2I0,2W0,1F2,2RECV_B1,"
      "1I0,"
      "1SEND_B0,1W0,1RECV_F3,2F2,2SEND_F2,2I1,2W1,1F3,2RECV_B2,1I1,1SEND_B1,1W1,2F3,2SEND_F3,2I2,2W2,2RECV_B3,1I2,"
      "1SEND_B2,2I3,1I3,1SEND_B3,1W2,2W3,2REDUCE_GRAD,2RESHARD,1W3,1REDUCE_GRAD,1RESHARD\n");
}

TEST(TorchLowering, Before210HasNoReductions) {
  const auto program = lower_as_torch(schedule_of("0F0,0B0\n"), {.version = {2, 9}});
  ASSERT_TRUE(program) << program.error().message;
  EXPECT_EQ(*export_torch_csv(*program, {2, 9}), "0UNSHARD,0F0,0B0,0RESHARD\n");
}

TEST(TorchLowering, RefusesOptionsThatPyTorchRefuses) {
  const auto message = [](std::string_view csv, const TorchLoweringOptions& options) {
    const auto program = lower_as_torch(schedule_of(csv), options);
    if (program) return std::string("lowered");
    EXPECT_EQ(program.error().code, ErrorCode::kInvalidArgument);
    return program.error().message;
  };
  EXPECT_EQ(message(kOneF, {.max_active_stages = 0}), "--max-active-stages is 0; at least 1 is needed");
  EXPECT_EQ(message(kOneF, {.unshard_lookahead = {std::vector{1}}}),
            "--unshard-lookahead lists 1 numbers for 2 ranks; give one per rank");
  EXPECT_EQ(message(kOneF, {.unshard_lookahead = {std::vector{1, 4}}}),
            "--unshard-lookahead of rank 1 is 4; expected 1..3 (--max-active-stages)");
  EXPECT_EQ(message(kOneF, {.max_outstanding_sends = -1}), "--max-outstanding-sends is -1; 0 is the least");
  EXPECT_EQ(message(kOneF, {.max_outstanding_sends = 0}),
            "rank 0: --max-outstanding-sends 0 cannot be kept before 0SEND_F0 (no send is pending); raise it, or "
            "change the schedule");
  EXPECT_EQ(message("0F0,(1F0;0F1)OVERLAP_F_B,1F1,1B0,0B0,1B1,0B1\n", {.max_active_stages = 1}),
            "rank 0: a pair works on 2 stages at once, but --max-active-stages is 1; allow 2");
  EXPECT_EQ(message("0F0,0B0\n", {.max_outstanding_sends = 0}), "lowered");
}

/// Found by comparison with torch 2.15: there each pending receive of rank 3 can only be posted behind a wait of another
/// rank that itself follows a later receive of rank 3.
TEST(TorchLowering, RefusesASendBudgetThatADistantWaitForbids) {
  const auto program = lower_as_torch(
      schedule_of("0F4,0F5,0F2,0F0,0F3,0F1,4F1,4F2,4F0,4F5,4F3,8F2,4F4,8F5,8F1,8F0,8F3,8F4,8B2,8B1,8B5,4B2,8B0,4B1,8B3,"
                  "0B1,0B2,4B0,4B5,0B5,4B3,0B0,8B4,0B3,4B4,0B4\n"
                  "1F4,1F2,1F3,1F0,1F5,1F1,5F0,5F1,5F2,5F5,9F2,5F4,9F5,5F3,9F1,9F3,9F0,9B2,9F4,9B1,5B2,9B5,9B0,5B1,9B3,"
                  "1B2,1B1,5B5,5B0,1B5,1B0,9B4,5B3,1B3,5B4,1B4\n"
                  "2F3,2F0,2F2,2F1,2F5,2F4,6F2,6F0,6F1,6F5,6F4,10F2,10F5,6F3,10F1,10B5,10F3,10F0,10B2,10B1,6B2,10B0,"
                  "10F4,10B3,6B1,6B5,2B2,2B1,6B0,10B4,6B3,2B5,2B0,2B3,6B4,2B4\n"
                  "3F0,3F1,3F3,3F2,3F5,7F2,3F4,7F0,7F1,7F5,11F5,11B5,7F3,7F4,11F2,11B2,11F1,11F3,11F0,7B2,11B3,11B1,"
                  "11B0,7B1,7B5,3B2,3B1,7B3,7B0,11F4,11B4,3B0,3B5,3B3,7B4,3B4\n"),
      {.defer_recv = true, .max_outstanding_sends = 3});
  ASSERT_FALSE(program);
  EXPECT_EQ(program.error().message,
            "rank 3: --max-outstanding-sends 3 cannot be kept before 7SEND_B0 (pending and not to be waited for here: "
            "3SEND_B2, 3SEND_B1, 7SEND_B3); raise it, or change the schedule");
}

TEST(TorchLowering, ParsesLookahead) {
  EXPECT_EQ(*parse_unshard_lookahead("full"), UnshardLookahead{UnshardLookahead::Full{}});
  EXPECT_EQ(*parse_unshard_lookahead("auto"), UnshardLookahead{UnshardLookahead::Auto{}});
  EXPECT_EQ(*parse_unshard_lookahead("2,3,1"), (UnshardLookahead{std::vector{2, 3, 1}}));
  for (const std::string_view text : {"", "half", "1,", ",1", "1,0", "-1", "1 2", "99999999999"})
    EXPECT_FALSE(parse_unshard_lookahead(text)) << text;
}

TEST(TorchLowering, RefusesTiedWeights) {
  Schedule schedule = schedule_of(kOneF);
  const auto tied = rebind(schedule, 2, HeadTying::kTied);
  ASSERT_TRUE(tied) << tied.error().message;
  const auto program = lower_as_torch(*tied);
  ASSERT_FALSE(program);
  EXPECT_THAT(program.error().message, testing::HasSubstr("group embed is used by 2 stages"));
}

TEST(TorchLowering, MergesOnlyNeighboursOutsideOfPairs) {
  const Schedule schedule = schedule_of("0F0,0F1,0I0,,0W0,(0F2;0I1)OVERLAP_F_B,0W1,0I2,0F3,0W2,0I3,0W3\n");
  EXPECT_EQ(*export_torch_csv(merge_backwards(schedule)), "0F0,0F1,0B0,(0F2;0I1)OVERLAP_F_B,0W1,0I2,0F3,0W2,0B3\n");
}

}  // namespace
}  // namespace plait
