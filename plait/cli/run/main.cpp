#include "plait/cli/run/commands.h"

#include <array>
#include <cstdio>
#include <exception>
#include <string_view>
#include <utility>

namespace {

constexpr std::array<std::pair<std::string_view, plait::Result<int> (*)(int, const char* const*)>, 4> kCommands = {{
    {"train", &plait::cli::train_command},
    {"eval", &plait::cli::eval_command},
    {"generate", &plait::cli::generate_command},
    {"bench", &plait::cli::bench_command},
}};

constexpr std::string_view kUsage =
    "usage: plait-run train|eval|generate|bench [flags]; every command takes --help\n"
    "  train     trains a model over several ranks by a schedule\n"
    "  eval      loss and perplexity of a model on some text\n"
    "  generate  continues a prompt\n"
    "  bench     measures this machine\n"
    "exit codes: 0 done; 1 a schedule that does not pass the check; 2 refused flags; 3 unreadable files, failures at "
    "run\n"
    "time, and runs that were interrupted\n";

}  // namespace

int main(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name == "--help") {
    std::fputs(kUsage.data(), stdout);
    return 0;
  }
  for (const auto& [command, run] : kCommands) {
    if (name != command) continue;
    try {
      const plait::Result<int> result = run(argc - 1, argv + 1);
      if (result) return *result;
      std::fprintf(stderr, "error: %s [%s]\n", result.error().message.c_str(), result.error().rule.c_str());
      return plait::exit_code(result.error().code);
    } catch (const std::exception& e) {
      // Our own mistake, or memory that ran out in a place that cannot return an error.
      std::fprintf(stderr, "internal error: %s\n", e.what());
      return 3;
    }
  }
  std::fprintf(stderr, "error: unknown command \"%.*s\"\n%s", static_cast<int>(name.size()), name.data(),
               kUsage.data());
  return 2;
}
