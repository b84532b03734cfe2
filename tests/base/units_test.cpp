#include "plait/base/units.h"

#include <gtest/gtest.h>

#include <limits>

namespace plait {
namespace {

TEST(Decimal, IsExactAndInLowestTerms) {
  const std::pair<const char*, Decimal> cases[] = {{"1", {1, 0}},
                                                   {"0", {0, 0}},
                                                   {"1.2", {12, 1}},
                                                   {"1.20", {12, 1}},
                                                   {"18.522", {18522, 3}},
                                                   {"-0.5", {-5, 1}},
                                                   {".5", {5, 1}},
                                                   {"3.", {3, 0}},
                                                   {"007", {7, 0}},
                                                   {"100", {100, 0}},
                                                   {"999999999999999999", {999'999'999'999'999'999, 0}}};
  for (const auto& [text, expected] : cases) {
    const auto result = parse_decimal(text);
    ASSERT_TRUE(result) << text << ": " << result.error().message;
    EXPECT_EQ(*result, expected) << text;
  }
}

TEST(Decimal, RefusesWhatIsNotOne) {
  for (const char* text : {"", "-", ".", "1e3", " 1", "1 ", "1,2", "1.2.3", "+1", "0x10", "nan", "inf",
                           "1000000000000000000", "0.0000000000000000001", "--1"}) {
    const auto result = parse_decimal(text);
    ASSERT_FALSE(result) << text;
    EXPECT_EQ(result.error().rule, "units.number");
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(Decimal, ScalesExactlyOrSaysWhyNot) {
  EXPECT_EQ(*scale_exactly({12, 1}, 10), 12);
  EXPECT_EQ(*scale_exactly({12, 1}, 5), 6);
  EXPECT_EQ(*scale_exactly({-5, 1}, 4), -2);
  EXPECT_EQ(scale_exactly({12, 1}, 3).error().rule, "units.inexact");
  EXPECT_EQ(scale_exactly({1, 0}, std::numeric_limits<std::int64_t>::max()).value(),
            std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(scale_exactly({2, 0}, std::numeric_limits<std::int64_t>::max()).error().rule, "units.overflow");
}

TEST(Assignments, KeepTheirOrder) {
  const auto result = parse_assignments("F=1,B=1.2,W=0.8");
  ASSERT_TRUE(result);
  const std::vector<NamedDecimal> expected{{"F", {1, 0}}, {"B", {12, 1}}, {"W", {8, 1}}};
  EXPECT_EQ(*result, expected);
}

TEST(Assignments, RefuseGapsAndRepeats) {
  for (const char* text : {"", "F", "F=", "=1", "F=1,", ",F=1", "F=1,F=2", "F=1;B=2", "F=one"})
    EXPECT_FALSE(parse_assignments(text)) << text;
}

TEST(Ticks, AreFineEnoughForEveryPlaceAndShare) {
  const Decimal values[] = {{1, 0}, {12, 1}, {18522, 3}};
  EXPECT_EQ(*ticks_per_unit(values, 6), 6000);
  EXPECT_EQ(*ticks_per_unit({}, 2), 2);
  const Decimal tiny[] = {{1, 18}};
  EXPECT_EQ(ticks_per_unit(tiny, 100).error().rule, "units.overflow");
}

TEST(Ticks, PrintAsDecimals) {
  EXPECT_EQ(print_ticks(25, 10), "2.5");
  EXPECT_EQ(print_ticks(330, 10), "33");
  EXPECT_EQ(print_ticks(-5, 2), "-2.5");
  EXPECT_EQ(print_ticks(1, 3), "0.333333");
  EXPECT_EQ(print_ticks(std::numeric_limits<std::int64_t>::max(), 1), "9223372036854775807");
}

TEST(Bytes, HaveBinaryAndDecimalUnits) {
  EXPECT_EQ(*parse_bytes("80GiB"), Bytes{std::int64_t{80} << 30});
  EXPECT_EQ(*parse_bytes("512MiB"), Bytes{std::int64_t{512} << 20});
  EXPECT_EQ(*parse_bytes("1.5kB"), Bytes{1500});
  EXPECT_EQ(*parse_bytes("4096"), Bytes{4096});
  EXPECT_EQ(*parse_bytes("7B"), Bytes{7});
  for (const char* text : {"", "GiB", "80gib", "80 GiB", "-1GiB", "80GiB/s", "9999999999TiB", "1e9"})
    EXPECT_FALSE(parse_bytes(text)) << text;
}

TEST(Bandwidth, IsInBytesOrBits) {
  EXPECT_EQ(*parse_bandwidth("25GB/s"), BytesPerSecond{25'000'000'000});
  EXPECT_EQ(*parse_bandwidth("200Gb/s"), BytesPerSecond{25'000'000'000});
  EXPECT_EQ(*parse_bandwidth("1MiB/s"), BytesPerSecond{1 << 20});
  for (const char* text : {"", "25GB", "25/s", "0GB/s", "-1GB/s", "GB/s"}) EXPECT_FALSE(parse_bandwidth(text)) << text;
}

TEST(Duration, HasUnitsFromNanosecondsToHours) {
  EXPECT_EQ(*parse_duration("30s"), Nanos{30'000'000'000});
  EXPECT_EQ(*parse_duration("1.5ms"), Nanos{1'500'000});
  EXPECT_EQ(*parse_duration("2h"), Nanos{7'200'000'000'000});
  for (const char* text : {"", "30", "s", "30sec", "-1s", "99999999999h"}) EXPECT_FALSE(parse_duration(text)) << text;
}

TEST(Printing, KeepsThreeDigits) {
  EXPECT_EQ(print_bytes(Bytes{std::int64_t{80} << 30}), "80.0 GiB");
  EXPECT_EQ(print_bytes(Bytes{1000}), "1000 B");
  EXPECT_EQ(print_bytes(Bytes{1536}), "1.50 KiB");
  EXPECT_EQ(print_duration(Nanos{999}), "999 ns");
  EXPECT_EQ(print_duration(Nanos{1'500'000}), "1.50 ms");
  EXPECT_EQ(print_duration(Nanos{12'000'000'000}), "12.0 s");
  EXPECT_EQ(print_bandwidth(BytesPerSecond{25'000'000'000}), "25.0 GB/s");
}

}  // namespace
}  // namespace plait
