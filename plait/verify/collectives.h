#pragma once

#include "plait/ir/program.h"
#include "plait/verify/report.h"
#include "plait/verify/space.h"

#include <cstdint>
#include <vector>

namespace plait::verifying {

/// One run of a collective: all members of a rank set entering it once.
using RunId = std::uint32_t;
inline constexpr RunId kNoRun = UINT32_MAX;

/// Which run each entry belongs to. Members of a set enter its runs in one order.
struct Collectives {
  std::vector<std::vector<RunId>> run_of_entry;  ///< per rank: run of each of its Collective instructions, in row order
  std::vector<RankSetId> set_of_run;
};

/// Lines up the entries of the members of each rank set and reports what does not agree. Values of runs that some member
/// never enters become suspects, and their entries have no run.
Collectives match_collectives(const Space& space, const std::vector<Row>& rows, Report& report);

}  // namespace plait::verifying
