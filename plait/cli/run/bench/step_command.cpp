#include "plait/base/files.h"
#include "plait/cli/run/bench/commands.h"
#include "plait/cli/run/bench/configurations.h"
#include "plait/cli/run/bench/machine.h"
#include "plait/cli/run/bench/step_bench.h"
#include "plait/cli/run/bench/step_report.h"
#include "plait/cli/run/flags.h"
#include "plait/cli/run/model_flags.h"
#include "plait/cli/run/progress.h"
#include "plait/cli/run/schedule_choice.h"
#include "plait/cli/run/train_flags.h"
#include "plait/run/hf/model_dir.h"
#include "plait/run/train/model_source.h"

#include <fmt/format.h>

#include <cstdio>
#include <optional>
#include <utility>

namespace plait::cli {
namespace {

struct StepFlags {
  std::string preset = "A";
  ModelFlags model;
  ScheduleChoice schedule;
  std::string init_from;
  std::string save_model;
  std::int64_t seq = 512;
  std::int64_t microbatch_size = 1;
  std::string dtype = "fp32";
  std::int64_t mlp_chunk = 0;
  std::int64_t loss_chunk = 0;
  int warmup = 1;
  int steps = 5;
  std::uint64_t seed = 1;
  double lr = 3e-4;
  double timeout = 60;
  std::string format = "table";
  std::string out;

  void add_to(FlagSet& flags);
  /// What neither the line nor a file gave comes from the preset.
  void fill_from_preset(const FlagSet& flags);
};

void StepFlags::add_to(FlagSet& flags) {
  schedule.name = "1f1b";
  flags.add("Model", "--preset", preset, "NAME", "sizes that are not given: A, B, C, D or tiny, as below");
  flags.add("Model", "--init-from", init_from, "DIR", "start from a Hugging Face directory, a checkpoint or a run");
  flags.add("Model", "--save-model", save_model, "DIR",
            "write the initial weights as a Hugging Face directory, for another program to start from");
  model.add_to(flags);
  flags.add_choice("Model", "--dtype", dtype, {"fp32", "bf16", "fp64"}, "compute type");
  flags.add("Data", "--seq", seq, "TOKENS", "length of a sequence; the tokens are random");
  flags.add("Data", "--microbatch-size", microbatch_size, "ROWS", "sequences of a micro-batch");
  schedule.add_to(flags);
  flags.add("Memory", "--mlp-chunk", mlp_chunk, "TOKENS", "as in plait train; 0: whole micro-batches");
  flags.add("Memory", "--loss-chunk", loss_chunk, "TOKENS", "as in plait train; 0: only where it costs no time");
  flags.add("Measurement", "--warmup", warmup, "STEPS", "steps first, before the one that records its kernels");
  flags.add("Measurement", "--steps", steps, "STEPS", "steps that are timed");
  flags.add("Measurement", "--seed", seed, "NUMBER", "of the initial weights and the tokens");
  flags.add("Measurement", "--lr", lr, "RATE", "learning rate of AdamW, which is as plait train has it");
  flags.add("Measurement", "--timeout", timeout, "SECONDS", "a rank silent for longer ends the run");
  flags.add_choice("Report", "--format", format, {"table", "json"}, "of the report");
  flags.add("Report", "--out", out, "FILE", "write the JSON report here too");
  flags.app().footer("Presets:\n" + bench::configuration_lines());
}

void StepFlags::fill_from_preset(const FlagSet& flags) {
  const bench::Configuration& preset_of = *bench::find_configuration(preset);
  const auto fill = [&](const char* flag, auto& value, auto from) {
    if (!flags.given(flag)) value = std::move(from);
  };
  fill("--hidden", model.hidden, preset_of.hidden);
  fill("--heads", model.heads, preset_of.heads);
  fill("--ffn", model.ffn, preset_of.ffn);
  fill("--vocab", model.vocab, preset_of.vocab);
  fill("--seq", seq, preset_of.tokens);
  fill("--dtype", dtype, std::string(preset_of.dtype));
  ScheduleFlags& shape = schedule.shape;
  if (!shape.layers) shape.layers = preset_of.layers;
  if (!shape.ranks) shape.ranks = 1;
  if (!shape.microbatches && !shape.repeats && !shape.rounds) shape.microbatches = preset_of.microbatches;
}

Error refuse(const std::string& what) {
  return Error{ErrorCode::kInvalidArgument, "bench.flags", what};
}

Result<> check(const StepFlags& f) {
  if (bench::find_configuration(f.preset) == nullptr)
    return refuse(fmt::format("--preset {}: there are\n{}", f.preset, bench::configuration_lines()));
  for (const auto& [flag, value, least] : {std::tuple("--seq", f.seq, 1),
                                           {"--microbatch-size", f.microbatch_size, 1},
                                           {"--steps", std::int64_t{f.steps}, 1},
                                           {"--warmup", std::int64_t{f.warmup}, 0},
                                           {"--mlp-chunk", f.mlp_chunk, 0},
                                           {"--loss-chunk", f.loss_chunk, 0}})
    if (value < least) return refuse(fmt::format("{} {}: at least {} is needed", flag, value, least));
  if (!(f.lr >= 0)) return refuse(fmt::format("--lr {}: must not be negative", f.lr));
  if (!(f.timeout > 0)) return refuse(fmt::format("--timeout {}: must be positive", f.timeout));
  return {};
}

Result<std::optional<ModelSource>> read_source(const StepFlags& f, const FlagSet& flags) {
  if (f.init_from.empty()) return std::optional<ModelSource>();
  if (const std::string flag = first_size_flag(flags); !flag.empty() || flags.given("--preset"))
    return refuse(
        fmt::format("{} does not go with --init-from, whose model has its sizes", flag.empty() ? "--preset" : flag));
  PLAIT_TRY(ModelSource source, load_model(f.init_from));
  print_note(source.note);
  return std::optional(std::move(source));
}

Result<> save_initial(const StepFlags& f, const VerifiedProgram& program, const ModelConfig& model,
                      const EngineOptions& options) {
  PLAIT_TRY(const auto engine, Engine::create(program, model, options));
  engine->initialize(f.seed);
  std::map<std::string, at::Tensor> weights;
  PLAIT_TRY(const auto saved, engine->save());
  for (const auto& [name, state] : saved) weights[name] = state.master;
  return write_model_dir(f.save_model, model, weights);
}

std::optional<std::int64_t> chunk_of(std::int64_t flag) {
  return flag > 0 ? std::optional(flag) : std::nullopt;
}

nlohmann::ordered_json setup_json(const StepFlags& f, const ModelConfig& model, const Layout& layout) {
  return {{"bench", "step"},
          {"machine", bench::machine_facts()},
          {"model",
           {{"layers", model.num_layers},
            {"hidden", model.hidden_size},
            {"heads", model.num_heads},
            {"kv_heads", model.num_kv_heads},
            {"ffn", model.ffn_size},
            {"vocab", model.vocab_size}}},
          {"schedule", layout.name},
          {"ranks", layout.num_ranks},
          {"microbatches", layout.num_microbatches},
          {"microbatch_size", f.microbatch_size},
          {"seq", f.seq},
          {"dtype", f.dtype},
          {"seed", f.seed},
          {"lr", f.lr},
          {"warmup", f.warmup + 1},
          {"steps", f.steps}};
}

Result<int> run(StepFlags& f, const FlagSet& flags) {
  PLAIT_TRY_VOID(check(f));
  PLAIT_TRY(std::optional<ModelSource> source, read_source(f, flags));
  f.fill_from_preset(flags);
  if (source) f.schedule.shape.layers = source->config.num_layers;
  f.schedule.fill_defaults(flags);
  const HeadTying tying = f.schedule.shape.head == "tied" ? HeadTying::kTied : HeadTying::kUntied;
  PLAIT_TRY(const ModelConfig model,
            source ? Result<ModelConfig>(source->config)
                   : make_model_config(f.model, *f.schedule.shape.layers, tying, std::nullopt, f.seq));
  PLAIT_TRY(const ChosenSchedule chosen, choose_schedule(f.schedule, model));
  const Layout& layout = chosen.program.program().layout;
  bench::StepBenchOptions options{
      .tokens = f.seq,
      .microbatch_size = f.microbatch_size,
      .warmup = f.warmup,
      .steps = f.steps,
      .seed = f.seed,
      .learning_rate = f.lr,
      .engine = {.type = compute_type(f.dtype),
                 .timeout_seconds = f.timeout,
                 .stage = {.mlp_chunk = chunk_of(f.mlp_chunk), .loss_chunk = chunk_of(f.loss_chunk)}},
      .on_note = [](const std::string& what) { std::fprintf(stderr, "bench step: %s\n", what.c_str()); }};
  PLAIT_TRY(options.engine.slice_lengths, slice_lengths(f.schedule, layout, model, f.seq));
  std::fprintf(stderr, "%s\n",
               fmt::format("bench step: {} over {} rank{}, {} micro-batches of {} x {} random tokens, {}, seed {}",
                           layout.name, layout.num_ranks, layout.num_ranks == 1 ? "" : "s", layout.num_microbatches,
                           f.microbatch_size, f.seq, f.dtype, f.seed)
                   .c_str());
  if (!f.save_model.empty()) {
    if (source) return refuse("--save-model does not go with --init-from: the weights are there");
    PLAIT_TRY_VOID(save_initial(f, chosen.program, model, options.engine));
  }
  PLAIT_TRY(const bench::StepBench bench,
            bench::bench_step(chosen.program, model,
                              source ? source->parameters : std::map<std::string, ParameterState>(), options));
  const std::string json = bench::step_json(bench, setup_json(f, model, layout)).dump(2) + "\n";
  if (!f.out.empty()) PLAIT_TRY_VOID(write_file(f.out, json));
  std::fputs(f.format == "json" ? json.c_str() : bench::step_tables(bench).c_str(), stdout);
  return 0;
}

}  // namespace

Result<int> bench_step_command(int argc, const char* const* argv) {
  StepFlags f;
  FlagSet flags("plait bench step",
                "Times training steps of one model under one schedule on random tokens, and says where the time went.");
  f.add_to(flags);
  PLAIT_TRY(const FlagSet::Outcome outcome, flags.parse(argc, argv));
  if (outcome == FlagSet::Outcome::kHelpPrinted) return 0;
  if (outcome == FlagSet::Outcome::kConfigRequested) {
    PLAIT_TRY_VOID(check(f));
    f.fill_from_preset(flags);
    f.schedule.fill_defaults(flags);
    std::fputs(flags.config_json().c_str(), stdout);
    return 0;
  }
  return run(f, flags);
}

}  // namespace plait::cli
