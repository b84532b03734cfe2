#include "printed_order.h"
#include "replay.h"
#include <gtest/gtest.h>

namespace plait {
namespace {

class PrintedOrders : public testing::TestWithParam<const char*> {};

TEST_P(PrintedOrders, AreGeneratedExactly) {
  const PrintedOrder printed = read_printed_order(GetParam());
  const auto schedule = build_schedule(printed.schedule, printed.shape);
  ASSERT_TRUE(schedule) << schedule.error().message;
  ASSERT_FALSE(printed.rows.empty());
  for (const auto& row : printed.rows) {
    const Row& generated = schedule->rows.at(static_cast<std::size_t>(row.rank));
    std::vector<Op> ops = ops_of(generated);
    EXPECT_EQ(pairs_of(generated), row.pairs) << "rank " << row.rank;
    if (row.goes_on) {
      ASSERT_GE(ops.size(), row.ops.size());
      ops.resize(row.ops.size());
    } else {
      EXPECT_EQ(printed.rows.size(), schedule->rows.size());
    }
    EXPECT_EQ(to_text(ops), to_text(row.ops)) << "rank " << row.rank;
  }
}

INSTANTIATE_TEST_SUITE_P(All, PrintedOrders,
                         testing::Values("1f1b.txt", "interleaved-1f1b.txt", "zb-h1.txt", "zb-h2.txt", "zb-v.txt",
                                         "dualpipe.txt", "dualpipev.txt", "chimera.txt", "seq1f1b-k2.txt",
                                         "seq1f1b-k4.txt", "seq1f1b-p2.txt", "seq1f1b-p4m3.txt"),
                         [](const auto& file) {
                           std::string name = file.param;
                           name.resize(name.size() - 4);
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

TEST(PrintedOrders, ChimeraRunsInThePrintedCells) {
  const PrintedOrder printed = read_printed_order("chimera.txt");
  const auto schedule = build_schedule("chimera", printed.shape);
  ASSERT_TRUE(schedule) << schedule.error().message;
  // Full backward of one slot.
  const auto run = replay(*schedule, OpTimes{.forward = 1, .backward = 1, .weight = 0, .transfer = 0});
  ASSERT_TRUE(run);
  EXPECT_EQ(run->makespan, 10);
  for (const auto& row : printed.rows) {
    const auto& begin = run->begin.at(static_cast<std::size_t>(row.rank));
    EXPECT_EQ(std::vector<int>(begin.begin(), begin.end()), row.cells) << "rank " << row.rank;
  }
}

}  // namespace
}  // namespace plait
