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
  std::string source;
  std::string format = "text";
  std::string lookahead = "full";
  bool defer_recv = false;
  bool defer_reduce_grad_wait = false;
  std::optional<int> max_outstanding_sends;
  int max_active_stages = 3;
  ScheduleFlags flags;
  CsvFlags csv;
};

/// --format csv-comms lowers as PyTorch does, byte for byte; the others as Plait does.
Result<std::string> lowered_as_torch(const Options& options, const Schedule& schedule, TorchVersion version) {
  PLAIT_TRY(const UnshardLookahead lookahead, parse_unshard_lookahead(options.lookahead));
  PLAIT_TRY(const Program program, lower_as_torch(schedule, {.defer_recv = options.defer_recv,
                                                             .max_outstanding_sends = options.max_outstanding_sends,
                                                             .unshard_lookahead = lookahead,
                                                             .max_active_stages = options.max_active_stages,
                                                             .defer_reduce_grad_wait = options.defer_reduce_grad_wait,
                                                             .version = version}));
  return export_torch_csv(program, version);
}

bool asks_for_torch(const Options& options) {
  const Options unset;
  return options.defer_recv || options.defer_reduce_grad_wait || options.max_outstanding_sends ||
         options.lookahead != unset.lookahead || options.max_active_stages != unset.max_active_stages;
}

Result<int> run(const Options& options) {
  if (options.format != "csv-comms" && asks_for_torch(options))
    return make_error(ErrorCode::kInvalidArgument, "flags.conflict",
                      "the options of PyTorch's lowering need --format csv-comms, not {}", options.format);
  PLAIT_TRY(const TorchCsvOptions csv, resolve_csv(options.csv));
  PLAIT_TRY(LoadedSchedule loaded, load_schedule(options.source, options.flags, csv));
  const auto* schedule = std::get_if<Schedule>(&loaded.content);
  if (schedule == nullptr)
    return make_error(ErrorCode::kInvalidArgument, "lower.program",
                      "{} is lowered already; `plait schedule show` prints it", options.source);
  std::string text;
  if (options.format == "csv-comms") {
    PLAIT_TRY(text, lowered_as_torch(options, *schedule, csv.version));
  } else {
    PLAIT_TRY(const Program program, lowered(std::move(loaded.content)));
    text = options.format == "json" ? program_as_json(program.layout, program.rows) : print_text(program);
  }
  PLAIT_TRY_VOID(print_out(text));
  return 0;
}

}  // namespace

void add_lower_command(CLI::App& parent, CommandBody& chosen) {
  CLI::App* command =
      parent.add_subcommand("lower", "turn a schedule into a program: transfers, waits, reductions and steps");
  const auto options = std::make_shared<Options>();
  command->add_option("schedule", options->source, "NAME or FILE")->required();
  command->add_option("--format", options->format, "text, json, or csv-comms (lowered as PyTorch does)")
      ->check(CLI::IsMember({"text", "json", "csv-comms"}))
      ->capture_default_str();
  constexpr const char* kTorch = "PyTorch's lowering (csv-comms)";
  command->add_flag("--defer-recv", options->defer_recv, "post each receive just before the op that needs it")
      ->group(kTorch);
  command
      ->add_option("--max-outstanding-sends", options->max_outstanding_sends,
                   "most sends of a rank that are not waited for yet")
      ->group(kTorch);
  command->add_option("--unshard-lookahead", options->lookahead, "full, auto, or one number per rank: 2,3,3,3")
      ->capture_default_str()
      ->group(kTorch);
  command->add_option("--max-active-stages", options->max_active_stages, "gathered stages that a rank keeps")
      ->capture_default_str()
      ->group(kTorch);
  command
      ->add_flag("--defer-reduce-grad-wait", options->defer_reduce_grad_wait,
                 "wait for a reduction just before the rank's next one")
      ->group(kTorch);
  add_schedule_flags(*command, options->flags);
  add_csv_flags(*command, options->csv);
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace plait
