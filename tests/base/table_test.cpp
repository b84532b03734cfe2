#include "plait/base/table.h"

#include "plait/base/check.h"

#include <gtest/gtest.h>

namespace plait {
namespace {

TEST(TextTable, AlignsColumnsAndEndsLinesClean) {
  TextTable table({{"rank", Align::kRight}, {"op", Align::kLeft}, {"count", Align::kRight}, {"why", Align::kLeft}});
  table.add_row({"0", "F", "12", "first"});
  table.add_row({"10", "recompute", "3", ""});
  EXPECT_EQ(table.print(),
            "rank  op         count  why\n"
            "   0  F             12  first\n"
            "  10  recompute      3\n");
}

TEST(TextTable, RefusesARowOfAnotherLength) {
  TextTable table({{"a"}, {"b"}});
  EXPECT_THROW(table.add_row({"1"}), InternalError);
}

}  // namespace
}  // namespace plait
