#pragma once

#include "plait/base/result.h"
#include "plait/ir/program.h"
#include "plait/sim/device.h"

#include <map>
#include <string>
#include <vector>

namespace plait::validate {

/// One published step time.
struct MeasuredRow {
  std::string set;   ///< which table
  std::string name;  ///< unique in its set
  std::string device;
  std::string size;  ///< rows of one model size, for leaving one out
  ModelShape shape;
  Sharding sharding;
  int pipeline = 1;
  int chunks = 1;
  int microbatches = 1;
  double seconds = 0;
  bool fitted = false;  ///< named in data/validation/fit.csv
};

/// A row with its program, built once.
struct PreparedRow {
  MeasuredRow row;
  Program program;
  Device device;
};

/// All rows under `data`/validation. \errors kIo, kInvalidArgument with file and line
Result<std::vector<MeasuredRow>> read_rows(const std::string& data);
Result<PreparedRow> prepare(const MeasuredRow& row, const std::map<std::string, Device>& devices);

/// Seconds of the step, from the general simulator.
Result<double> predict(const PreparedRow& prepared, const Calibration& calibration);

}  // namespace plait::validate
