#pragma once

#include "plait/schedules/schedule_info.h"

namespace plait {

/// The automatic zero-bubble scheduler: orders F, B and W of one stage per rank from their times, the transfer time and
/// a limit on the live activations of a rank (F takes 1, B and W give back 1/2 each).
///
/// Tries eight combinations of three switches and keeps the one whose longest rank span is shortest.
///
/// \param memory_limit  in micro-batches
/// \returns  one row per rank
/// \errors   kInfeasible "schedule.memory" if no combination stays within the limit
/// \cost     O(8 m p^2)
/// \source   Qi et al. 2023, arXiv:2401.10241, sec. 3.1
Result<std::vector<Row>> zb_heuristic_order(int num_ranks, int num_microbatches, const OpTimes& times,
                                            int memory_limit);

}  // namespace plait
