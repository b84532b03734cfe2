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
  std::vector<double> losses;            ///< per slice of data; 0 where another rank has the head
  std::vector<std::int64_t> not_finite;  ///< places in the norm of its gradients that are not finite
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

/// What was NaN or infinity, in words; empty if nothing was.
/// \param parameter_order  names by their place in the norm
std::string describe_not_finite(const std::vector<RankReport>& reports,
                                const std::vector<std::string>& parameter_order);

/// Adds all ranks' figures to a result.
void add_reports(const Program& program, std::vector<RankReport>&& reports, StepResult& result);

}  // namespace plait
