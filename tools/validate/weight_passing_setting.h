#pragma once

#include "plait/base/result.h"
#include "plait/ir/program.h"
#include "plait/sim/device.h"
#include "plait/sim/model_shape.h"

#include <cstdint>
#include <string>
#include <vector>

namespace plait::validate {

/// One published throughput.
struct Throughput {
  std::string table;
  std::string system;
  std::int64_t hidden = 0;
  std::int64_t tokens = 0;
  double tokens_per_second = 0;  ///< of one device
  bool fitted = false;
};

/// What the machine makes of its data sheet, in this table's hands.
struct SettingConstants {
  double gemm_efficiency = 0.6;
  double gemm_half_width = 500;  ///< hidden size at which matrix products reach half of gemm_efficiency
  double attention_efficiency = 0.4;
  double network_bytes_per_second = 1.25e9;  ///< of a node, one direction
  // Of compute where all ranks' collectives over the network run beside it.
  double fsdp_slowdown = 1.2;
  double flat_tawpipe_slowdown = 1.2;  ///< TawPipe with one group of all ranks
};

/// \errors kIo "validate.csv": a row that is no row, or a fitted row that is not in the table
Result<std::vector<Throughput>> read_throughputs(const std::string& data);
Result<SettingConstants> read_constants(const std::string& file);
std::string constants_json(const SettingConstants& constants);

/// A row with its program.
class SimulatedRow {
 public:
  static Result<SimulatedRow> make(const Throughput& row);
  /// Simulated tokens per second of one device.
  [[nodiscard]] Result<double> tokens_per_second(const Device& device, const SettingConstants& constants) const;
  [[nodiscard]] const Throughput& row() const { return row_; }

 private:
  Throughput row_;
  Program program_;
  ModelShape model_;
};

/// The constants that bring the rows closest, by pattern search on their logarithms.
Result<SettingConstants> fit_constants(const std::vector<const SimulatedRow*>& rows, const Device& device);

}  // namespace plait::validate
