#pragma once

#include "plait/base/result.h"

namespace plait::cli {

/// `plait bench step`: the time of a training step and where it goes.
Result<int> bench_step_command(int argc, const char* const* argv);
/// `plait bench micro`: every kernel beside its ATen composition and the roofline.
Result<int> bench_micro_command(int argc, const char* const* argv);

}  // namespace plait::cli
