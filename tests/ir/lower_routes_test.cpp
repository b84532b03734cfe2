#include "plait/ir/lower.h"
#include "plait/ir/text.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace plait {
namespace {

Schedule parse(const char* text) {
  auto parsed = parse_text(text, "routes");
  EXPECT_TRUE(parsed) << parsed.error().message;
  return std::get<Schedule>(*std::move(parsed));
}

/// The rows of a program without collectives and steps.
std::string rows_of(const Schedule& schedule) {
  const auto rows = add_transfers(schedule.layout, schedule.rows, PairSends::kBehindOp);
  EXPECT_TRUE(rows) << rows.error().message;
  if (!rows) return "";
  const std::string text =
      print_text(Program{.layout = schedule.layout, .rows = add_send_waits(schedule.layout, *rows)});
  return text.substr(text.find("rank 0:"));
}

/// Rank 0 parks a stash at rank 2 and fetches it back; both rows say where.
constexpr const char* kParked = R"(plait 1 schedule
ranks 3
microbatches 2
layers 3
stage 0 embed..post.0 @0
stage 1 norm.1..post.1 @1
stage 2 norm.2..head @2

rank 0:
  0F0 0F1 send(stash,0,1)->2 wait(send,stash,0,1)->2 0BW0 recv(stash,0,1)<-2 0BW1
rank 1:
  1F0 1F1 1BW0 1BW1
rank 2:
  recv(stash,0,1)<-0 2F0 2BW0 2F1 send(stash,0,1)->0 2BW1
)";

TEST(LowerRoutes, StandWhereTheScheduleSaysAndGetOneWaitEach) {
  const std::string rows = rows_of(parse(kParked));
  const auto count = [&](std::string_view token) {
    int found = 0;
    for (std::size_t at = rows.find(token); at != std::string::npos; at = rows.find(token, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("wait(send,stash,0,1)->2"), 1) << rows;
  EXPECT_EQ(count("wait(send,stash,0,1)->0"), 1) << rows;
  EXPECT_LT(rows.find("recv(stash,0,1)<-2"), rows.find("0BW1")) << rows;
  EXPECT_LT(rows.find("send(stash,0,1)->0"), rows.find("2BW1")) << rows;
}

/// Rank 2 runs ahead of rank 0 in the sweeps, but its own end of a route stays behind what the other end waits for: the receive of
/// an activation that rank 1 sends later than the route is not pulled in front of it.
TEST(LowerRoutes, BothEndsStandAtOneMomentOfTheGlobalOrder) {
  const std::string rows = rows_of(parse(kParked));
  const std::string last = rows.substr(rows.find("rank 2:"));
  EXPECT_LT(last.find("recv(stash,0,1)<-0"), last.find("2F0")) << rows;
  EXPECT_LT(last.find("recv(stash,0,1)<-0"), last.find("2BW0")) << rows;
}

/// Where all send first no order matches both ends at one moment; the rows still come out as written.
TEST(LowerRoutes, ARingInWhichAllSendFirstIsKept) {
  const Schedule ring = parse(R"(plait 1 schedule
ranks 2
microbatches 2
layers 2
stage 0 embed..post.0 @0
stage 1 norm.1..head @1

rank 0:
  send(stash,0,0)->1 recv(stash,1,0)<-1
rank 1:
  send(stash,1,0)->0 recv(stash,0,0)<-0
)");
  const auto rows = add_transfers(ring.layout, ring.rows, PairSends::kBehindOp);
  ASSERT_TRUE(rows) << rows.error().message;
  EXPECT_EQ(*rows, ring.rows);
}

}  // namespace
}  // namespace plait
