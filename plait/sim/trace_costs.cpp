#include "plait/sim/trace_costs.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace plait {
namespace {

using Json = nlohmann::json;
constexpr std::int64_t kNanosPerSecond = 1'000'000'000;

Error bad_trace(std::string_view why) {
  return make_error(ErrorCode::kIo, "costs.trace", "--costs: {}; expected the trace.json of a run of plait train", why);
}

struct OpKey {
  std::string kind;
  std::int64_t stage;
  std::int64_t slice;
  friend auto operator<=>(const OpKey&, const OpKey&) = default;
};

/// Times of one step, in nanoseconds.
struct Measured {
  std::map<OpKey, std::vector<std::int64_t>> ops;
  std::map<std::string, std::int64_t> steps;  ///< by group
};

std::optional<std::int64_t> whole(const Json& entry, const char* key) {
  const auto found = entry.find(key);
  if (found == entry.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<std::int64_t>();
}

Result<Measured> read(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("format", Json()) != Json("plait-trace")) return bad_trace("no trace");
  if (!json.contains("ops") || !json["ops"].is_array() || !json.contains("transfers") || !json["transfers"].is_array())
    return bad_trace("no ops");
  Measured measured;
  for (const char* list : {"ops", "transfers"}) {
    for (const Json& entry : json[list]) {
      if (!entry.is_object() || !entry.contains("kind") || !entry["kind"].is_string()) return bad_trace("no kind");
      const auto start = whole(entry, "start");
      const auto end = whole(entry, "end");
      if (!start || !end || *end < *start) return bad_trace("an entry without start and end");
      const auto kind = entry["kind"].get<std::string>();
      if (const auto stage = whole(entry, "stage")) {
        measured.ops[{kind, *stage, whole(entry, "slice").value_or(0)}].push_back(*end - *start);
      } else if (kind == kind_name(Step{}) && entry.contains("group") && entry["group"].is_string()) {
        std::int64_t& longest = measured.steps[entry["group"].get<std::string>()];
        longest = std::max(longest, *end - *start);
      }
    }
  }
  return measured;
}

std::int64_t median(std::vector<std::int64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Result<CostModel> trace_costs(const Program& program, std::string_view trace) {
  PLAIT_TRY(Measured measured, read(trace));
  const Layout& layout = program.layout;
  CostModel costs = zero_costs(layout);
  costs.ticks_per_unit = kNanosPerSecond;
  costs.unit = "s";
  for (const Row& row : program.rows) {
    for (const Instr& instr : row) {
      const Op* op = std::get_if<Op>(&instr);
      if (op == nullptr) continue;
      const auto found = measured.ops.find({std::string(to_string(op->kind)), op->stage.value(), op->slice.value()});
      if (found == measured.ops.end())
        return make_error(ErrorCode::kInvalidArgument, "costs.missing",
                          "--costs: the trace has no {} of stage {}, slice {}; it is of a run with other stages",
                          to_string(op->kind), op->stage.value(), op->slice.value());
      std::int64_t& ticks = costs.op(op->kind, op->stage, op->slice).ticks;
      if (ticks == 0) ticks = median(found->second);
    }
  }
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    const auto found = measured.steps.find(layout.groups[g].name);
    if (found != measured.steps.end()) costs.groups[g].step_ticks = found->second;
  }
  return costs;
}

}  // namespace plait
