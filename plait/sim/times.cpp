#include "plait/sim/times.h"

#include "plait/sim/wide.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <limits>
#include <map>
#include <numeric>

namespace plait {
namespace {

constexpr int kMostDigits = 18;
constexpr std::int64_t kMostTicksPerUnit = std::int64_t{1} << 40;

Error bad_number(std::string_view text) {
  return make_error(ErrorCode::kInvalidArgument, "times.number",
                    "'{}' is not a time; expected a decimal number such as 1.25 with at most {} digits", text,
                    kMostDigits);
}

std::int64_t power_of_ten(int exponent) {
  std::int64_t power = 1;
  for (int i = 0; i < exponent; ++i) power *= 10;
  return power;
}

Result<> set_time(TimesSpec& times, std::map<std::string, int>& seen, const std::string& key, std::string_view text) {
  const std::map<std::string, Decimal*> fields = {
      {"F", &times.forward},   {"B", &times.backward}, {"W", &times.weight},
      {"pre", &times.pre},     {"attn", &times.attn},  {"post", &times.post},
      {"embed", &times.embed}, {"head", &times.head},  {"latency", &times.latency}};
  const auto field = fields.find(key);
  if (field == fields.end())
    return make_error(ErrorCode::kInvalidArgument, "times.key",
                      "unknown time '{}'; expected F, B, W, or pre, attn, post, embed, head", key);
  if (seen[key]++ > 0) return make_error(ErrorCode::kInvalidArgument, "times.key", "time '{}' is given twice", key);
  PLAIT_TRY(*field->second, parse_decimal(text));
  if (field->second->digits < 0)
    return make_error(ErrorCode::kInvalidArgument, "times.negative", "time {}={} is negative", key, text);
  return {};
}

Result<> finish(TimesSpec& times, const std::map<std::string, int>& seen) {
  const auto has = [&](const char* key) { return seen.count(key) > 0; };
  const bool any_op = has("F") || has("B") || has("W");
  const bool any_part = has("pre") || has("attn") || has("post") || has("embed") || has("head");
  if (any_op && any_part)
    return make_error(ErrorCode::kInvalidArgument, "times.mixed",
                      "times by op (F, B, W) and by part (pre, attn, post) do not mix");
  for (const char* key : {"F", "B", "W"})
    if (!any_part && !has(key))
      return make_error(ErrorCode::kInvalidArgument, "times.missing", "time '{}' is missing; give F, B and W", key);
  for (const char* key : {"pre", "attn", "post"})
    if (any_part && !has(key))
      return make_error(ErrorCode::kInvalidArgument, "times.missing", "time '{}' is missing; give pre, attn and post",
                        key);
  times.form = any_part ? TimesSpec::Form::kParts : TimesSpec::Form::kOps;
  return {};
}

/// Multiplies two whole numbers and divides exactly.
Result<std::int64_t> exact(Int128 product, std::int64_t divisor, std::string_view what) {
  if (product % divisor != 0)
    return make_error(ErrorCode::kInvalidArgument, "times.inexact",
                      "{} is not a whole number of ticks; use more ticks per unit", what);
  const Int128 value = product / divisor;
  if (value > std::numeric_limits<std::int64_t>::max())
    return make_error(ErrorCode::kInvalidArgument, "times.overflow", "{} is longer than 2^63 ticks; use a coarser unit",
                      what);
  return static_cast<std::int64_t>(value);
}

struct PartTimes {
  std::int64_t forward = 0, backward = 0, weight = 0, again = 0;
};

}  // namespace

Result<Decimal> parse_decimal(std::string_view text) {
  std::size_t at = 0;
  bool negative = false;
  if (at < text.size() && (text[at] == '+' || text[at] == '-')) negative = text[at++] == '-';
  Decimal value;
  int digits = 0;
  bool any = false;
  bool in_fraction = false;
  for (; at < text.size() &&
         (std::isdigit(static_cast<unsigned char>(text[at])) != 0 || (text[at] == '.' && !in_fraction));
       ++at) {
    if (text[at] == '.') {
      in_fraction = true;
      continue;
    }
    any = true;
    if (value.digits != 0 || text[at] != '0') ++digits;
    if (digits > kMostDigits) return bad_number(text);
    value.digits = value.digits * 10 + (text[at] - '0');
    if (in_fraction) ++value.decimals;
  }
  if (!any) return bad_number(text);
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    bool down = false;
    if (at < text.size() && (text[at] == '+' || text[at] == '-')) down = text[at++] == '-';
    const std::size_t first = at;
    int exponent = 0;
    for (; at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])) != 0 && at - first < 3; ++at)
      exponent = exponent * 10 + (text[at] - '0');
    if (at == first) return bad_number(text);
    value.decimals += down ? exponent : -exponent;
  }
  if (at != text.size()) return bad_number(text);
  while (value.decimals > 0 && value.digits % 10 == 0) {
    value.digits /= 10;
    --value.decimals;
  }
  if (value.digits == 0) value.decimals = 0;
  for (; value.decimals < 0; ++value.decimals) {
    if (value.digits > std::numeric_limits<std::int64_t>::max() / 10) return bad_number(text);
    value.digits *= 10;
  }
  if (value.decimals > kMostDigits) return bad_number(text);
  if (negative) value.digits = -value.digits;
  return value;
}

Result<TimesSpec> parse_times(std::string_view text) {
  TimesSpec times;
  std::map<std::string, int> seen;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view entry = text.substr(0, comma);
    const std::size_t equals = entry.find('=');
    if (equals == std::string_view::npos)
      return make_error(ErrorCode::kInvalidArgument, "times.key",
                        "'{}' is not KEY=TIME; expected times such as F=1,B=1,W=1", entry);
    PLAIT_TRY_VOID(set_time(times, seen, std::string(entry.substr(0, equals)), entry.substr(equals + 1)));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  PLAIT_TRY_VOID(finish(times, seen));
  return times;
}

namespace {

/// Reads the flat JSON object of times; numbers are kept as written, so that decimals stay exact.
class TimesReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::string problem;
  std::vector<std::pair<std::string, std::string>> numbers;  ///< key, text
  std::vector<std::pair<std::string, std::string>> entries;  ///< list, text

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_integer(std::int64_t value) override { return take(std::to_string(value)); }
  bool number_unsigned(std::uint64_t value) override { return take(std::to_string(value)); }
  bool number_float(double, const std::string& text) override { return take(text); }
  bool string(std::string&) override { return refuse("a string"); }
  bool binary(nlohmann::json::binary_t&) override { return refuse("binary data"); }
  bool start_object(std::size_t) override { return depth_++ == 0 ? true : refuse("an object inside"); }
  bool key(std::string& name) override {
    key_ = name;
    return true;
  }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override {
    if (depth_ == 0 || in_list_) return refuse("a list where none is expected");
    in_list_ = true;
    return true;
  }
  bool end_array() override {
    in_list_ = false;
    return true;
  }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::detail::exception&) override {
    return refuse("a syntax error at byte " + std::to_string(at));
  }

 private:
  bool take(std::string text) {
    if (depth_ == 0) return refuse("a bare number");
    (in_list_ ? entries : numbers).emplace_back(key_, std::move(text));
    return true;
  }
  bool refuse(std::string what) {
    if (problem.empty()) problem = std::move(what);
    return false;
  }
  std::string key_;
  int depth_ = 0;
  bool in_list_ = false;
};

}  // namespace

Result<TimesSpec> parse_times_json(std::string_view json) {
  TimesReader reader;
  if (!nlohmann::json::sax_parse(json, &reader))
    return make_error(ErrorCode::kInvalidArgument, "times.json",
                      "times in JSON contain {}; expected an object of numbers and of the lists slices and stages",
                      reader.problem);
  TimesSpec times;
  std::map<std::string, int> seen;
  for (const auto& [key, text] : reader.numbers) PLAIT_TRY_VOID(set_time(times, seen, key, text));
  for (const auto& [list, text] : reader.entries) {
    if (list != "slices" && list != "stages")
      return make_error(ErrorCode::kInvalidArgument, "times.key", "unknown list '{}'; expected slices or stages", list);
    PLAIT_TRY(const Decimal entry, parse_decimal(text));
    if (entry.digits < 0)
      return make_error(ErrorCode::kInvalidArgument, "times.negative", "an entry of {} is negative: {}", list, text);
    (list == "slices" ? times.slices : times.stages).push_back(entry);
  }
  PLAIT_TRY_VOID(finish(times, seen));
  return times;
}

Result<std::int64_t> ticks_per_unit(const TimesSpec& times, std::int64_t parts) {
  int decimals = times.latency.decimals;
  if (times.form == TimesSpec::Form::kOps) {
    decimals = std::max({decimals, times.forward.decimals, times.backward.decimals, times.weight.decimals});
  } else {
    decimals = std::max({decimals, times.pre.decimals, times.attn.decimals, times.post.decimals, times.embed.decimals,
                         times.head.decimals});
  }
  int factor_decimals = 0;
  int slice_decimals = 0;
  for (const Decimal& factor : times.stages) factor_decimals = std::max(factor_decimals, factor.decimals);
  for (const Decimal& share : times.slices) slice_decimals = std::max(slice_decimals, share.decimals);
  decimals += factor_decimals + slice_decimals;
  constexpr int kMostDecimals = 12;
  if (decimals > kMostDecimals || parts < 1 ||
      parts > kMostTicksPerUnit / power_of_ten(std::min(decimals, kMostDecimals)))
    return make_error(ErrorCode::kInvalidArgument, "times.too_fine",
                      "times with {} decimals over {} chunks and slices need more than 2^40 ticks per unit; round them",
                      decimals, parts);
  return power_of_ten(decimals) * parts;
}

Result<std::int64_t> to_ticks(const Decimal& value, std::int64_t ticks) {
  return exact(static_cast<Int128>(value.digits) * ticks, power_of_ten(value.decimals), "a time");
}

Result<CostModel> abstract_costs(const Layout& layout, const TimesSpec& times, std::int64_t ticks) {
  if (ticks < 1)
    return make_error(ErrorCode::kInvalidArgument, "times.too_fine", "{} ticks per unit; at least 1 is needed", ticks);
  if (!times.slices.empty() && static_cast<int>(times.slices.size()) != layout.num_slices)
    return make_error(ErrorCode::kInvalidArgument, "times.table", "{} shares for {} slices", times.slices.size(),
                      layout.num_slices);
  if (!times.stages.empty() && static_cast<int>(times.stages.size()) != layout.num_stages())
    return make_error(ErrorCode::kInvalidArgument, "times.table", "{} factors for {} stages", times.stages.size(),
                      layout.num_stages());
  const bool by_op = times.form == TimesSpec::Form::kOps;
  if (by_op && layout.recompute == Recompute::kNoAttention)
    return make_error(ErrorCode::kInvalidArgument, "times.recompute",
                      "recompute without attention needs times by part (pre, attn, post)");
  CostModel costs = zero_costs(layout);
  costs.ticks_per_unit = ticks;
  PLAIT_TRY(costs.latency, to_ticks(times.latency, ticks));

  // Times of whole stages for one whole micro-batch, each over `denominator` ticks.
  std::vector<PartTimes> stages(layout.stages.size());
  std::int64_t denominator = 1;
  if (by_op) {
    PartTimes share;
    PLAIT_TRY(share.forward, to_ticks(times.forward, ticks));
    PLAIT_TRY(share.backward, to_ticks(times.backward, ticks));
    PLAIT_TRY(share.weight, to_ticks(times.weight, ticks));
    for (std::int64_t* t : {&share.forward, &share.backward, &share.weight}) {
      PLAIT_TRY(*t, exact(static_cast<Int128>(*t) * layout.num_ranks, 1, "an op"));
    }
    share.again = share.forward;
    denominator = layout.num_stages();
    std::fill(stages.begin(), stages.end(), share);
  } else {
    PLAIT_TRY(const std::int64_t pre, to_ticks(times.pre, ticks));
    PLAIT_TRY(const std::int64_t attn, to_ticks(times.attn, ticks));
    PLAIT_TRY(const std::int64_t post, to_ticks(times.post, ticks));
    PLAIT_TRY(const std::int64_t embed, to_ticks(times.embed, ticks));
    PLAIT_TRY(const std::int64_t head, to_ticks(times.head, ticks));
    constexpr std::int64_t kMostPart = std::numeric_limits<std::int64_t>::max() / 64;
    for (const std::int64_t part : {pre, attn, post, embed, head}) {
      if (part > kMostPart / num_parts(layout.num_layers))
        return make_error(ErrorCode::kInvalidArgument, "times.overflow",
                          "a part of {} ticks in each of {} layers is too long; use a coarser unit", part,
                          layout.num_layers);
    }
    denominator = 2;  // half of pre is the norm, half the projection, where both are before the cut
    for (std::size_t s = 0; s < stages.size(); ++s) {
      PartTimes& stage = stages[s];
      for (int part = layout.stages[s].parts.begin; part < layout.stages[s].parts.end; ++part) {
        switch (part_at(layout.num_layers, part).kind) {
          case PartKind::kNorm:
          case PartKind::kQkv: {
            const bool norm = part_at(layout.num_layers, part).kind == PartKind::kNorm;
            const bool cut = norm ? part + 1 == layout.stages[s].parts.end : part == layout.stages[s].parts.begin;
            const std::int64_t halves = cut ? (norm ? 2 : 0) : 1;
            stage.forward += halves * pre;
            stage.backward += halves * pre;
            stage.weight += halves * pre;
            stage.again += halves * pre;
            break;
          }
          case PartKind::kAttn:
            stage.forward += 2 * attn;
            stage.backward += 4 * attn;
            if (layout.recompute != Recompute::kNoAttention) stage.again += 2 * attn;
            break;
          case PartKind::kPost:
            stage.forward += 2 * post;
            stage.backward += 2 * post;
            stage.weight += 2 * post;
            stage.again += 2 * post;
            break;
          case PartKind::kEmbed:
            stage.forward += 2 * embed;
            stage.backward += 2 * embed;
            stage.weight += 2 * embed;
            stage.again += 2 * embed;
            break;
          case PartKind::kHead:
            stage.forward += 2 * head;
            stage.backward += 2 * head;
            stage.weight += 2 * head;
            stage.again += 2 * head;
            break;
        }
      }
    }
  }
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const Decimal factor = times.stages.empty() ? Decimal{.digits = 1} : times.stages[s];
    for (int q = 0; q < layout.num_slices; ++q) {
      const Decimal share = times.slices.empty() ? Decimal{.digits = 1} : times.slices[static_cast<std::size_t>(q)];
      const auto scale = [&](std::int64_t value) -> Result<std::int64_t> {
        PLAIT_TRY(const std::int64_t whole,
                  exact(static_cast<Int128>(value) * factor.digits, power_of_ten(factor.decimals), "a stage's time"));
        const Int128 parts = static_cast<Int128>(denominator) *
                             (times.slices.empty() ? layout.num_slices : power_of_ten(share.decimals));
        if (parts > std::numeric_limits<std::int64_t>::max())
          return make_error(ErrorCode::kInvalidArgument, "times.too_fine", "the shares of the slices are too fine");
        return exact(static_cast<Int128>(whole) * share.digits, static_cast<std::int64_t>(parts), "an op's time");
      };
      PLAIT_TRY(const std::int64_t forward, scale(stages[s].forward));
      PLAIT_TRY(const std::int64_t backward, scale(stages[s].backward));
      PLAIT_TRY(const std::int64_t weight, scale(stages[s].weight));
      PLAIT_TRY(const std::int64_t again, scale(stages[s].again));
      PLAIT_TRY(const std::int64_t both, exact(static_cast<Int128>(backward) + weight, 1, "a backward"));
      const StageId stage{static_cast<std::int32_t>(s)};
      const SliceId slice{q};
      costs.op(OpKind::kForward, stage, slice).ticks = forward;
      costs.op(OpKind::kRecompute, stage, slice).ticks = again;
      costs.op(OpKind::kBackwardInput, stage, slice).ticks = backward;
      costs.op(OpKind::kBackwardWeight, stage, slice).ticks = weight;
      costs.op(OpKind::kBackward, stage, slice).ticks = both;
    }
  }
  return costs;
}

Result<std::int64_t> exact_ticks(const Layout& layout, const TimesSpec& times) {
  // A stage takes p/S of a 1/p share, a slice 1/k of that; by part, a stage may end between norm and qkv.
  const std::int64_t chunks = layout.num_stages() / std::gcd(layout.num_stages(), layout.num_ranks);
  return ticks_per_unit(times, std::lcm<std::int64_t>(2, chunks) * layout.num_slices);
}

Result<CostModel> abstract_costs(const Layout& layout, const TimesSpec& times) {
  PLAIT_TRY(const std::int64_t ticks, exact_ticks(layout, times));
  return abstract_costs(layout, times, ticks);
}

}  // namespace plait
