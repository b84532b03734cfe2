#include "plait/base/table.h"
#include "plait/base/units.h"
#include "plait/cli/command.h"
#include "plait/cli/timing.h"
#include "plait/sim/model_shape.h"
#include "plait/view/chrome_trace.h"
#include "plait/view/html.h"
#include "plait/view/svg.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace plait {
namespace {

struct Options {
  std::string source;
  std::string format = "table";
  ScheduleFlags flags;
  TimingFlags timing;
  CostFlags costs;
  CsvFlags csv;
};

using Json = nlohmann::ordered_json;

/// Exact where the time is a whole number of units.
Json in_units(std::int64_t ticks, std::int64_t ticks_per_unit) {
  if (ticks % ticks_per_unit == 0) return ticks / ticks_per_unit;
  return static_cast<double>(ticks) / static_cast<double>(ticks_per_unit);
}

/// Who holds the bytes of a rank when it holds the most.
std::vector<std::pair<std::string, std::int64_t>> owners_at_peak(const TimedProgram& timed, std::size_t rank) {
  const MemoryOwners owners = memory_owners(timed.program, timed.costs, RankId{static_cast<std::int32_t>(rank)},
                                            timed.result.ranks[rank].peak_position);
  return {{"weights", owners.weights}, {"gradients", owners.gradients}, {"optimizer", owners.optimizer},
          {"stash", owners.stash},     {"logits", owners.logits},       {"weight_stash", owners.weight_stash},
          {"buffers", owners.buffers}, {"transient", owners.transient}, {"fixed", owners.fixed}};
}

/// The paper's formula for a named schedule, where it is not what a replay gives.
std::optional<double> published_bubble_ratio(const Options& options) {
  const auto info = find_schedule(options.source);
  if (!info) return {};
  const auto request = resolve_flags(options.flags);
  if (!request || request->shape.replicas.value_or(1) > 1) return {};
  return (*info)->expect(request->shape).published_bubble_ratio;
}

std::string as_json(const TimedProgram& timed, std::optional<double> published) {
  const SimResult& result = timed.result;
  const auto units = [&](std::int64_t ticks) { return in_units(ticks, result.ticks_per_unit); };
  Json json = {{"makespan", units(result.makespan)},
               {"period", units(result.period)},
               {"bubble_max", units(result.bubble_max)},
               {"bubble_ratio", result.bubble_ratio},
               {"bubble_c", result.bubble_c},
               {"ranks", Json::array()},
               {"transfers",
                {{"count", result.transfers.count},
                 {"bytes", result.transfers.bytes},
                 {"exposed", units(result.transfers.exposed)}}}};
  if (!timed.costs.unit.empty()) json["unit"] = timed.costs.unit;
  // The bubble in two terms: before a rank's first and behind its last op, and between them.
  double between = 0;
  for (const RankFigures& rank : result.ranks)
    between += static_cast<double>(rank.idle) / static_cast<double>(result.ranks.size());
  const double inner = result.makespan > 0 ? between / static_cast<double>(result.makespan) : 0;
  json["bubble_inner"] = inner;
  json["bubble_stagger"] = result.bubble_ratio - inner;
  if (published) json["published_bubble_ratio"] = *published;
  json["turns"] = result.turns.empty() ? Json(nullptr) : Json(result.turns.size());
  const std::vector<double> elements = peak_elements(timed.program);
  for (std::size_t r = 0; r < result.ranks.size(); ++r) {
    const RankFigures& rank = result.ranks[r];
    const auto peak = in_microbatches(timed.program.layout, rank.peak_stashes);
    json["ranks"].push_back({{"busy", units(rank.busy)},
                             {"idle", units(rank.idle)},
                             {"exposed_transfer", units(rank.exposed_transfer)},
                             {"peak_activations", peak ? Json(*peak) : Json(nullptr)},
                             {"peak_elements", elements[r]},
                             {"peak_bytes", rank.peak_bytes}});
    if (rank.peak_bytes == 0) continue;
    Json owners;
    for (const auto& [owner, bytes] : owners_at_peak(timed, r)) owners[owner] = bytes;
    json["ranks"].back()["peak_owners"] = std::move(owners);
  }
  return json.dump(2) + "\n";
}

std::string owners_table(const TimedProgram& timed) {
  std::vector<TextTable::Column> columns = {{"rank", Align::kRight}, {"peak", Align::kRight}};
  for (const auto& [owner, bytes] : owners_at_peak(timed, 0)) columns.push_back({owner, Align::kRight});
  TextTable table(std::move(columns));
  for (std::size_t rank = 0; rank < timed.result.ranks.size(); ++rank) {
    std::vector<std::string> cells = {std::to_string(rank), print_bytes(Bytes{timed.result.ranks[rank].peak_bytes})};
    for (const auto& [owner, bytes] : owners_at_peak(timed, rank)) cells.push_back(print_bytes(Bytes{bytes}));
    table.add_row(std::move(cells));
  }
  return "who holds the bytes of a rank at its peak\n" + table.print();
}

std::string as_table(const TimedProgram& timed) {
  const SimResult& result = timed.result;
  const auto units = [&](std::int64_t ticks) { return print_ticks(ticks, result.ticks_per_unit); };
  const std::string unit = timed.costs.unit.empty() ? "" : " (" + timed.costs.unit + ")";
  TextTable figures({{"figure"}, {"value", Align::kRight}, {"definition"}});
  figures.add_row({"makespan" + unit, units(result.makespan), "first start to last end over all ranks"});
  figures.add_row({"period" + unit, units(result.period), "from a step's start to the next one's"});
  figures.add_row(
      {"bubble_max" + unit, units(result.bubble_max), "largest idle time between a rank's own first and last op"});
  figures.add_row({"bubble_ratio", fmt::format("{:.4f}", result.bubble_ratio), "(makespan - mean busy) / makespan"});
  figures.add_row(
      {"bubble_c", fmt::format("{:.4f}", result.bubble_c), "(C - mean busy) / C, C = longest of the ranks' own spans"});
  figures.add_row({"transfers.count", std::to_string(result.transfers.count), "point-to-point messages"});
  figures.add_row({"transfers.bytes", std::to_string(result.transfers.bytes), "bytes of them"});
  figures.add_row({"transfers.exposed" + unit, units(result.transfers.exposed), "sum of the ranks' exposed_transfer"});
  TextTable ranks({{"rank", Align::kRight},
                   {"busy", Align::kRight},
                   {"idle", Align::kRight},
                   {"exposed_transfer", Align::kRight},
                   {"peak_activations", Align::kRight},
                   {"peak_elements", Align::kRight},
                   {"peak_bytes", Align::kRight}});
  const std::vector<double> elements = peak_elements(timed.program);
  for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
    const RankFigures& row = result.ranks[rank];
    const auto peak = in_microbatches(timed.program.layout, row.peak_stashes);
    ranks.add_row({std::to_string(rank), units(row.busy), units(row.idle), units(row.exposed_transfer),
                   peak ? fmt::format("{}", *peak) : "-", fmt::format("{}", elements[rank]),
                   std::to_string(row.peak_bytes)});
  }
  std::string text = figures.print() + "\n" + ranks.print();
  const bool any_bytes = std::any_of(result.ranks.begin(), result.ranks.end(),
                                     [](const RankFigures& rank) { return rank.peak_bytes > 0; });
  if (any_bytes) text += "\n" + owners_table(timed);
  return text;
}

Result<int> run(const Options& options) {
  PLAIT_TRY(const TorchCsvOptions csv, resolve_csv(options.csv));
  const bool drawn = options.format == "trace" || options.format == "svg" || options.format == "html";
  PLAIT_TRY(const TimedProgram timed, time_source(options.source, options.flags, options.timing, options.costs, csv,
                                                  drawn ? Detail::kTimeline : Detail::kFigures));
  const std::string& title = timed.program.layout.name;
  std::string text;
  if (options.format == "json") text = as_json(timed, published_bubble_ratio(options));
  if (options.format == "table") text = as_table(timed);
  if (options.format == "trace")
    text = chrome_trace({make_timeline(timed.program, timed.result, title, timed.costs.unit)});
  if (options.format == "svg") text = draw_svg({make_timeline(timed.program, timed.result, title, timed.costs.unit)});
  if (options.format == "html") text = draw_html({make_timeline(timed.program, timed.result, title, timed.costs.unit)});
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
  add_cost_flags(*command, options->costs);
  add_csv_flags(*command, options->csv);
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace plait
