#include "plait/base/units.h"

#include <gtest/gtest.h>

#include <limits>

namespace plait {
namespace {

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
