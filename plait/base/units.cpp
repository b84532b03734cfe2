#include "plait/base/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

namespace plait {
namespace {

/// For products of two 64-bit numbers.
__extension__ using Wide = __int128;

constexpr int kMaxDigits = 18;  // the most that always fit 64 bits

/// 10^exponent for exponents up to kMaxDigits.
std::int64_t power_of_ten(int exponent) {
  std::int64_t power = 1;
  for (int i = 0; i < exponent; ++i) power *= 10;
  return power;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

struct Unit {
  std::string_view name;
  std::int64_t factor;
};

constexpr std::int64_t kKi = 1024;
constexpr std::array kByteUnits = {Unit{"TiB", kKi* kKi* kKi* kKi},
                                   Unit{"GiB", kKi* kKi* kKi},
                                   Unit{"MiB", kKi* kKi},
                                   Unit{"KiB", kKi},
                                   Unit{"TB", 1'000'000'000'000},
                                   Unit{"GB", 1'000'000'000},
                                   Unit{"MB", 1'000'000},
                                   Unit{"kB", 1'000},
                                   Unit{"KB", 1'000},
                                   Unit{"B", 1},
                                   Unit{"", 1}};
constexpr std::array kBitUnits = {Unit{"Tb", 1'000'000'000'000}, Unit{"Gb", 1'000'000'000}, Unit{"Mb", 1'000'000},
                                  Unit{"kb", 1'000}, Unit{"b", 1}};
constexpr std::array kTimeUnits = {Unit{"h", 3'600'000'000'000}, Unit{"min", 60'000'000'000}, Unit{"s", 1'000'000'000},
                                   Unit{"ms", 1'000'000},        Unit{"us", 1'000},           Unit{"ns", 1}};

/// A number and its unit, at the first character that is not part of a number.
struct Split {
  std::string_view number;
  std::string_view unit;
};

Split split_unit(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size() && (is_digit(text[at]) || text[at] == '.' || text[at] == '-')) ++at;
  return {.number = text.substr(0, at), .unit = text.substr(at)};
}

const Unit* find_unit(std::span<const Unit> units, std::string_view name) {
  const auto found = std::find_if(units.begin(), units.end(), [&](const Unit& unit) { return unit.name == name; });
  return found == units.end() ? nullptr : &*found;
}

/// "1.5" x factor / divisor, rounded down; nothing if it is not a plain decimal number or does not fit.
std::optional<std::int64_t> scaled(std::string_view number, std::int64_t factor, std::int64_t divisor = 1) {
  std::int64_t digits = 0;
  int num_digits = 0;
  int places = 0;
  bool in_fraction = false;
  for (const char c : number) {
    if (c == '.' && !in_fraction) {
      in_fraction = true;
      continue;
    }
    if (!is_digit(c) || ++num_digits > kMaxDigits) return {};
    digits = digits * 10 + (c - '0');
    if (in_fraction) ++places;
  }
  if (num_digits == 0) return {};
  const auto product = static_cast<Wide>(digits) * factor / power_of_ten(places) / divisor;
  if (product > std::numeric_limits<std::int64_t>::max()) return {};
  return static_cast<std::int64_t>(product);
}

/// Three significant digits of value / factor.
std::string three_digits(double value) {
  const int before = value < 10 ? 1 : value < 100 ? 2 : 3;
  return fmt::format("{:.{}f}", value, 3 - before);
}

}  // namespace

std::string print_ticks(std::int64_t ticks, std::int64_t ticks_per_unit) {
  PLAIT_CHECK(ticks_per_unit > 0, "{} ticks a unit", ticks_per_unit);
  constexpr std::int64_t kMillion = 1'000'000;
  const auto magnitude = static_cast<Wide>(ticks < 0 ? -static_cast<Wide>(ticks) : ticks);
  const Wide millionths = (magnitude * kMillion + ticks_per_unit / 2) / ticks_per_unit;
  std::string text = fmt::format("{}{}", ticks < 0 ? "-" : "", static_cast<std::int64_t>(millionths / kMillion));
  std::string places = fmt::format("{:06}", static_cast<std::int64_t>(millionths % kMillion));
  while (!places.empty() && places.back() == '0') places.pop_back();
  return places.empty() ? text : text + "." + places;
}

Result<Bytes> parse_bytes(std::string_view text) {
  const Split split = split_unit(text);
  const Unit* unit = find_unit(kByteUnits, split.unit);
  const auto value = unit == nullptr ? std::nullopt : scaled(split.number, unit->factor);
  if (!value)
    return make_error(ErrorCode::kInvalidArgument, "units.bytes",
                      "'{}' is not a size like 80GiB, 512MiB, 1.5kB or 4096", text);
  return Bytes{*value};
}

Result<BytesPerSecond> parse_bandwidth(std::string_view text) {
  const Split split = split_unit(text);
  std::optional<std::int64_t> value;
  constexpr std::string_view kPerSecond = "/s";
  if (split.unit.ends_with(kPerSecond) && split.unit.size() > kPerSecond.size()) {
    const std::string_view amount = split.unit.substr(0, split.unit.size() - kPerSecond.size());
    constexpr int kBitsPerByte = 8;
    if (const Unit* bytes = find_unit(kByteUnits, amount)) {
      value = scaled(split.number, bytes->factor);
    } else if (const Unit* bits = find_unit(kBitUnits, amount)) {
      value = scaled(split.number, bits->factor, kBitsPerByte);
    }
  }
  if (!value || *value == 0)
    return make_error(ErrorCode::kInvalidArgument, "units.bandwidth",
                      "'{}' is not a bandwidth like 25GB/s, 600MiB/s or 200Gb/s", text);
  return BytesPerSecond{*value};
}

Result<Nanos> parse_duration(std::string_view text) {
  const Split split = split_unit(text);
  const Unit* unit = find_unit(kTimeUnits, split.unit);
  const auto value = unit == nullptr ? std::nullopt : scaled(split.number, unit->factor);
  if (!value)
    return make_error(ErrorCode::kInvalidArgument, "units.duration", "'{}' is not a time like 30s, 1.5ms, 200us or 2h",
                      text);
  return Nanos{*value};
}

std::string print_bytes(Bytes bytes) {
  if (std::abs(bytes.value()) < kKi) return fmt::format("{} B", bytes.value());
  auto value = static_cast<double>(bytes.value());
  std::string_view unit = "B";
  for (const std::string_view larger : {"KiB", "MiB", "GiB", "TiB"}) {
    if (std::abs(value) < static_cast<double>(kKi)) break;
    value /= static_cast<double>(kKi);
    unit = larger;
  }
  return fmt::format("{} {}", three_digits(value), unit);
}

std::string print_duration(Nanos nanos) {
  const std::int64_t magnitude = std::abs(nanos.value());
  if (magnitude < 1'000) return fmt::format("{} ns", nanos.value());
  const auto value = static_cast<double>(nanos.value());
  if (magnitude < 1'000'000) return fmt::format("{} us", three_digits(value / 1e3));
  if (magnitude < 1'000'000'000) return fmt::format("{} ms", three_digits(value / 1e6));
  return fmt::format("{} s", three_digits(value / 1e9));
}

std::string print_bandwidth(BytesPerSecond bandwidth) {
  auto value = static_cast<double>(bandwidth.value());
  std::string_view unit = "B/s";
  for (const std::string_view larger : {"kB/s", "MB/s", "GB/s", "TB/s"}) {
    if (value < 1e3) break;
    value /= 1e3;
    unit = larger;
  }
  return fmt::format("{} {}", three_digits(value), unit);
}

}  // namespace plait
