#include "plait/base/files.h"
#include "plait/cli/command.h"
#include "plait/cli/timing.h"
#include "plait/view/chrome_trace.h"
#include "plait/view/grid.h"
#include "plait/view/html.h"
#include "plait/view/svg.h"

#include <CLI/CLI.hpp>

#include <filesystem>
#include <memory>

namespace plait {
namespace {

struct Options {
  std::vector<std::string> sources;
  std::string format = "html";
  std::string out;
  ScheduleFlags flags;
  TimingFlags timing;
  CostFlags costs;
  CsvFlags csv;
};

bool is_measured(const std::string& source) {
  return std::filesystem::path(source).extension() == ".json";
}

Result<Timeline> load(const std::string& source, const Options& options) {
  if (is_measured(source)) {
    PLAIT_TRY(const std::string text, read_file(source));
    return read_trace(text, "");
  }
  PLAIT_TRY(const TorchCsvOptions csv, resolve_csv(options.csv));
  PLAIT_TRY(const TimedProgram timed,
            time_source(source, options.flags, options.timing, options.costs, csv, Detail::kTimeline));
  return make_timeline(timed.program, timed.result, timed.program.layout.name, timed.costs.unit);
}

/// A run's folder stands for what was written and what was measured.
std::vector<std::string> expanded(const std::vector<std::string>& sources) {
  std::vector<std::string> all;
  for (const std::string& source : sources) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(source, ignored)) {
      all.push_back(source);
      continue;
    }
    all.push_back(source + "/program.plait");
    all.push_back(source + "/trace.json");
  }
  return all;
}

Result<int> run(const Options& options) {
  std::vector<Timeline> timelines;
  for (const std::string& source : expanded(options.sources)) {
    PLAIT_TRY(Timeline timeline, load(source, options));
    timelines.push_back(std::move(timeline));
  }
  std::string text;
  if (options.format == "html") text = draw_html(timelines);
  if (options.format == "svg") text = draw_svg(timelines);
  if (options.format == "trace") text = chrome_trace(timelines);
  if (options.format == "grid") {
    for (const Timeline& timeline : timelines) text += timeline.title + "\n" + draw_grid(timeline) + "\n";
  }
  if (options.out.empty()) {
    PLAIT_TRY_VOID(print_out(text));
  } else {
    PLAIT_TRY_VOID(write_file(options.out, text));
  }
  return 0;
}

}  // namespace

void add_view_command(CLI::App& parent, CommandBody& chosen) {
  CLI::App* command = parent.add_subcommand(
      "view", "draw one step or several: schedules simulated, trace.json files and folders of runs as measured");
  const auto options = std::make_shared<Options>();
  command->add_option("sources", options->sources, "NAME, FILE, trace.json or a run's folder; several are compared")
      ->required();
  command
      ->add_option("--format", options->format, "html (one page, no network), svg, trace (for ui.perfetto.dev) or grid")
      ->check(CLI::IsMember({"html", "svg", "trace", "grid"}))
      ->capture_default_str();
  command->add_option("--out", options->out, "file to write instead of standard output");
  add_schedule_flags(*command, options->flags);
  add_timing_flags(*command, options->timing);
  add_cost_flags(*command, options->costs);
  add_csv_flags(*command, options->csv);
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace plait
