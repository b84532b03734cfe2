#pragma once

#include "plait/base/result.h"

namespace plait::cli {

/// Each takes the words behind `plait-run`, its own name first, and returns the exit code of a command that did its work.
Result<int> train_command(int argc, const char* const* argv);
Result<int> eval_command(int argc, const char* const* argv);
Result<int> generate_command(int argc, const char* const* argv);
Result<int> bench_command(int argc, const char* const* argv);

}  // namespace plait::cli
