#include "plait/base/table.h"
#include "plait/base/units.h"
#include "plait/cli/command.h"
#include "plait/cli/timing.h"
#include "plait/view/chrome_trace.h"
#include "plait/view/html.h"
#include "plait/view/svg.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <memory>

namespace plait {
namespace {

struct Options {
  std::string source;
  std::string format = "table";
  ScheduleFlags flags;
  TimingFlags timing;
  CsvFlags csv;
};

using Json = nlohmann::ordered_json;

/// Exact where the time is a whole number of units.
Json in_units(std::int64_t ticks, std::int64_t ticks_per_unit) {
  if (ticks % ticks_per_unit == 0) return ticks / ticks_per_unit;
  return static_cast<double>(ticks) / static_cast<double>(ticks_per_unit);
}

std::string as_json(const TimedProgram& timed) {
  const SimResult& result = timed.result;
  const auto units = [&](std::int64_t ticks) { return in_units(ticks, result.ticks_per_unit); };
  Json json = {{"makespan", units(result.makespan)},
               {"bubble_max", units(result.bubble_max)},
               {"bubble_ratio", result.bubble_ratio},
               {"bubble_c", result.bubble_c},
               {"ranks", Json::array()},
               {"transfers",
                {{"count", result.transfers.count},
                 {"bytes", result.transfers.bytes},
                 {"exposed", units(result.transfers.exposed)}}}};
  for (const RankFigures& rank : result.ranks) {
    const auto peak = in_microbatches(timed.program.layout, rank.peak_stashes);
    json["ranks"].push_back({{"busy", units(rank.busy)},
                             {"idle", units(rank.idle)},
                             {"exposed_transfer", units(rank.exposed_transfer)},
                             {"peak_activations", peak ? Json(*peak) : Json(nullptr)},
                             {"peak_bytes", rank.peak_bytes}});
  }
  return json.dump(2) + "\n";
}

std::string as_table(const TimedProgram& timed) {
  const SimResult& result = timed.result;
  const auto units = [&](std::int64_t ticks) { return print_ticks(ticks, result.ticks_per_unit); };
  TextTable figures({{"figure"}, {"value", Align::kRight}, {"definition"}});
  figures.add_row({"makespan", units(result.makespan), "first start to last end over all ranks"});
  figures.add_row({"bubble_max", units(result.bubble_max), "largest idle time between a rank's own first and last op"});
  figures.add_row({"bubble_ratio", fmt::format("{:.4f}", result.bubble_ratio), "(makespan - mean busy) / makespan"});
  figures.add_row(
      {"bubble_c", fmt::format("{:.4f}", result.bubble_c), "(C - mean busy) / C, C = longest of the ranks' own spans"});
  figures.add_row({"transfers.count", std::to_string(result.transfers.count), "point-to-point messages"});
  figures.add_row({"transfers.bytes", std::to_string(result.transfers.bytes), "bytes of them"});
  figures.add_row({"transfers.exposed", units(result.transfers.exposed), "sum of the ranks' exposed_transfer"});
  TextTable ranks({{"rank", Align::kRight},
                   {"busy", Align::kRight},
                   {"idle", Align::kRight},
                   {"exposed_transfer", Align::kRight},
                   {"peak_activations", Align::kRight},
                   {"peak_bytes", Align::kRight}});
  for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
    const RankFigures& row = result.ranks[rank];
    const auto peak = in_microbatches(timed.program.layout, row.peak_stashes);
    ranks.add_row({std::to_string(rank), units(row.busy), units(row.idle), units(row.exposed_transfer),
                   peak ? fmt::format("{}", *peak) : "-", std::to_string(row.peak_bytes)});
  }
  return figures.print() + "\n" + ranks.print();
}

Result<int> run(const Options& options) {
  PLAIT_TRY(const TorchCsvOptions csv, resolve_csv(options.csv));
  PLAIT_TRY(LoadedSchedule loaded, load_schedule(options.source, options.flags, csv));
  const bool drawn = options.format == "trace" || options.format == "svg" || options.format == "html";
  const std::string title = loaded.layout().name;
  PLAIT_TRY(const TimedProgram timed,
            time_step(std::move(loaded), options.flags, options.timing, drawn ? Detail::kTimeline : Detail::kFigures));
  std::string text;
  if (options.format == "json") text = as_json(timed);
  if (options.format == "table") text = as_table(timed);
  if (options.format == "trace") text = chrome_trace({make_timeline(timed.program, timed.result, title)});
  if (options.format == "svg") text = draw_svg({make_timeline(timed.program, timed.result, title)});
  if (options.format == "html") text = draw_html({make_timeline(timed.program, timed.result, title)});
  PLAIT_TRY_VOID(print_out(text));
  return 0;
}

}  // namespace

void add_simulate_command(CLI::App& parent, CommandBody& chosen) {
  CLI::App* command =
      parent.add_subcommand("simulate", "time a step: makespan, bubbles, idle time and memory per rank");
  const auto options = std::make_shared<Options>();
  command->add_option("schedule", options->source, "NAME or FILE")->required();
  command->add_option("--format", options->format, "table, json, trace (for ui.perfetto.dev), svg or html")
      ->check(CLI::IsMember({"table", "json", "trace", "svg", "html"}))
      ->capture_default_str();
  add_schedule_flags(*command, options->flags);
  add_timing_flags(*command, options->timing);
  add_csv_flags(*command, options->csv);
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace plait
