#include "plait/base/files.h"

#include "tools/validate/fit.h"
#include "tools/validate/own_steps.h"
#include "tools/validate/published_gain.h"
#include "tools/validate/report.h"
#include "tools/validate/weight_passing.h"
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>

namespace plait::validate {
namespace {

enum class Constants { kFromFiles, kFitted };

constexpr std::size_t kMostRowsOfOneFit = 30;

Result<std::map<std::string, Device>> read_devices(const std::string& data) {
  std::map<std::string, Device> devices;
  for (const auto& entry : std::filesystem::directory_iterator(data + "/devices")) {
    PLAIT_TRY(const std::string text, read_file(entry.path().string()));
    PLAIT_TRY(devices[entry.path().stem().string()], parse_device(text));
  }
  return devices;
}

/// Every k-th row, so that a fit on hundreds stays short.
std::vector<const PreparedRow*> thinned(const std::vector<const PreparedRow*>& rows) {
  const std::size_t every = (rows.size() + kMostRowsOfOneFit - 1) / kMostRowsOfOneFit;
  std::vector<const PreparedRow*> some;
  for (std::size_t i = 0; i < rows.size(); i += std::max<std::size_t>(1, every)) some.push_back(rows[i]);
  return some;
}

Result<SetReport> judge(const std::string& set, const std::vector<const PreparedRow*>& rows, const std::string& data,
                        Constants constants) {
  SetReport result{.set = set};
  const std::string file = data + "/calibrations/" + set + ".json";
  if (constants == Constants::kFitted) {
    std::vector<const PreparedRow*> fitted;
    for (const PreparedRow* row : rows)
      if (row->row.fitted) fitted.push_back(row);
    PLAIT_TRY(const Calibration found, fit(fitted));
    PLAIT_TRY_VOID(write_file(file, calibration_json(found)));
  }
  PLAIT_TRY(const std::string text, read_file(file));
  PLAIT_TRY(result.calibration, parse_calibration(text));
  for (const PreparedRow* row : rows) {
    PLAIT_TRY(const double seconds, predict(*row, result.calibration));
    result.predictions.push_back({.row = &row->row, .seconds = seconds});
  }
  if (!set.starts_with("vtrain")) return result;
  std::map<std::string, std::vector<const PreparedRow*>> sizes;
  for (const PreparedRow* row : rows) sizes[row->row.size].push_back(row);
  for (const auto& [size, left_out] : sizes) {
    std::vector<const PreparedRow*> others;
    for (const PreparedRow* row : rows)
      if (row->row.size != size) others.push_back(row);
    if (others.empty()) continue;
    PLAIT_TRY(const Calibration without, fit(thinned(others)));
    double sum = 0;
    for (const PreparedRow* row : left_out) {
      PLAIT_TRY(const double seconds, predict(*row, without));
      sum += std::abs(seconds / row->row.seconds - 1) / static_cast<double>(left_out.size());
    }
    result.left_out.emplace_back(size, sum);
  }
  return result;
}

Result<> run(const std::string& data, const std::string& out, Constants constants) {
  PLAIT_TRY(const auto devices, read_devices(data));
  PLAIT_TRY(const auto rows, read_rows(data));
  std::vector<PreparedRow> prepared;
  for (const MeasuredRow& row : rows) {
    PLAIT_TRY(PreparedRow one, prepare(row, devices));
    prepared.push_back(std::move(one));
  }
  std::vector<SetReport> sets;
  for (const char* set : {"korthikanti", "dgxc", "vtrain-single", "vtrain-multi"}) {
    std::vector<const PreparedRow*> of_set;
    for (const PreparedRow& row : prepared)
      if (row.row.set == set) of_set.push_back(&row);
    PLAIT_TRY(SetReport judged, judge(set, of_set, data, constants));
    sets.push_back(std::move(judged));
  }
  PLAIT_TRY(const std::string h100, read_file(data + "/calibrations/dgxc.json"));
  PLAIT_TRY(const Calibration stack, parse_calibration(h100));
  PLAIT_TRY(const std::string gain, published_gain(devices.at("h20-96gb-sxm"), stack));
  PLAIT_TRY(const std::string passing,
            weight_passing(
                data, devices.at("a100-80gb-sxm"),
                constants == Constants::kFitted ? WeightPassingConstants::kFitted : WeightPassingConstants::kFromFile));
  PLAIT_TRY(const std::string own, own_steps(data));
  const std::string text = report(sets) + gain + passing + own;
  PLAIT_TRY_VOID(write_file(out, text));
  const std::size_t end = text.find("\n## ");
  fmt::print("{}\n", text.substr(text.find("| set"), end - text.find("| set")));
  return {};
}

}  // namespace
}  // namespace plait::validate

int main(int argc, char** argv) {
  CLI::App app{"Holds the simulator to published step times and writes the report"};
  std::string data = "data";
  std::string out = "docs/validation.md";
  bool fits = false;
  app.add_option("--data", data, "folder with devices, validation and calibrations")->capture_default_str();
  app.add_option("--out", out, "report to write")->capture_default_str();
  app.add_flag("--fit", fits, "fit the constants anew on the rows of fit.csv and write them to calibrations/");
  CLI11_PARSE(app, argc, argv);
  const auto constants = fits ? plait::validate::Constants::kFitted : plait::validate::Constants::kFromFiles;
  if (auto done = plait::validate::run(data, out, constants); !done) {
    fmt::print(stderr, "plait-validate: {} [{}]\n", done.error().message, done.error().rule);
    return plait::exit_code(done.error().code);
  }
  return 0;
}
