#include "plait/sim/host.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace plait::host {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "plait-host";
constexpr std::array<const char*, kNumPartKinds> kParts = {"embed", "norm", "qkv", "attn", "post", "head"};
constexpr std::array<const char*, kNumPhases> kPhases = {"forward", "forward_only", "backward", "weight", "both"};
constexpr std::array<const char*, 3> kProducts = {"forward", "backward", "weight"};
constexpr double kMostNumber = 1e18;

Json as_json(const Grid& grid) {
  return {{"axes", grid.axes}, {"values", grid.values}};
}

/// Reads and keeps the first problem, so that the reading code stays a list of keys.
class Reader {
 public:
  const Json& object(const Json& in, const std::string& key) {
    static const Json kEmpty = Json::object();
    const auto found = in.find(key);
    if (found != in.end() && found->is_object()) return *found;
    complain("\"" + key + "\" is missing");
    return kEmpty;
  }
  double number(const Json& in, const std::string& key) {
    const auto found = in.find(key);
    if (found == in.end()) {
      complain("\"" + key + "\" is missing");
      return 0;
    }
    return value(*found, key);
  }
  std::string text(const Json& in, const std::string& key) {
    const auto found = in.find(key);
    if (found != in.end() && found->is_string() && !found->get<std::string>().empty()) return found->get<std::string>();
    complain("\"" + key + "\" is missing");
    return "";
  }
  Grid grid(const Json& in, const std::string& key, std::size_t dimensions) {
    const Json& json = object(in, key);
    Grid grid;
    if (!json.contains("axes") || !json["axes"].is_array() || !json.contains("values") || !json["values"].is_array()) {
      complain("\"" + key + "\" has no axes and values");
      return grid;
    }
    for (const Json& entry : json["values"]) grid.values.push_back(value(entry, key));
    std::size_t points = 1;
    for (const Json& axis : json["axes"]) {
      std::vector<double>& points_of = grid.axes.emplace_back();
      for (const Json& entry : axis) points_of.push_back(value(entry, key));
      const bool ascends =
          std::adjacent_find(points_of.begin(), points_of.end(), std::greater_equal<>()) == points_of.end();
      if (points_of.empty() || points_of.front() <= 0 || !ascends)
        complain("an axis of \"" + key + "\" does not ascend");
      points *= points_of.size();
    }
    const bool empty = grid.axes.empty() && grid.values.empty();  // a phase that takes no time
    if (!empty && (grid.axes.size() != dimensions || grid.values.size() != points))
      complain("\"" + key + "\" has " + std::to_string(grid.values.size()) + " values for its axes");
    return grid;
  }
  void complain(std::string what) {
    if (problem.empty()) problem = std::move(what);
  }

  std::string problem;

 private:
  double value(const Json& json, const std::string& key) {
    const double number = json.is_number() ? json.get<double>() : -1;
    if (!(number >= 0 && number < kMostNumber)) complain("\"" + key + "\" holds what is no number of at least 0");
    return number;
  }
};

}  // namespace

bool is_calibration(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.value("format", Json()) == Json(kFormat);
}

Result<Calibration> parse_calibration(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  Reader reader;
  Calibration calibration;
  if (!json.is_object()) reader.complain("no JSON object");
  if (json.is_object()) {
    if (json.value("format", Json()) != Json(kFormat)) reader.complain("\"format\" is not \"plait-host\"");
    calibration.name = reader.text(json, "name");
    calibration.source = reader.text(json, "source");
    calibration.cores = static_cast<int>(std::min(reader.number(json, "cores"), 1e6));
    calibration.hand_over_seconds = reader.number(json, "hand_over_seconds");
    for (const auto& [name, entry] : reader.object(json, "types").items()) {
      TypeCosts& type = calibration.types[name];
      for (std::size_t i = 0; i < kProducts.size(); ++i) {
        const Json& product = reader.object(reader.object(entry, "products"), kProducts[i]);
        type.products.alone[i] = reader.grid(product, "alone", 3);
        type.products.shared[i] = reader.grid(product, "shared", 3);
      }
      const Json& step = reader.object(entry, "step");
      type.step_alone = reader.grid(step, "alone", 1);
      type.step_shared = reader.grid(step, "shared", 1);
      for (const auto& [mlp, parts] : reader.object(entry, "mlps").items()) {
        PartCosts& costs = type.mlps[mlp];
        for (std::size_t part = 0; part < kParts.size(); ++part) {
          for (std::size_t phase = 0; phase < kPhases.size(); ++phase) {
            const Json& one = reader.object(reader.object(parts, kParts[part]), kPhases[phase]);
            costs.parts[part][phase] = {.alone = reader.grid(one, "alone", 2), .shared = reader.grid(one, "shared", 2)};
          }
        }
      }
    }
  }
  if (reader.problem.empty() && calibration.cores < 1) reader.complain("\"cores\" is below 1");
  if (!reader.problem.empty())
    return make_error(ErrorCode::kInvalidArgument, "host.json", "calibration of a machine: {}", reader.problem);
  return calibration;
}

std::string calibration_json(const Calibration& calibration) {
  Json json = {{"format", kFormat},
               {"name", calibration.name},
               {"source", calibration.source},
               {"cores", calibration.cores},
               {"hand_over_seconds", calibration.hand_over_seconds},
               {"types", Json::object()}};
  for (const auto& [name, type] : calibration.types) {
    Json& entry = json["types"][name];
    for (std::size_t i = 0; i < kProducts.size(); ++i)
      entry["products"][kProducts[i]] = {{"alone", as_json(type.products.alone[i])},
                                         {"shared", as_json(type.products.shared[i])}};
    entry["step"] = {{"alone", as_json(type.step_alone)}, {"shared", as_json(type.step_shared)}};
    for (const auto& [mlp, costs] : type.mlps) {
      for (std::size_t part = 0; part < kParts.size(); ++part) {
        for (std::size_t phase = 0; phase < kPhases.size(); ++phase) {
          const PartCost& cost = costs.parts[part][phase];
          entry["mlps"][mlp][kParts[part]][kPhases[phase]] = {{"alone", as_json(cost.alone)},
                                                              {"shared", as_json(cost.shared)}};
        }
      }
    }
  }
  return json.dump() + "\n";
}

}  // namespace plait::host
