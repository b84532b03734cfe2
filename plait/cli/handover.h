#pragma once

#include "plait/base/result.h"

#include <span>
#include <string>
#include <string_view>

/// The commands that need libtorch live in a program of their own, plait-run, because linking it costs a quarter of a
/// second at every start.
namespace plait {

struct HandedOver {
  std::string_view name;
  std::string_view summary;
};
std::span<const HandedOver> handed_over();
bool is_handed_over(std::string_view command);

/// Where plait-run is expected: beside this program.
std::string run_program_path();

/// Replaces this process by `plait-run` with the same arguments; returns only if that fails.
/// \errors kIo "cli.no_run" if it was not built
Error hand_over(char** argv);

}  // namespace plait
