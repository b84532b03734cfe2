#include "plait/cli/command.h"
#include "plait/cli/handover.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <iostream>

namespace {

constexpr int kRefused = 2;
constexpr int kFailed = 3;

/// Every failure is one line on standard error: "plait: <message> [rule]".
int report(const plait::Error& error) {
  fmt::print(stderr, "plait: {} [{}]\n", error.message, error.rule);
  return plait::exit_code(error.code);
}

int run(int argc, char** argv) {
  if (argc > 1 && plait::is_handed_over(argv[1])) return report(plait::hand_over(argv));
  CLI::App app("Writes, proves, times, draws and runs parallel schedules of transformer training.", "plait");
  plait::CommandBody chosen;
  plait::add_commands(app, chosen);
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
