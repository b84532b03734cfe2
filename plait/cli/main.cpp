#include "plait/cli/command.h"
#include "plait/cli/handover.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>

namespace {

constexpr int kRefused = 2;
constexpr int kFailed = 3;

/// Every failure is one line on standard error: "plait: <message> [rule]".
int report(const plait::Error& error) {
  fmt::print(stderr, "plait: {} [{}]\n", error.message, error.rule);
  return plait::exit_code(error.code);
}

/// A word where a command is expected but none has that name; CLI11 would only say that one is required.
std::optional<plait::Error> unknown_command(const CLI::App& app, int argc, char** argv) {
  const CLI::App* parent = &app;
  for (int at = 1; at < argc; ++at) {
    const auto commands = parent->get_subcommands([](const CLI::App*) { return true; });
    if (commands.empty() || argv[at][0] == '-') return {};
    const auto named = std::find_if(commands.begin(), commands.end(),
                                    [&](const CLI::App* command) { return command->get_name() == argv[at]; });
    if (named == commands.end()) {
      std::string known;
      for (const CLI::App* command : commands) known += (known.empty() ? "" : ", ") + command->get_name();
      return plait::make_error(plait::ErrorCode::kInvalidArgument, "cli.unknown_command",
                               "no command is named '{}'; there are: {}", argv[at], known);
    }
    parent = *named;
  }
  return {};
}

int run(int argc, char** argv) {
  if (argc > 1 && plait::is_handed_over(argv[1])) return report(plait::hand_over(argv));
  CLI::App app("Writes, proves, times, draws and runs parallel schedules of transformer training.", "plait");
  plait::CommandBody chosen;
  plait::add_commands(app, chosen);
  if (const auto error = unknown_command(app, argc, argv)) return report(*error);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app.exit(error);
    fmt::print(stderr, "plait: {} [cli.flags]\n", error.what());
    return kRefused;
  }
  const plait::Result<int> result = chosen();
  return result ? *result : report(result.error());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "plait: {} [internal]\n", error.what());
    return kFailed;
  }
}
