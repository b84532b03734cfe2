#include "plait/base/files.h"
#include "plait/cli/command.h"
#include "plait/cli/program_json.h"
#include "plait/cli/schedule_source.h"
#include "plait/ir/text.h"
#include "plait/ir/torch_lowering.h"

#include <CLI/CLI.hpp>

#include <memory>

namespace plait {
namespace {

struct Options {
  std::string input;
  std::string output;
  std::string to = "by-name";
  CsvFlags csv;
};

/// Of .plait, .csv and .json; a program becomes csv-comms.
Result<std::string> format_of(const Options& options, const ScheduleOrProgram& content) {
  if (options.to != "by-name") return options.to;
  if (options.output.ends_with(".plait")) return std::string("text");
  if (options.output.ends_with(".csv"))
    return std::string(std::holds_alternative<Program>(content) ? "csv-comms" : "csv");
  if (options.output.ends_with(".json")) return std::string("json");
  return make_error(ErrorCode::kInvalidArgument, "convert.format",
                    "{}: the name ends in none of .plait, .csv, .json; say --to text, csv, csv-comms or json",
                    options.output);
}

Result<std::string> converted(const std::string& format, const LoadedSchedule& loaded, TorchVersion version) {
  if (format == "text") return std::visit([](const auto& held) { return print_text(held); }, loaded.content);
  if (format == "json") return program_as_json(loaded.layout(), loaded.rows());
  if (const auto* program = std::get_if<Program>(&loaded.content)) {
    if (format == "csv-comms") return export_torch_csv(*program, version);
    return make_error(ErrorCode::kInvalidArgument, "convert.program",
                      "{} holds a program with its transfers; csv holds none, use csv-comms", loaded.layout().name);
  }
  const auto& schedule = std::get<Schedule>(loaded.content);
  if (format == "csv") return export_torch_csv(schedule);
  PLAIT_TRY(const Program program, lower_as_torch(schedule, {.version = version}));
  return export_torch_csv(program, version);
}

Result<int> run(const Options& options) {
  PLAIT_TRY(const TorchCsvOptions csv, resolve_csv(options.csv));
  PLAIT_TRY(const LoadedSchedule loaded, load_schedule(options.input, {}, csv));
  PLAIT_TRY(const std::string format, format_of(options, loaded.content));
  PLAIT_TRY(const std::string text, converted(format, loaded, csv.version));
  if (options.output == "-") {
    PLAIT_TRY_VOID(print_out(text));
  } else {
    PLAIT_TRY_VOID(write_file(options.output, text));
  }
  return 0;
}

}  // namespace

void add_convert_command(CLI::App& parent, CommandBody& chosen) {
  CLI::App* command = parent.add_subcommand("convert", "rewrite a schedule file in another format");
  const auto options = std::make_shared<Options>();
  command->add_option("input", options->input, "file in the text format or PyTorch's CSV")->required();
  command->add_option("output", options->output, "file to write, or - for standard output")->required();
  command->add_option("--to", options->to, "text, csv, csv-comms, json, or by-name: what the output's name ends in")
      ->check(CLI::IsMember({"by-name", "text", "csv", "csv-comms", "json"}))
      ->capture_default_str();
  add_csv_flags(*command, options->csv);
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace plait
