#pragma once

#include "plait/base/result.h"
#include "plait/ir/program.h"
#include "plait/sim/cost_model.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace plait {

/// A decimal number, exact: digits / 10^decimals.
struct Decimal {
  std::int64_t digits = 0;
  int decimals = 0;
  friend bool operator==(const Decimal&, const Decimal&) = default;
};

/// "12", "0.601", "1e-3", "+2.5E2". At most 18 significant digits. Refuses anything else, "nan" and "inf" included.
/// \errors kInvalidArgument "times.number"
Result<Decimal> parse_decimal(std::string_view text);

/// `--times` as given. Either the three times of a 1/p share of the model (F, B, W) or forward times per layer and part.
struct TimesSpec {
  enum class Form : std::uint8_t { kOps, kParts };
  Form form = Form::kOps;
  Decimal forward{.digits = 1}, backward{.digits = 1}, weight{.digits = 1};  ///< kOps
  Decimal pre, attn, post, embed, head;                                      ///< kParts
  Decimal latency;                                                           ///< of every transfer between ranks
  std::vector<Decimal> slices;  ///< optional share of each slice; empty: 1/k each
  std::vector<Decimal> stages;  ///< optional factor of each stage; empty: 1 each
  friend bool operator==(const TimesSpec&, const TimesSpec&) = default;
};

/// "F=1,B=1.2,W=0.8" or "pre=0.5,attn=4,post=0.5[,embed=..][,head=..]". All three must be there, none negative.
/// \errors kInvalidArgument "times.*", naming the key
Result<TimesSpec> parse_times(std::string_view text);

/// The same from JSON: {"F": 1, "B": 1, "W": 1} or {"pre": .., "attn": .., "post": ..}, and optionally "latency",
/// "slices": [share, ...], "stages": [factor, ...]. Numbers keep their decimal digits.
/// \errors kInvalidArgument "times.*"
Result<TimesSpec> parse_times_json(std::string_view json);

/// Ticks in one unit so that every time, and 1/`parts` of it (chunks x slices), is a whole number of ticks.
/// \errors kInvalidArgument "times.too_fine" when that passes 2^40
Result<std::int64_t> ticks_per_unit(const TimesSpec& times, std::int64_t parts);

/// digits * ticks_per_unit / 10^decimals. \errors kInvalidArgument "times.overflow", "times.inexact"
Result<std::int64_t> to_ticks(const Decimal& value, std::int64_t ticks_per_unit);

/// The coarsest ticks in which every op of the layout takes a whole number of them.
/// \errors those of ticks_per_unit
Result<std::int64_t> exact_ticks(const Layout& layout, const TimesSpec& times);

/// Abstract costs of a layout. With times by op a stage takes p/S and a slice 1/k (or its share) of F, B, W; with times by
/// part a stage takes the sum of its parts: `pre` (norm and qkv; where a stage is cut between them the norm alone, and `attn`
/// covers the projection that went there) and `post` have
/// B = W = F, `attn` has B = 2F and W = 0. BW = B + W. R takes the forward again; without that of attention where the layout
/// recomputes without attention. Values have no bytes.
///
/// \errors kInvalidArgument "times.*": a time is not a whole number of ticks, or too large; "times.table": a list of the
///         wrong length; "times.recompute": no-attention without times by part
Result<CostModel> abstract_costs(const Layout& layout, const TimesSpec& times, std::int64_t ticks_per_unit);

/// abstract_costs with exact_ticks.
Result<CostModel> abstract_costs(const Layout& layout, const TimesSpec& times);

}  // namespace plait
