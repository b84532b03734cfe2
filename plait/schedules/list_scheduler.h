#pragma once

#include "plait/schedules/schedule_info.h"

#include <functional>
#include <optional>

namespace plait {

/// What a greedy scheduler of a chain of stages is asked for.
struct ListSpec {
  int num_ranks = 1;
  int num_stages = 1;
  int num_microbatches = 1;
  std::function<int(int)> home;  ///< rank of a stage
  OpTimes times;                 ///< of one op, not of a 1/p share
  enum class Backward { kFull, kSplit } backward = Backward::kFull;
  /// What an idle rank does with a pending weight gradient while other inputs are on their way.
  enum class Fill {
    kAtOnce,  ///< run it
    kIfFits,  ///< run it if it ends before the first of them arrives
  } fill = Fill::kIfFits;
  std::optional<int> memory_limit;     ///< live activations of a rank, in ops
  std::optional<int> in_flight_limit;  ///< micro-batches between the first stage's F and its backward
};

/// Simulates the ranks in time. A free rank takes, of the ops whose inputs have arrived: a backward (lowest micro-batch first),
/// else the forward of the deepest stage that the limits allow, else a weight gradient; a weight gradient goes first where
/// the memory limit holds everything else back.
///
/// A forward of a rank's c-th of v chunks leaves room for the v-c-1 chunks behind it, so the oldest micro-batch can always go on
/// and the limit cannot lock up.
///
/// \returns  one row per rank
///           nothing if the memory limit is below the chunks of a rank
std::optional<std::vector<Row>> list_schedule(const ListSpec& spec);

/// Longest span of a rank, first start to last end, when the ops of `rows` run in order; `rows` hold one chain's ops only.
Ticks longest_span(const std::vector<Row>& rows, const ListSpec& spec);

}  // namespace plait
