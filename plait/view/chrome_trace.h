#pragma once

#include "plait/view/timeline.h"

#include <string>
#include <vector>

namespace plait {

/// Trace Event JSON, which ui.perfetto.dev and chrome://tracing open: a process per timeline, a thread per rank with its
/// ops, in them parts and kernels where they were recorded, messages as flow arrows, and a counter per rank for what it holds. Bare units are shown as microseconds.
std::string chrome_trace(const std::vector<Timeline>& timelines);

}  // namespace plait
