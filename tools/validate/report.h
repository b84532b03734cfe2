#pragma once

#include "tools/validate/rows.h"

#include <map>
#include <string>
#include <vector>

namespace plait::validate {

struct Prediction {
  const MeasuredRow* row = nullptr;
  double seconds = 0;
  [[nodiscard]] double error() const { return seconds / row->seconds - 1; }
};

struct SetReport {
  std::string set;
  Calibration calibration;
  std::vector<Prediction> predictions;
  std::vector<std::pair<std::string, double>>
      left_out;  ///< model size, mean error when the constants know the others only
};

/// docs/validation.md.
std::string report(const std::vector<SetReport>& sets);

}  // namespace plait::validate
