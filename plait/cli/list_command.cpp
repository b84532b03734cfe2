#include "plait/base/table.h"
#include "plait/cli/command.h"
#include "plait/schedules/schedule_info.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <memory>

namespace plait {
namespace {

std::string list_as_json() {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ScheduleInfo* info : all_schedules())
    list.push_back({{"name", info->name},
                    {"summary", info->summary},
                    {"needs", info->needs},
                    {"forms", info->forms},
                    {"source", info->source}});
  return list.dump(2) + "\n";
}

std::string list_as_table() {
  TextTable table({{"name"}, {"needs"}, {"forms"}, {"source"}});
  for (const ScheduleInfo* info : all_schedules())
    table.add_row(
        {std::string(info->name), std::string(info->needs), std::string(info->forms), std::string(info->source)});
  return table.print();
}

}  // namespace

void add_list_command(CLI::App& parent, CommandBody& chosen) {
  CLI::App* command = parent.add_subcommand("list", "names, needs, closed forms and sources of all schedules");
  const auto format = std::make_shared<std::string>("table");
  command->add_option("--format", *format, "table or json")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
  command->callback([format, &chosen] {
    chosen = [format]() -> Result<int> {
      PLAIT_TRY_VOID(print_out(*format == "json" ? list_as_json() : list_as_table()));
      return 0;
    };
  });
}

}  // namespace plait
