#pragma once

#include "plait/schedules/schedule_info.h"

#include <optional>
#include <vector>

namespace plait {

/// What an in-order replay of a schedule's ops gives. Every rank takes its ops in the order of its row, each as soon as the
/// op before it has ended and its inputs have arrived. Written for the tests alone, from the table of dependencies in the
/// design, so that it can contradict the library.
struct Replay {
  Ticks makespan = 0;
  std::vector<Ticks> start;               ///< per rank: of its first op
  std::vector<Ticks> end;                 ///< per rank: of its last op
  std::vector<Ticks> idle;                ///< per rank: own span minus busy time
  std::vector<int> peak;                  ///< per rank: most activations between F and BW or W at a time
  std::vector<std::vector<Ticks>> begin;  ///< per rank and op of its row (other instructions left out)
  [[nodiscard]] Ticks max_idle() const;
  [[nodiscard]] Ticks max_span() const;
};

/// Stages per rank, counting replicas once.
int chunks_of(const Schedule& schedule);

/// Nothing if the ops wait for each other in a circle. `times` are of a 1/p share and must divide by chunks x slices;
/// an arrival on another rank is `times.transfer` late.
/// With `slice_weights`, slice q takes that share of a stage's time instead of 1/k.
std::optional<Replay> replay(const Schedule& schedule, const OpTimes& times,
                             const std::vector<Ticks>& slice_weights = {});

}  // namespace plait
