#include "plait/cli/run/summary.h"

#include "plait/base/units.h"
#include "plait/cli/run/bench/step_report.h"
#include "plait/run/generate/generate.h"
#include "plait/run/train/model_source.h"
#include "plait/run/train/trace.h"
#include "plait/view/grid.h"
#include "plait/view/timeline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

namespace plait::cli {
namespace {

constexpr std::string_view kPrompt = "In the beginning";
constexpr double kTemperature = 0.7;  // lively, but rarely off the rails
constexpr int kPictureColumns = 96;
constexpr double kSecondsPerNano = 1e-9;

/// What the model of a checkpoint makes of a short prompt.
Result<std::string> sample(const std::filesystem::path& checkpoint, const Tokenizer& tokenizer,
                           const SummaryOptions& print) {
  PLAIT_TRY(const ModelSource source, load_model(checkpoint));
  std::map<std::string, at::Tensor> weights;
  for (const auto& [name, state] : source.parameters) weights[name] = state.master;
  PLAIT_TRY(ParameterSet parameters, load_parameters(source.config, weights, ComputeType::kFloat32));
  PLAIT_TRY(const std::vector<TokenId> prompt, tokenizer.encode(kPrompt));
  const std::int64_t room = source.config.max_positions - static_cast<std::int64_t>(prompt.size());
  if (room < 1) return std::string();
  const GenerateOptions options{
      .max_new_tokens = std::min(print.sample_tokens, room), .temperature = kTemperature, .seed = print.seed};
  PLAIT_TRY(const std::vector<TokenId> made, generate(source.config, parameters, prompt, options));
  return std::string(kPrompt) + tokenizer.decode(made);
}

/// What one program cost a step.
struct StepFigures {
  std::string schedule;
  Nanos duration;
  double bubble_ratio = 0;
  Bytes moved;
  std::vector<Bytes> peak_bytes;  ///< per rank
};

StepFigures figures_of(const Program& program, const StepResult& step) {
  const TraceFigures figures = trace_figures(program, step);
  return StepFigures{.schedule = program.layout.name,
                     .duration = step.duration,
                     .bubble_ratio = figures.bubble_ratio,
                     .moved = figures.moved,
                     .peak_bytes = step.peak_bytes};
}

/// The run's schedule and the one that it is compared with.
std::vector<StepFigures> compared(const TrainJob& job, const Comparison& comparison) {
  return {figures_of(job.program.program(), comparison.own),
          figures_of(comparison.other_program.program(), comparison.other)};
}

std::string print_peaks(const std::vector<Bytes>& peak_bytes) {
  std::vector<std::string> peaks;
  for (const Bytes bytes : peak_bytes) peaks.push_back(print_bytes(bytes));
  return fmt::format("{}", fmt::join(peaks, ", "));
}

std::string comparison_table(const std::vector<StepFigures>& rows) {
  std::string out = fmt::format("\nmedian of {} steps each, in turn, same weights and rows:\n", kComparedSteps);
  out += fmt::format("  {:<16} {:>10} {:>8} {:>12}  {}\n", "schedule", "step", "bubble", "sent",
                     "peak memory of each rank");
  for (const StepFigures& row : rows)
    out += fmt::format("  {:<16} {:>10} {:>6.1f} % {:>12}  {}\n", row.schedule, print_duration(row.duration),
                       100 * row.bubble_ratio, print_bytes(row.moved), print_peaks(row.peak_bytes));
  return out;
}

nlohmann::ordered_json to_json(const std::vector<StepFigures>& rows) {
  auto list = nlohmann::ordered_json::array();
  for (const StepFigures& row : rows) {
    nlohmann::ordered_json entry{{"schedule", row.schedule},
                                 {"step_s", static_cast<double>(row.duration.value()) * kSecondsPerNano},
                                 {"bubble_ratio", row.bubble_ratio},
                                 {"bytes_moved", row.moved.value()},
                                 {"peak_bytes", nlohmann::ordered_json::array()}};
    for (const Bytes bytes : row.peak_bytes) entry["peak_bytes"].push_back(bytes.value());
    list.push_back(std::move(entry));
  }
  return list;
}

nlohmann::ordered_json to_json(const TrainJob& job, const TrainOptions& options, const TrainSummary& summary,
                               const std::optional<std::string>& text) {
  nlohmann::ordered_json document;
  const auto set = [&](const char* key, const std::optional<double>& value) {
    document[key] = value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  document["steps"] = summary.steps_done;
  document["interrupted"] = summary.interrupted;
  set("train_loss", summary.train_loss);
  set("val_loss", summary.val_loss);
  document["tokens_per_s"] = summary.tokens_per_s;
  if (summary.last_step) {
    const TraceFigures figures = trace_figures(job.program.program(), *summary.last_step);
    document["bubble_ratio"] = figures.bubble_ratio;
    document["bytes_moved_per_step"] = figures.moved.value();
    document["peak_bytes"] = nlohmann::ordered_json::array();
    for (const Bytes bytes : summary.last_step->peak_bytes) document["peak_bytes"].push_back(bytes.value());
  }
  if (summary.profile)
    document["profile"] = {{"step", summary.profile->step},
                           {"file", summary.profile->file.string()},
                           {"ranks", bench::breakdown_json(summary.profile->ranks)}};
  if (summary.comparison) document["comparison"] = to_json(compared(job, *summary.comparison));
  if (text) document["sample"] = *text;
  document["out"] = options.out.string();
  document["checkpoint"] = summary.checkpoint.string();
  return document;
}

void print_table(const TrainJob& job, const TrainOptions& options, const TrainSummary& summary,
                 const std::optional<std::string>& text) {
  std::string out;
  const auto line = [&](std::string_view name, const std::string& value) {
    out += fmt::format("{:<18} {}\n", name, value);
  };
  out += fmt::format("\n{} after step {} of {}\n", summary.interrupted ? "interrupted" : "done", summary.steps_done,
                     options.steps);
  const std::string_view unit = options.tokenizer == "bytes" ? "byte" : "token";
  if (summary.val_loss) line("validation loss", fmt::format("{:.4f} nats per {}", *summary.val_loss, unit));
  if (summary.train_loss)
    line("training loss", fmt::format("{:.4f} nats per {}, last step", *summary.train_loss, unit));
  if (summary.last_step) {
    const Program& program = job.program.program();
    const TraceFigures figures = trace_figures(program, *summary.last_step);
    line("speed", fmt::format("{:.0f} tokens/s", summary.tokens_per_s));
    line("bubble", fmt::format("{:.1f} % of the last step: (makespan - mean busy time of the ranks) / makespan",
                               100 * figures.bubble_ratio));
    line("peak memory", fmt::format("{} on rank 0..{}", print_peaks(summary.last_step->peak_bytes),
                                    summary.last_step->peak_bytes.size() - 1));
    line("sent per step", print_bytes(figures.moved));
    const auto timeline = read_trace(trace_json(program, *summary.last_step, summary.steps_done), program.layout.name);
    line("schedule", fmt::format("{}, the last step as it ran, {} to scale", program.layout.name,
                                 print_duration(figures.makespan)));
    if (timeline) out += draw_grid(*timeline, {.most_columns = kPictureColumns});
  }
  if (summary.profile) {
    out += fmt::format("\nstep {}, whose kernels are in {}:\n", summary.profile->step, summary.profile->file.string());
    out += bench::breakdown_tables(summary.profile->ranks) + '\n';
  }
  if (summary.comparison) out += comparison_table(compared(job, *summary.comparison)) + '\n';
  if (text) line("sample", *text);
  line("run folder", options.out.string());
  line("checkpoint", summary.checkpoint.string());
  std::fputs(out.c_str(), stdout);
}

}  // namespace

std::string describe_run(const TrainJob& job, const TrainOptions& options) {
  const Layout& layout = job.program.program().layout;
  std::int64_t elements = 0;
  for (const ParameterSpec& spec : parameter_specs(job.model)) {
    std::int64_t size = 1;
    for (const std::int64_t n : spec.shape) size *= n;
    elements += size;
  }
  return fmt::format(
      "schedule {} over {} rank{}; a step is {} micro-batches of {} x {} tokens; {} layers, {:.2f} M parameters; {} "
      "rows to learn, "
      "{} to validate; into {}",
      layout.name, layout.num_ranks, layout.num_ranks == 1 ? "" : "s", layout.num_microbatches, options.microbatch_size,
      job.rows.row_size - 1, job.model.num_layers, static_cast<double>(elements) * 1e-6, job.split.num_train,
      job.split.num_validation, options.out.string());
}

Result<> print_summary(const TrainJob& job, const TrainOptions& options, const TrainSummary& summary,
                       const SummaryOptions& print, const Tokenizer* tokenizer) {
  std::optional<std::string> text;
  if (tokenizer != nullptr && print.sample_tokens > 0 && !summary.interrupted && !summary.checkpoint.empty()) {
    PLAIT_TRY(text, sample(summary.checkpoint, *tokenizer, print));
  }
  if (print.format == "json") {
    // A sample of a model over bytes need not be UTF-8.
    std::fputs(
        (to_json(job, options, summary, text).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
         "\n")
            .c_str(),
        stdout);
  } else {
    print_table(job, options, summary, text);
  }
  return {};
}

}  // namespace plait::cli
