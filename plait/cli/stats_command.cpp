#include "plait/base/table.h"
#include "plait/cli/command.h"
#include "plait/cli/schedule_source.h"
#include "plait/cli/stats.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <memory>

namespace plait {
namespace {

struct Options {
  std::string source;
  std::string format = "table";
  ScheduleFlags flags;
  CsvFlags csv;
};

std::string as_json(const ProgramStats& stats) {
  nlohmann::ordered_json json;
  json["total"] = stats.total;
  json["ranks"] = stats.ranks;
  return json.dump(2) + "\n";
}

std::string as_table(const ProgramStats& stats) {
  std::vector<TextTable::Column> columns{{"instruction"}, {"value"}, {"total", Align::kRight}};
  for (std::size_t rank = 0; rank < stats.ranks.size(); ++rank)
    columns.push_back({"rank " + std::to_string(rank), Align::kRight});
  TextTable table(std::move(columns));
  for (const auto& [kind, by_value] : stats.total) {
    for (const auto& [value, total] : by_value) {
      std::vector<std::string> cells{kind, value, std::to_string(total)};
      for (const Counts& rank : stats.ranks) {
        const auto found = rank.find(kind);
        const bool there = found != rank.end() && found->second.contains(value);
        cells.push_back(std::to_string(there ? found->second.at(value) : 0));
      }
      table.add_row(std::move(cells));
    }
  }
  return table.print();
}

Result<int> run(const Options& options) {
  PLAIT_TRY(const TorchCsvOptions csv, resolve_csv(options.csv));
  PLAIT_TRY(LoadedSchedule loaded, load_schedule(options.source, options.flags, csv));
  PLAIT_TRY(const Program program, lowered(std::move(loaded.content)));
  const ProgramStats stats = count_instructions(program);
  PLAIT_TRY_VOID(print_out(options.format == "json" ? as_json(stats) : as_table(stats)));
  return 0;
}

}  // namespace

void add_stats_command(CLI::App& parent, CommandBody& chosen) {
  CLI::App* command = parent.add_subcommand("stats", "count instructions by kind and by the value they carry");
  const auto options = std::make_shared<Options>();
  command->add_option("schedule", options->source, "NAME or FILE")->required();
  command->add_option("--format", options->format, "table or json")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
  add_schedule_flags(*command, options->flags);
  add_csv_flags(*command, options->csv);
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace plait
