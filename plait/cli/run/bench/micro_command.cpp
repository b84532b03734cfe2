#include "plait/base/files.h"
#include "plait/cli/run/bench/commands.h"
#include "plait/cli/run/bench/configurations.h"
#include "plait/cli/run/bench/machine.h"
#include "plait/cli/run/bench/micro.h"
#include "plait/cli/run/flags.h"
#include "plait/cli/run/model_flags.h"
#include "plait/cli/run/train_flags.h"
#include "plait/run/engine/memory.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace plait::cli {
namespace {

struct MicroFlags {
  std::string preset = "A";
  ModelFlags model;
  std::int64_t seq = 512;
  std::int64_t microbatch_size = 1;
  std::string dtype = "fp32";
  std::string only;
  double seconds_per_kernel = 0.2;
  std::string format = "table";
  std::string out;

  void add_to(FlagSet& flags) {
    flags.add("Model", "--preset", preset, "NAME", "sizes that are not given: A, B, C, D or tiny, as below");
    model.add_to(flags);
    flags.add_choice("Model", "--dtype", dtype, {"fp32", "bf16", "fp64"}, "compute type");
    flags.add("Data", "--seq", seq, "TOKENS", "length of a sequence");
    flags.add("Data", "--microbatch-size", microbatch_size, "ROWS", "sequences of a micro-batch");
    flags.add("Measurement", "--only", only, "TEXT", "kernels with this in their name; default: all");
    flags.add("Measurement", "--seconds-per-kernel", seconds_per_kernel, "SECONDS", "of repetitions");
    flags.add_choice("Report", "--format", format, {"table", "json"}, "of the report");
    flags.add("Report", "--out", out, "FILE", "write the JSON report here too");
    flags.app().footer("Presets:\n" + bench::configuration_lines());
  }
};

Error refuse(const std::string& what) {
  return Error{ErrorCode::kInvalidArgument, "bench.flags", what};
}

/// Checks the numbers and takes what was not given from the preset.
Result<bench::MicroShape> shape_of(MicroFlags& f, const FlagSet& flags) {
  const bench::Configuration* preset = bench::find_configuration(f.preset);
  if (preset == nullptr)
    return refuse(fmt::format("--preset {}: there are\n{}", f.preset, bench::configuration_lines()));
  const auto fill = [&](const char* flag, auto& value, auto from) {
    if (!flags.given(flag)) value = std::move(from);
  };
  fill("--hidden", f.model.hidden, preset->hidden);
  fill("--heads", f.model.heads, preset->heads);
  fill("--ffn", f.model.ffn, preset->ffn);
  fill("--vocab", f.model.vocab, preset->vocab);
  fill("--seq", f.seq, preset->tokens);
  fill("--dtype", f.dtype, std::string(preset->dtype));
  if (f.seq < 1) return refuse(fmt::format("--seq {}: at least 1 is needed", f.seq));
  if (f.microbatch_size < 1)
    return refuse(fmt::format("--microbatch-size {}: at least 1 is needed", f.microbatch_size));
  if (!(f.seconds_per_kernel > 0 && f.seconds_per_kernel < 60))
    return refuse(fmt::format("--seconds-per-kernel {}: must lie between 0 and 60", f.seconds_per_kernel));
  PLAIT_TRY(const ModelConfig model, make_model_config(f.model, 1, HeadTying::kUntied, std::nullopt, f.seq));
  return bench::MicroShape{
      .model = model, .tokens = f.seq, .microbatch_size = f.microbatch_size, .type = compute_type(f.dtype)};
}

nlohmann::ordered_json setup_json(const MicroFlags& f, const ModelConfig& model) {
  return {{"bench", "micro"},
          {"machine", bench::machine_facts()},
          {"model",
           {{"hidden", model.hidden_size},
            {"heads", model.num_heads},
            {"kv_heads", model.num_kv_heads},
            {"ffn", model.ffn_size},
            {"vocab", model.vocab_size}}},
          {"microbatch_size", f.microbatch_size},
          {"seq", f.seq},
          {"dtype", f.dtype}};
}

Result<int> run(const MicroFlags& f, const bench::MicroShape& shape) {
  at::set_num_threads(1);
  install_accounting_allocator();
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  std::vector<bench::MicroCase> cases = bench::micro_cases(shape);
  std::vector<std::string> names;
  for (const bench::MicroCase& each : cases) names.push_back(each.kernel);
  std::erase_if(cases, [&](const bench::MicroCase& each) { return each.kernel.find(f.only) == std::string::npos; });
  if (cases.empty())
    return refuse(
        fmt::format("--only {}: no kernel has that in its name; there are {}", f.only, fmt::join(names, ", ")));
  bool agrees = true;
  const bench::MicroOptions options{
      .seconds_per_kernel = f.seconds_per_kernel, .on_timed = [&](const bench::MicroTiming& timing) {
        agrees &= timing.agrees;
        std::fprintf(stderr, "bench micro: %s\n", timing.kernel.c_str());
        if (!timing.agrees)
          std::fprintf(stderr, "bench micro: %s differs from ATen by %g of its largest element\n",
                       timing.kernel.c_str(), *timing.difference);
      }};
  const std::vector<bench::MicroTiming> timings = bench::time_micro(std::move(cases), shape.type, options);
  const std::string json = bench::micro_json(timings, setup_json(f, shape.model)).dump(2) + "\n";
  if (!f.out.empty()) PLAIT_TRY_VOID(write_file(f.out, json));
  std::fputs(f.format == "json" ? json.c_str() : bench::micro_table(timings).c_str(), stdout);
  return agrees ? 0 : 1;
}

}  // namespace

Result<int> bench_micro_command(int argc, const char* const* argv) {
  MicroFlags f;
  FlagSet flags("plait bench micro",
                "Times every kernel on one core in turn with its composition of ATen operators, and says how far it is "
                "from the roofline: the longer of bytes over the bandwidth of a copy as large and operations over the "
                "rate of a large matrix product, both measured in the same run. Operands stay the same, so caches may "
                "hold them. Fails if a kernel's result is not that of the composition.");
  f.add_to(flags);
  PLAIT_TRY(const FlagSet::Outcome outcome, flags.parse(argc, argv));
  if (outcome == FlagSet::Outcome::kHelpPrinted) return 0;
  PLAIT_TRY(const bench::MicroShape shape, shape_of(f, flags));
  if (outcome == FlagSet::Outcome::kConfigRequested) {
    std::fputs(flags.config_json().c_str(), stdout);
    return 0;
  }
  return run(f, shape);
}

}  // namespace plait::cli
