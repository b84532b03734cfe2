#pragma once

#include "plait/base/result.h"
#include "plait/cli/schedule_flags.h"
#include "plait/ir/torch_csv.h"

#include <functional>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace plait {

/// What a parsed command line does; the value is the exit code.
using CommandBody = std::function<Result<int>()>;

// Each adds one command to `parent` and, when it is the one that is given, puts its body into `chosen`.
void add_list_command(CLI::App& parent, CommandBody& chosen);
void add_show_command(CLI::App& parent, CommandBody& chosen);
void add_stats_command(CLI::App& parent, CommandBody& chosen);
void add_check_command(CLI::App& parent, CommandBody& chosen);
void add_lower_command(CLI::App& parent, CommandBody& chosen);
void add_diff_command(CLI::App& parent, CommandBody& chosen);
void add_convert_command(CLI::App& parent, CommandBody& chosen);
void add_simulate_command(CLI::App& parent, CommandBody& chosen);
void add_view_command(CLI::App& parent, CommandBody& chosen);
void add_info_command(CLI::App& parent, CommandBody& chosen);

/// The whole command line of `plait`.
void add_commands(CLI::App& app, CommandBody& chosen);

/// How PyTorch's CSV files are read and written.
struct CsvFlags {
  std::string torch_version = "2.15";
  bool lenient = false;
};
void add_csv_flags(CLI::App& app, CsvFlags& flags);
/// The verifier reports what is wrong in a file, so that it reports all of it.
Result<TorchCsvOptions> resolve_csv(const CsvFlags& flags);

/// Writes to standard output. \errors kIo "io.write", for instance when the disk is full
Result<> print_out(std::string_view text);

}  // namespace plait
