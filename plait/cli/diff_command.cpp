#include "plait/base/table.h"
#include "plait/cli/command.h"
#include "plait/cli/diff.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <memory>

namespace plait {
namespace {

struct Options {
  std::string left;
  std::string right;
  std::string format = "table";
  ScheduleFlags flags;
  CsvFlags csv;
};

std::string as_table(const ScheduleDiff& diff) {
  if (diff.equal()) return "equal\n";
  std::string text;
  for (const std::string& line : diff.header) text += line + "\n";
  const auto shown = [](const std::string& token) { return token.empty() ? "(end of row)" : token; };
  for (const ScheduleDiff::Place& place : diff.first)
    text += fmt::format("first difference: rank {}, position {}: {} | {}\n", place.rank, place.position,
                        shown(place.left), shown(place.right));
  if (diff.first.empty()) return text;
  TextTable table(
      {{"rank", Align::kRight}, {"only_left", Align::kRight}, {"only_right", Align::kRight}, {"moved", Align::kRight}});
  for (std::size_t rank = 0; rank < diff.ranks.size(); ++rank) {
    const ScheduleDiff::RankSummary& summary = diff.ranks[rank];
    table.add_row({std::to_string(rank), std::to_string(summary.only_left), std::to_string(summary.only_right),
                   std::to_string(summary.moved)});
  }
  return text + table.print();
}

std::string as_json(const ScheduleDiff& diff) {
  nlohmann::ordered_json json = {{"equal", diff.equal()},
                                 {"header", diff.header},
                                 {"first_difference", nullptr},
                                 {"ranks", nlohmann::ordered_json::array()}};
  for (const ScheduleDiff::Place& place : diff.first)
    json["first_difference"] = {
        {"rank", place.rank}, {"position", place.position}, {"left", place.left}, {"right", place.right}};
  for (const ScheduleDiff::RankSummary& rank : diff.ranks)
    json["ranks"].push_back({{"only_left", rank.only_left}, {"only_right", rank.only_right}, {"moved", rank.moved}});
  return json.dump(2) + "\n";
}

Result<int> run(const Options& options) {
  PLAIT_TRY(const TorchCsvOptions csv, resolve_csv(options.csv));
  PLAIT_TRY(const LoadedSchedule left, load_schedule(options.left, options.flags, csv));
  PLAIT_TRY(const LoadedSchedule right, load_schedule(options.right, options.flags, csv));
  PLAIT_TRY(const ScheduleDiff diff, diff_schedules(left.content, right.content));
  PLAIT_TRY_VOID(print_out(options.format == "json" ? as_json(diff) : as_table(diff)));
  return diff.equal() ? 0 : 1;
}

}  // namespace

void add_diff_command(CLI::App& parent, CommandBody& chosen) {
  CLI::App* command = parent.add_subcommand(
      "diff", "first difference of two schedules, and how much differs; exit code 1 if anything does");
  const auto options = std::make_shared<Options>();
  command->add_option("left", options->left, "NAME or FILE")->required();
  command->add_option("right", options->right, "NAME or FILE")->required();
  command->add_option("--format", options->format, "table or json")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
  add_schedule_flags(*command, options->flags);
  add_csv_flags(*command, options->csv);
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace plait
