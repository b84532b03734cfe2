#pragma once

#include "plait/ir/program.h"
#include "plait/run/engine/engine.h"

#include <cstdint>
#include <string>

namespace plait {

/// Figures of one executed step, from its trace. Busy = the sum of a rank's ops and optimizer steps.
struct TraceFigures {
  Nanos makespan;           ///< first start to last end of an op or step over all ranks
  double bubble_ratio = 0;  ///< (makespan - mean busy time of the ranks) / makespan
  Bytes moved;              ///< sent by all ranks
};
TraceFigures trace_figures(const Program& program, const StepResult& step);

/// The text of trace.json: what each rank did in one step, in the order of its row.
///
///     {"format": "plait-trace", "version": 1, "schedule": "1f1b", "step": 400, "ranks": 2, "time_unit": "ns",
///      "duration": ..., "bubble_ratio": ..., "bytes_moved": [per rank],
///      "ops":       [{"rank": 0, "position": 0, "op": "0F0", "kind": "F", "stage": 0, "microbatch": 0, "slice": 0,
///                     "start": ..., "end": ...}, ...],
///      "transfers": [{"rank": 0, "position": 1, "kind": "send", "value": "activation", "peer": 1, "start": ..., "end": ...,
///                     "bytes": ...}, ...]}
///
/// and of a step that recorded its kernels:
///
///      "parts":     [{"rank": 0, "position": 0, "part": "qkv.0", "start": ..., "end": ...}, ...],
///      "kernels":   [{"rank": 0, "position": 0, "part": "qkv.0", "kernel": "gemm", "start": ..., "end": ...}, ...]
///
/// `position` is the index into the rank's row of program.plait, -1 in front of it; `transfers` holds every instruction that
/// is no op. Kernels outside of the model's parts have no "part".
std::string trace_json(const Program& program, const StepResult& step, std::int64_t step_number);

}  // namespace plait
