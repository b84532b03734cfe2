#pragma once

#include "plait/base/ids.h"
#include "plait/base/result.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace plait {

using BytesPerSecond = Quantity<struct BytesPerSecondTag, std::int64_t>;

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
