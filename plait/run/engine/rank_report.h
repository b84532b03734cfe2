#pragma once

#include "plait/ir/program.h"
#include "plait/run/engine/engine.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace plait {

/// What one rank tells about one run of its row.
struct RankReport {
  std::vector<double> losses;  ///< per slice of data; 0 where another rank has the head
  double grad_norm = 0;
  std::vector<TraceEvent> trace;
  Bytes peak;
  Bytes moved;
  int peak_stashes = 0;
  KernelCounts kernels;
  std::vector<KernelEvent> kernel_events;  ///< none unless they were asked for
};

std::string encode(const std::vector<RankReport>& reports);
/// Adds the reports of one process to `reports`.
void decode(std::string_view bytes, std::vector<RankReport>& reports);

/// In the order of the data, whatever ranks computed it.
double loss_sum(const std::vector<RankReport>& reports);

/// Adds all ranks' figures to a result.
void add_reports(const Program& program, std::vector<RankReport>&& reports, StepResult& result);

}  // namespace plait
