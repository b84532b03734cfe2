#include "plait/cli/command.h"

#include "plait/cli/handover.h"

#include <CLI/CLI.hpp>

#include <cerrno>
#include <cstdio>
#include <system_error>

namespace plait {

void add_csv_flags(CLI::App& app, CsvFlags& flags) {
  constexpr const char* kGroup = "PyTorch CSV";
  app.add_option("--torch-version", flags.torch_version, "release whose notation a file has")
      ->capture_default_str()
      ->group(kGroup);
  app.add_flag("--lenient", flags.lenient, "accept what PyTorch's own reader accepts")->group(kGroup);
}

Result<TorchCsvOptions> resolve_csv(const CsvFlags& flags) {
  PLAIT_TRY(const TorchVersion version, parse_torch_version(flags.torch_version));
  return TorchCsvOptions{.version = version,
                         .reading = flags.lenient ? CsvReading::kLenient : CsvReading::kStrict,
                         .checks = CsvChecks::kForVerifier};
}

Result<> print_out(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return {};
  return make_error(ErrorCode::kIo, "io.write", "standard output: {}", std::generic_category().message(errno));
}

void add_commands(CLI::App& app, CommandBody& chosen) {
  app.set_version_flag("--version", PLAIT_VERSION, "print the version");
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::simple);
  CLI::App* schedule = app.add_subcommand("schedule", "write, print, count, prove and convert schedules");
  schedule->require_subcommand(1);
  add_list_command(*schedule, chosen);
  add_show_command(*schedule, chosen);
  add_stats_command(*schedule, chosen);
  add_check_command(*schedule, chosen);
  add_lower_command(*schedule, chosen);
  add_diff_command(*schedule, chosen);
  add_convert_command(*schedule, chosen);
  add_simulate_command(app, chosen);
  add_view_command(app, chosen);
  add_info_command(app, chosen);
  for (const HandedOver& command : handed_over())
    app.add_subcommand(std::string(command.name), std::string(command.summary));
}

}  // namespace plait
