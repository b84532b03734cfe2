#pragma once

#include "plait/ir/program.h"
#include "plait/verify/report.h"
#include "plait/verify/space.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace plait::verifying {

/// Where an op stands.
struct Place {
  std::int32_t rank = -1;
  std::int32_t position = -1;
  [[nodiscard]] bool known() const { return rank >= 0; }
};

/// Where each (stage, micro-batch, slice) is forwarded, backed, weight-graded, recomputed. A BW is in two tables.
struct Places {
  std::vector<Place> forward;
  std::vector<Place> backward;
  std::vector<Place> weight;
  std::vector<Place> recompute;  ///< empty if no op recomputes
};

struct Structure {
  Places places;
  /// Instructions that no later phase may look at, because their ids are outside the layout.
  std::vector<Place> unusable;
  std::vector<std::int32_t> validated_at;  ///< per rank: position of its Validate, -1 where there is none
  std::size_t num_sends = 0;
  std::size_t num_receives = 0;
  std::size_t num_waits = 0;
  std::size_t num_collectives = 0;
  std::size_t num_batches = 0;
  std::size_t num_instrs = 0;
};

/// Whether the layout's own ids are sound; without that nothing else can be said.
bool check_layout(const Layout& layout, const std::vector<Row>& rows, Report& report);

/// What can be seen without following values: ids in range, pairs and turns, every op exactly once, and the order of ops
/// that stand on one rank. Works on schedules as on programs.
Structure check_structure(const Space& space, const std::vector<Row>& rows, Report& report);

}  // namespace plait::verifying
