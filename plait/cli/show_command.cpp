#include "plait/cli/command.h"
#include "plait/cli/program_json.h"
#include "plait/cli/schedule_source.h"
#include "plait/cli/timing.h"
#include "plait/ir/text.h"
#include "plait/ir/torch_lowering.h"
#include "plait/view/grid.h"
#include "plait/view/svg.h"

#include <CLI/CLI.hpp>
#include <unistd.h>

#include <cstdlib>
#include <memory>

namespace plait {
namespace {

struct Options {
  std::string source;
  std::string format = "grid";
  ScheduleFlags flags;
  TimingFlags timing;
  CsvFlags csv;
};

/// Colours where a person looks, unless they asked for none (no-color.org).
Colors terminal_colors() {
  const char* no_color = std::getenv("NO_COLOR");
  const bool wanted = no_color == nullptr || *no_color == '\0';
  return wanted && ::isatty(STDOUT_FILENO) == 1 ? Colors::kAnsi : Colors::kNone;
}

Result<std::string> picture(const Options& options, LoadedSchedule loaded) {
  const std::string title = loaded.layout().name;
  PLAIT_TRY(const TimedProgram timed, time_step(std::move(loaded), options.timing, Detail::kTimeline));
  const Timeline timeline = make_timeline(timed.program, timed.result, title, timed.costs.unit);
  if (options.format == "svg") return draw_svg({timeline});
  return draw_grid(timeline, {.colors = terminal_colors()});
}

Result<std::string> as_compute_only(const ScheduleOrProgram& content) {
  if (const auto* schedule = std::get_if<Schedule>(&content)) return export_torch_csv(*schedule);
  return make_error(ErrorCode::kInvalidArgument, "show.program",
                    "this is a program with its transfers; --format csv holds none, use csv-comms");
}

Result<std::string> as_compute_comms(const ScheduleOrProgram& content, TorchVersion version) {
  if (const auto* program = std::get_if<Program>(&content)) return export_torch_csv(*program, version);
  PLAIT_TRY(const Program program, lower_as_torch(std::get<Schedule>(content), {.version = version}));
  return export_torch_csv(program, version);
}

Result<std::string> printed(const Options& options, LoadedSchedule loaded, TorchVersion version) {
  if (options.format == "text") return std::visit([](const auto& held) { return print_text(held); }, loaded.content);
  if (options.format == "csv") return as_compute_only(loaded.content);
  if (options.format == "csv-comms") return as_compute_comms(loaded.content, version);
  if (options.format == "json") return program_as_json(loaded.layout(), loaded.rows());
  return picture(options, std::move(loaded));
}

Result<int> run(const Options& options) {
  PLAIT_TRY(const TorchCsvOptions csv, resolve_csv(options.csv));
  PLAIT_TRY(LoadedSchedule loaded, load_schedule(options.source, options.flags, csv));
  PLAIT_TRY(const std::string text, printed(options, std::move(loaded), csv.version));
  PLAIT_TRY_VOID(print_out(text));
  return 0;
}

}  // namespace

void add_show_command(CLI::App& parent, CommandBody& chosen) {
  CLI::App* command = parent.add_subcommand("show", "print a schedule as a grid in time, text, CSV, JSON or SVG");
  const auto options = std::make_shared<Options>();
  command->add_option("schedule", options->source, "NAME or FILE")->required();
  command->add_option("--format", options->format, "grid, text, csv, csv-comms, json or svg")
      ->check(CLI::IsMember({"grid", "text", "csv", "csv-comms", "json", "svg"}))
      ->capture_default_str();
  add_schedule_flags(*command, options->flags);
  add_timing_flags(*command, options->timing);
  add_csv_flags(*command, options->csv);
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace plait
