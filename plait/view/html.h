#pragma once

#include "plait/view/timeline.h"

#include <string>
#include <vector>

namespace plait {

/// One self-contained page that needs no network: zoomable time lines of the steps one above another, messages as arrows,
/// memory under each rank, idle and exposed transfer marked. A measured step lies over the simulated one before it.
std::string draw_html(const std::vector<Timeline>& timelines);

}  // namespace plait
