#include "plait/base/ids.h"
#include "plait/base/table.h"
#include "plait/base/units.h"
#include "plait/cli/command.h"
#include "plait/cli/handover.h"
#include "plait/schedules/schedule_info.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <memory>
#include <thread>

namespace plait {
namespace {

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

Bytes physical_memory() {
  return Bytes{static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE)};
}

nlohmann::ordered_json facts() {
  const bool can_run = ::access(run_program_path().c_str(), X_OK) == 0;
  return {
      {"version", PLAIT_VERSION},
      {"compiler", compiler()},
      {"build_type", PLAIT_BUILD_TYPE},
      {"schedules", all_schedules().size()},
      {"devices",
       {{{"kind", "cpu"}, {"cores", std::thread::hardware_concurrency()}, {"memory", print_bytes(physical_memory())}}}},
      {"transports", can_run ? nlohmann::ordered_json{"threads"} : nlohmann::ordered_json::array()},
      {"plait_run", can_run ? run_program_path() : "not built (make build)"}};
}

std::string as_table(const nlohmann::ordered_json& facts) {
  TextTable table({{"fact"}, {"value"}});
  for (const auto& [key, value] : facts.items())
    table.add_row({key, value.is_string() ? value.get<std::string>() : value.dump()});
  return table.print();
}

}  // namespace

void add_info_command(CLI::App& parent, CommandBody& chosen) {
  CLI::App* command = parent.add_subcommand("info", "this build, the devices and the transports it can use");
  const auto format = std::make_shared<std::string>("table");
  command->add_option("--format", *format, "table or json")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
  command->callback([format, &chosen] {
    chosen = [format]() -> Result<int> {
      PLAIT_TRY_VOID(print_out(*format == "json" ? facts().dump(2) + "\n" : as_table(facts())));
      return 0;
    };
  });
}

}  // namespace plait
