#pragma once

#include "plait/schedules/schedule_info.h"

#include <array>
#include <optional>
#include <string_view>
#include <vector>

namespace plait {

/// Schedules built by repeating one small pattern. Two chunks per rank in a V (stages r and 2p-1-r), unit slots: an F, B or W
/// of one chunk takes one. A pattern holds, per rank, the slots of the first micro-batch's ops in the order F0, F1, B1, B0 (the
/// number is the chunk); micro-batch k adds 6 k, and each W takes the next free slot behind its B.
/// \source Qi et al. 2024, arXiv:2405.15362
using VPattern = std::vector<std::array<int, 4>>;

/// Memory 1/3 of 1F1B's in the limit.
VPattern v_min_pattern(int num_ranks);
/// Memory 1/2 of 1F1B's in the limit.
VPattern v_half_pattern(int num_ranks);

/// The pattern as it stands, for m micro-batches.
std::vector<Row> repeat_pattern(const VPattern& pattern, int num_microbatches);

/// The pattern squeezed, its warm-up and cool-down reordered within the peak memory it has, its weight gradients placed anew.
std::vector<Row> squeeze_pattern(const VPattern& pattern, int num_microbatches);

/// What the schedules of one pattern share. Both finishes take the same sizes.
Result<> check_v_pattern(std::string_view name, const ScheduleShape& shape);
/// The pattern, squeezed or as it stands, as the shape asks.
Result<Schedule> build_v_pattern(std::string_view name, const ScheduleShape& shape, const VPattern& pattern);
/// Messages; and where the squeezed pattern has its closed forms, the bubble and the makespan.
/// \param bubble_slots  a slot is an F, B or W of one chunk
Expectation expect_v_pattern(const ScheduleShape& shape, int bubble_slots);
/// Closed forms hold for the squeezed pattern with p >= 3 and m >= 2p; those of time for F = B = W.
bool has_v_forms(const ScheduleShape& shape);

/// How a searched pattern is finished.
enum class VFinish {
  kReordered,                ///< as squeeze_pattern does
  kNewWeights,               ///< weight gradients placed anew within the limit
  kNewWeightsThenReordered,  ///< then every op moved ahead where memory allows
  kReorderedThenNewWeights,  ///< F and B moved ahead without weight gradients, those placed behind
};

struct VSearchResult {
  std::vector<Row> rows;
  int bubble = 0;  ///< longest span of a rank minus 6 m, in slots
  VPattern pattern;
  VFinish finish = VFinish::kReordered;
};

/// The general search: first-row patterns with F0 in slot 0 and F1, B1, B0 in distinct slots of 1..5, shifted from rank to rank by
/// [k, -1, k, -1] with one k in 1..5 for the first ranks and a not larger one for the rest. Keeps the shortest result whose
/// peak is within the limit; stops at the first without a bubble.
///
/// \param memory_limit  live activations of a rank, in chunks (half stages)
/// \returns  nothing if no pattern keeps the limit
/// \cost     O(500 p) patterns of O(p m) ops
std::optional<VSearchResult> search_v_pattern(int num_ranks, int num_microbatches, int memory_limit);

/// A found pattern for another number of micro-batches; nothing if the limit cannot be kept.
std::optional<std::vector<Row>> finish_pattern(const VPattern& pattern, VFinish finish, int num_microbatches,
                                               int memory_limit);

}  // namespace plait
