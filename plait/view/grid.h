#pragma once

#include "plait/view/timeline.h"

#include <cstdint>
#include <string>

namespace plait {

enum class Colors : std::uint8_t { kNone, kAnsi };

struct GridOptions {
  Colors colors = Colors::kNone;
  int most_columns =
      400;  ///< of time; a longer step is drawn coarser, and what is too short for its label shows its letter
};

/// One line per rank, lined up with time: labels at their start, `-` while an op goes on, `.` while the lane stands still.
///
///     rank 0  F0 F1 .  .  BW0-- BW1--
///     rank 1  .  F0 BW0-- F1 BW1-- .
std::string draw_grid(const Timeline& timeline, const GridOptions& options = {});

}  // namespace plait
