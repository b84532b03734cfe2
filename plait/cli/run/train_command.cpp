#include "plait/cli/run/commands.h"
#include "plait/cli/run/job.h"
#include "plait/cli/run/progress.h"
#include "plait/cli/run/stop_signal.h"
#include "plait/cli/run/summary.h"
#include "plait/cli/run/train_flags.h"
#include "plait/run/processes/nccl_table.h"
#include "plait/run/train/model_source.h"
#include "plait/run/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace plait::cli {
namespace {

namespace fs = std::filesystem;

constexpr double kValidationFraction = 0.02;  // of a text; rows from JSON are all trained on unless asked otherwise

/// runs/001, runs/002, ...: the first that is not there.
std::string next_run_folder() {
  for (int number = 1;; ++number) {
    std::string folder = fmt::format("runs/{:03}", number);
    std::error_code ec;
    if (!fs::exists(folder, ec)) return folder;
  }
}

/// The model of --init-from, if it is given.
Result<std::optional<ModelSource>> read_source(const TrainFlags& f, const FlagSet& flags) {
  if (f.init_from.empty()) return std::optional<ModelSource>();
  if (const std::string flag = first_size_flag(flags); !flag.empty())
    return make_error(ErrorCode::kInvalidArgument, "train.flags",
                      "{} does not go with --init-from, whose model has its sizes", flag);
  PLAIT_TRY(ModelSource source, load_model(f.init_from));
  print_note(source.note);
  return std::optional(std::move(source));
}

/// A new model of the flags' sizes.
Result<ModelConfig> new_model(const TrainFlags& f, const LoadedData& data) {
  const auto vocab = data.tokenizer ? std::optional(data.tokenizer->vocab_size()) : std::nullopt;
  const HeadTying tying = f.schedule.shape.head == "tied" ? HeadTying::kTied : HeadTying::kUntied;
  return make_model_config(f.model, *f.schedule.shape.layers, tying, vocab, data.rows.row_size - 1);
}

/// Process 0 shows the run; the others are silent.
class Silence final : public TrainObserver {
 public:
  void on_start(std::int64_t, std::int64_t) override {}
  void on_step(const StepMetrics&) override {}
  void on_checkpoint(const std::filesystem::path&) override {}
  void on_note(const std::string&) override {}
};

/// The run folder; of several processes the first one finds it.
Result<std::string> run_folder(const TrainFlags& f, JobProcesses* job) {
  if (!f.out.empty()) return f.out;
  if (job == nullptr) return next_run_folder();
  return job->broadcast(job->index() == 0 ? next_run_folder() : std::string());
}

Result<int> run(TrainFlags& f, const FlagSet& flags, const std::shared_ptr<JobProcesses>& processes) {
  if (processes != nullptr && processes->size() > 1 && f.device != "cpu") PLAIT_TRY_VOID(check_nccl_is_built_in());
  if (processes != nullptr) f.schedule.default_ranks = std::max(f.schedule.default_ranks, processes->size());
  if (f.resume && f.out.empty())
    return make_error(ErrorCode::kInvalidArgument, "train.flags",
                      "--resume needs --out, the folder of the run to go on with");
  PLAIT_TRY(std::optional<ModelSource> source, read_source(f, flags));
  if (source) f.schedule.shape.layers = source->config.num_layers;
  f.schedule.fill_defaults(flags);
  const std::int64_t known_vocab = source ? source->config.vocab_size : f.model.vocab;
  PLAIT_TRY(LoadedData data, load_data(f.data, flags, known_vocab > 0 ? std::optional(known_vocab) : std::nullopt));
  PLAIT_TRY(TrainOptions options, train_options(f, data));
  if (flags.given("--profile"))
    options.profile = TrainOptions::Profile{.file = f.profile, .step = f.profile_step};
  else if (flags.given("--profile-step"))
    return make_error(ErrorCode::kInvalidArgument, "train.flags", "--profile-step says nothing without --profile");
  options.engine.processes = processes;
  PLAIT_TRY(options.out, run_folder(f, processes.get()));
  PLAIT_TRY(ModelConfig model, source ? Result<ModelConfig>(source->config) : new_model(f, data));
  PLAIT_TRY(ChosenSchedule chosen, choose_schedule(f.schedule, model));
  PLAIT_TRY(std::optional<VerifiedProgram> other, choose_other(f.schedule, chosen.program, model));
  PLAIT_TRY(options.engine.slice_lengths,
            slice_lengths(f.schedule, chosen.program.program().layout, model, data.rows.row_size - 1));
  const double fraction = f.val_fraction >= 0 ? f.val_fraction : f.data.tokens.empty() ? kValidationFraction : 0.0;
  const Split split = split_rows(data.rows.num_rows, fraction);
  const bool leads = processes == nullptr || processes->index() == 0;
  Progress shown(f.log_every);
  Silence silence;
  TrainObserver& progress = leads ? static_cast<TrainObserver&>(shown) : silence;
  if (fraction > 0 && split.num_validation == 0)
    progress.on_note(
        fmt::format("{} rows are too few to keep {} of them for validation", data.rows.num_rows, fraction));
  const TrainJob job{.model = model,
                     .program = std::move(chosen.program),
                     .forward = std::move(chosen.forward),
                     .other = std::move(other),
                     .rows = std::move(data.rows),
                     .split = split,
                     .initial = source ? std::move(source->parameters) : std::map<std::string, ParameterState>()};
  progress.on_note(describe_run(job, options));
  processes == nullptr ? catch_stop_signals() : catch_job_signals();
  const Result<TrainSummary> summary = train(job, options, progress, &stop_requested);
  shown.finish();
  if (!summary) return summary.error();
  if (leads)
    PLAIT_TRY_VOID(
        print_summary(job, options, *summary,
                      {.sample_tokens = data.tokenizer ? f.sample_tokens : 0, .seed = f.seed, .format = f.format},
                      data.tokenizer.get()));
  return summary->interrupted ? exit_code(ErrorCode::kInterrupted) : 0;
}

}  // namespace

Result<int> train_command(int argc, const char* const* argv) {
  TrainFlags f;
  FlagSet flags(
      "plait train",
      "Trains a model over several ranks by a schedule. Without flags: the default run on the King James Bible.");
  f.add_to(flags);
  PLAIT_TRY(const FlagSet::Outcome outcome, flags.parse(argc, argv));
  if (outcome == FlagSet::Outcome::kHelpPrinted) return 0;
  if (outcome == FlagSet::Outcome::kConfigRequested) {
    f.schedule.fill_defaults(flags);
    std::fputs(flags.config_json().c_str(), stdout);
    return 0;
  }
  if (is_to_launch(f.job)) {
    PLAIT_TRY_VOID(check_launch(f));
    return launch_job(f.job, argc, argv, f.out);
  }
  PLAIT_TRY(const std::shared_ptr<JobProcesses> processes, join_if_started(f.job, f.timeout));
  if (processes == nullptr) return run(f, flags, processes);
  Result<int> result = run(f, flags, processes);
  if (result)
    if (const Result<> left = processes->leave(); !left) result = left.error();
  if (!result) fail_job(*processes, result.error());
  return result;
}

}  // namespace plait::cli
