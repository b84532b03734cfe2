#pragma once

#include "plait/ir/program.h"
#include "plait/run/engine/engine.h"

#include <string>

namespace plait::cli {

/// One executed step to scale, a line per rank: a digit where the forward of that micro-batch ran, a small letter for its
/// backward (a = 0), a capital for a weight gradient of its own, a dot where the rank waited. Micro-batches are counted
/// modulo 10.
std::string draw_trace(const Program& program, const StepResult& step, int columns);

}  // namespace plait::cli
