#pragma once

#include "plait/view/timeline.h"

#include <cstdint>
#include <string>
#include <vector>

namespace plait {

enum class Arrows : std::uint8_t { kNone, kDrawn };

struct SvgOptions {
  int width = 1200;  ///< pixels
  Arrows arrows = Arrows::kDrawn;
};

/// One self-contained SVG: a panel per timeline, all on one time scale, with ranks, ops, bubbles (hatched), messages, a time
/// axis and a legend. Every op has a <title> that browsers show on hover.
std::string draw_svg(const std::vector<Timeline>& timelines, const SvgOptions& options = {});

/// Replaces & < > " by entities.
std::string escape_xml(std::string_view text);

}  // namespace plait
