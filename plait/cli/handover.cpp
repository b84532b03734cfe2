#include "plait/cli/handover.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>

namespace plait {

std::span<const HandedOver> handed_over() {
  static constexpr std::array kCommands = {
      HandedOver{"train", "train a model under a schedule"}, HandedOver{"eval", "loss and perplexity of a model"},
      HandedOver{"generate", "continue a text with a model"}, HandedOver{"bench", "time the kernels and a step"}};
  return kCommands;
}

bool is_handed_over(std::string_view command) {
  const auto commands = handed_over();
  return std::any_of(commands.begin(), commands.end(), [&](const HandedOver& known) { return known.name == command; });
}

std::string run_program_path() {
  std::error_code failed;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", failed);
  return failed ? "plait-run" : (self.parent_path() / "plait-run").string();
}

Error hand_over(char** argv) {
  const std::string program = run_program_path();
  ::execv(program.c_str(), argv);
  if (errno == ENOENT)
    return make_error(ErrorCode::kIo, "cli.no_run",
                      "plait {}: {} was not built; run `make build` (it needs libtorch, which scripts/setup installs)",
                      argv[1], program);
  return make_error(ErrorCode::kIo, "cli.no_run", "plait {}: {} does not start: {}", argv[1], program,
                    std::generic_category().message(errno));
}

}  // namespace plait
