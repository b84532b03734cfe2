#pragma once

#include "plait/base/result.h"
#include "plait/ir/program.h"
#include "plait/sim/cost_model.h"
#include "plait/sim/simulate.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace plait {

/// One op on a rank's lane.
struct Bar {
  int rank = 0;
  std::int64_t start = 0;
  std::int64_t end = 0;
  OpKind kind = OpKind::kForward;
  int stage = 0;
  int chunk = 0;  ///< how many stages of this rank come before it
  int microbatch = 0;
  int slice = 0;
  friend bool operator==(const Bar&, const Bar&) = default;
};

/// Something inside of an op, or beside the ops: a pass through a part of the model, or a kernel.
struct Span {
  enum class Kind : std::uint8_t { kPart, kKernel };
  int rank = 0;
  std::int64_t start = 0;
  std::int64_t end = 0;
  Kind kind = Kind::kPart;
  std::string name;
  friend bool operator==(const Span&, const Span&) = default;
};

/// One message between ranks.
struct Arrow {
  int from = 0;
  int to = 0;
  std::int64_t sent = 0;
  std::int64_t arrived = 0;
  std::int64_t bytes = 0;
  std::string value;  ///< kind of the value
  friend bool operator==(const Arrow&, const Arrow&) = default;
};

/// Step function: what a rank holds from each time on.
using MemoryCurve = std::vector<std::pair<std::int64_t, std::int64_t>>;

enum class Origin : std::uint8_t { kSimulated, kMeasured };

/// What the pictures draw: one step, simulated or measured. Times are ticks from the first start.
struct Timeline {
  std::string title;
  Origin origin = Origin::kSimulated;
  std::int64_t ticks_per_unit = 1;
  std::string unit;
  int num_ranks = 0;
  int num_chunks = 1;  ///< most stages on one rank
  int num_slices = 1;
  std::int64_t makespan = 0;
  double bubble_ratio = 0;
  std::vector<Bar> bars;    ///< by rank, then time
  std::vector<Span> spans;  ///< by rank, then time, the outer before the inner; of measured steps that have them
  std::vector<Arrow> arrows;
  /// Per rank: from when to when its lane stood still for a message that was on the wire.
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> waits;
  std::vector<MemoryCurve> memory;
  std::string memory_unit;  ///< "bytes" or "stashes"; empty: no curves
  friend bool operator==(const Timeline&, const Timeline&) = default;
};

/// The step that `result` (made with Detail::kTimeline) timed.
Timeline make_timeline(const Program& program, const SimResult& result, std::string title, std::string unit = "");

/// A trace.json of a training run.
/// \errors kIo "view.trace": not such a file, or a damaged one
Result<Timeline> read_trace(std::string_view json, std::string title);

/// "F3", "f3" for the second chunk of two, "5F3" (stage 5) where a rank has more, ".1" behind for slices.
std::string bar_label(const Timeline& timeline, const Bar& bar);

/// Colours that the common forms of colour blindness keep apart; kinds also differ in letter and lightness.
/// \source Okabe & Ito 2008, "Color Universal Design"
std::string_view bar_color(OpKind kind);

}  // namespace plait
