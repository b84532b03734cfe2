#include "tools/validate/own_steps.h"

#include "plait/base/files.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <vector>

namespace plait::validate {
namespace {

constexpr double kPercent = 100;
constexpr double kTimeTarget = 5;  // percent
constexpr double kPeakTarget = 2;

struct OwnStep {
  std::string run;
  double measured_s = 0;  // median over the turns of a run
  double fastest_s = 0;
  double slowest_s = 0;
  double predicted_s = 0;
  double measured_peak = 0;
  double predicted_peak = 0;
};

Result<OwnStep> parse(const std::string& line) {
  std::vector<std::string> fields;
  std::istringstream stream(line);
  for (std::string field; std::getline(stream, field, ',');) fields.push_back(field);
  OwnStep step;
  double* const numbers[] = {&step.measured_s,  &step.fastest_s,     &step.slowest_s,
                             &step.predicted_s, &step.measured_peak, &step.predicted_peak};
  bool good = fields.size() == std::size(numbers) + 1;
  if (good) step.run = fields[0];
  for (std::size_t i = 0; good && i < std::size(numbers); ++i) {
    char* end = nullptr;
    *numbers[i] = std::strtod(fields[i + 1].c_str(), &end);
    good = end != fields[i + 1].c_str() && *end == '\0' && *numbers[i] > 0;
  }
  if (!good) return make_error(ErrorCode::kInvalidArgument, "validate.row", "own-steps.csv: \"{}\"", line);
  return step;
}

}  // namespace

Result<std::string> own_steps(const std::string& data) {
  const std::string file = data + "/validation/own-steps.csv";
  if (!std::filesystem::exists(file)) return std::string();
  PLAIT_TRY(const std::string text, read_file(file));
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);  // names of the columns
  std::string rows;
  int num_steps = 0;
  int num_in_time = 0;
  double worst_peak = 0;
  while (std::getline(lines, line)) {
    PLAIT_TRY(const OwnStep step, parse(line));
    const double time_off = kPercent * (step.predicted_s / step.measured_s - 1);
    const double peak_off = kPercent * (step.predicted_peak / step.measured_peak - 1);
    ++num_steps;
    if (std::abs(time_off) <= kTimeTarget) ++num_in_time;
    worst_peak = std::max(worst_peak, std::abs(peak_off));
    rows +=
        fmt::format("| {} | {:.1f} | {:.1f} to {:.1f} | {:.1f} | {:+.1f} % | {:.2f} | {:.2f} | {:+.2f} % |\n", step.run,
                    1e3 * step.measured_s, 1e3 * step.fastest_s, 1e3 * step.slowest_s, 1e3 * step.predicted_s, time_off,
                    step.measured_peak / 1e6, step.predicted_peak / 1e6, peak_off);
  }
  return fmt::format(
      "\n## Steps of plait train on one machine\n\n"
      "Predicted from a calibration of single parts (`plait bench calibrate`) that was made before, then run\n"
      "(`scripts/compare-step`, which wrote `data/validation/own-steps.csv`); no constant comes from a step. Measured\n"
      "times are medians over the steps of a run, and of these over the turns in which all runs are made again. {} of "
      "{} times\n"
      "within {:.0f} %; the largest error of a peak is {:.2f} % (target {:.0f} %).\n\n"
      "| run | measured ms | of the turns | predicted ms | error | measured peak MB | predicted MB | error |\n"
      "|---|---|---|---|---|---|---|---|\n{}",
      num_in_time, num_steps, kTimeTarget, worst_peak, kPeakTarget, rows);
}

}  // namespace plait::validate
