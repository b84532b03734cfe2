#pragma once

#include "plait/base/ids.h"
#include "plait/base/result.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace plait {

using BytesPerSecond = Quantity<struct BytesPerSecondTag, std::int64_t>;

/// An exact decimal number, digits / 10^scale, in lowest terms ("1.20" is 12 / 10).
struct Decimal {
  std::int64_t digits = 0;
  int scale = 0;
  friend bool operator==(const Decimal&, const Decimal&) = default;
};

/// "1", "-0.5", "18.522"; up to 18 digits. No exponents, no blanks.
/// \errors kInvalidArgument "units.number"
Result<Decimal> parse_decimal(std::string_view text);

/// value x factor as an integer, where that is exact.
/// \errors kInvalidArgument "units.inexact" or "units.overflow"
Result<std::int64_t> scale_exactly(Decimal value, std::int64_t factor);

/// One "name=number" of a list.
struct NamedDecimal {
  std::string name;
  Decimal value;
  friend bool operator==(const NamedDecimal&, const NamedDecimal&) = default;
};

/// "F=1,B=1.2,W=0.8": each name once, in the order given.
/// \errors kInvalidArgument "units.assignments"
Result<std::vector<NamedDecimal>> parse_assignments(std::string_view text);

/// The smallest number of ticks in a unit for which every value divided by `divisor` is a whole number of ticks, whatever
/// the values' last digits are: 10^(most decimal places) x divisor.
/// \errors kInvalidArgument "units.overflow"
Result<std::int64_t> ticks_per_unit(std::span<const Decimal> values, std::int64_t divisor);

/// Prints ticks as a decimal number of units, exactly where it ends within six places: 25 ticks of 10 a unit are "2.5".
std::string print_ticks(std::int64_t ticks, std::int64_t ticks_per_unit);

/// "80GiB", "512MiB", "1.5kB", "4096B", "4096"; binary and decimal prefixes up to T.
/// \errors kInvalidArgument "units.bytes"
Result<Bytes> parse_bytes(std::string_view text);

/// "25GB/s", "600MiB/s", "200Gb/s" (bits).
/// \errors kInvalidArgument "units.bandwidth"
Result<BytesPerSecond> parse_bandwidth(std::string_view text);

/// "30s", "1.5ms", "200us", "12ns", "5min", "2h".
/// \errors kInvalidArgument "units.duration"
Result<Nanos> parse_duration(std::string_view text);

/// Three significant digits and a unit: "80.0 GiB", "1.50 ms", "25.0 GB/s".
std::string print_bytes(Bytes bytes);
std::string print_duration(Nanos nanos);
std::string print_bandwidth(BytesPerSecond bandwidth);

}  // namespace plait
