#pragma once

#include "plait/ir/program.h"
#include "plait/run/engine/binding.h"
#include "plait/run/engine/wait_state.h"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace plait {

/// What one process knows of a step that does not go on.
struct StepView {
  const Program* program = nullptr;
  const BoundProgram* bound = nullptr;
  const WaitTable* waits = nullptr;
  std::int64_t step = 0;     ///< states of others do not count
  std::vector<bool> silent;  ///< ranks whose process gives no sign of life; empty: none

  [[nodiscard]] bool is_silent(RankId rank) const { return rank.index() < silent.size() && silent[rank.index()]; }
  /// Where a rank is; none if it was not seen in this step.
  [[nodiscard]] std::optional<std::size_t> position_of(RankId rank) const;
};

/// A rank waits for another.
struct Wait {
  RankId rank;
  std::size_t position = 0;
  RankId peer;
  std::optional<std::size_t> awaited;  ///< position in the peer's row of what would end it
  Clock::duration waited{};
  bool is_met = false;  ///< the peer is through with it
};

/// What a rank waits for. Of the members that are missing in a collective, one that is silent, else one that does not wait
/// itself.
std::optional<Wait> wait_of(const StepView& view, RankId rank);

/// Follows the waits from one that lasts too long to the one that all others depend on: for a rank that does not wait
/// itself, or cannot tell; or for what was done already, so that it was lost on its way or the rank that waits hangs.
Wait last_wait(const StepView& view, Wait wait);

/// "rank 2, position 14, op 1F3".
std::string place_in_row(const Program& program, RankId rank, std::size_t position);
/// The same of a rank as it is known.
std::string place_of(const StepView& view, RankId rank);
/// "rank 2, position 14, op 1F3 has waited 1.234 s for rank 1, position 8, send of ...".
std::string describe(const StepView& view, const Wait& wait);

}  // namespace plait
