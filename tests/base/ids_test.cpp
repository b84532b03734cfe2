#include "plait/base/ids.h"

#include "plait/base/result.h"

#include <gtest/gtest.h>

#include <type_traits>
#include <unordered_set>

namespace plait {
namespace {

static_assert(!std::is_constructible_v<RankId, StageId>);
static_assert(!std::is_convertible_v<int, RankId>);
static_assert(!std::is_constructible_v<Bytes, Nanos>);

TEST(Id, ComparesAndHashesByValue) {
  const std::unordered_set<StageId> stages{StageId{1}, StageId{2}, StageId{1}};
  EXPECT_EQ(stages.size(), 2U);
  EXPECT_LT(StageId{1}, StageId{2});
  EXPECT_EQ(StageId{3}.index(), 3U);
}

TEST(Quantity, AddsItsOwnKindAndScales) {
  Bytes bytes = Bytes{3} * 4 + Bytes{1} - Bytes{2};
  bytes += Bytes{5};
  EXPECT_EQ(bytes, Bytes{16});
  EXPECT_EQ(bytes / Bytes{5}, 3);
  EXPECT_EQ(bytes / 4, Bytes{4});
}

TEST(Result, HoldsAValueOrAnError) {
  const Result<int> good = 3;
  const Result<int> bad = make_error(ErrorCode::kIo, "io.read", "{} is missing", "x");
  EXPECT_EQ(*good, 3);
  EXPECT_FALSE(bad);
  EXPECT_EQ(bad.error(), (Error{.code = ErrorCode::kIo, .rule = "io.read", .message = "x is missing"}));
  EXPECT_THROW((void)bad.value(), InternalError);
}

TEST(Result, TellsTheExitCode) {
  EXPECT_EQ(exit_code(ErrorCode::kInvalidArgument), 2);
  EXPECT_EQ(exit_code(ErrorCode::kUnsupported), 2);
  EXPECT_EQ(exit_code(ErrorCode::kInvalidSchedule), 1);
  EXPECT_EQ(exit_code(ErrorCode::kIo), 3);
  EXPECT_EQ(exit_code(ErrorCode::kTimeout), 3);
}

TEST(Check, NamesPlaceConditionAndMessage) {
  try {
    PLAIT_CHECK(1 == 2, "row {}", 7);
    FAIL() << "did not throw";
  } catch (const InternalError& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("ids_test.cpp"), std::string::npos) << what;
    EXPECT_NE(what.find("1 == 2 does not hold: row 7"), std::string::npos) << what;
  }
}

}  // namespace
}  // namespace plait
