#include "plait/base/files.h"
#include "plait/base/units.h"
#include "plait/cli/run/bench/commands.h"
#include "plait/cli/run/bench/machine.h"
#include "plait/cli/run/calibrate/times.h"
#include "plait/cli/run/commands.h"
#include "plait/cli/run/flags.h"
#include "plait/run/engine/memory.h"

#include <ATen/Parallel.h>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <string>
#include <thread>
#include <utility>

namespace plait::cli {
namespace {

struct CalibrateFlags {
  std::string out = "cpu.json";
  std::string dtypes = "fp32";
  double seconds_per_point = 0.15;
};

Result<std::vector<std::pair<std::string, ComputeType>>> types_of(const std::string& list) {
  std::vector<std::pair<std::string, ComputeType>> types;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t comma = std::min(list.find(',', at), list.size());
    const std::string name = list.substr(at, comma - at);
    if (name == "fp32") {
      types.emplace_back(name, ComputeType::kFloat32);
    } else if (name == "bf16") {
      types.emplace_back(name, ComputeType::kBFloat16);
    } else if (name == "fp64") {
      types.emplace_back(name, ComputeType::kFloat64);
    } else {
      return make_error(ErrorCode::kInvalidArgument, "bench.flags", "--dtypes: '{}' is none of fp32, bf16, fp64", name);
    }
    at = comma + 1;
  }
  return types;
}

Result<int> calibrate_command(int argc, const char* const* argv) {
  CalibrateFlags f;
  FlagSet flags("plait bench calibrate",
                "Measures what single parts of a model cost on this machine, alone and with a second rank at work, and "
                "writes it as a device for plait simulate. The machine should have nothing else to do.");
  flags.add("Calibration", "--out", f.out, "FILE", "device file to write");
  flags.add("Calibration", "--dtypes", f.dtypes, "LIST", "of fp32, bf16 and fp64");
  flags.add("Calibration", "--seconds-per-point", f.seconds_per_point, "SECONDS", "of repetitions for each size");
  PLAIT_TRY(const FlagSet::Outcome outcome, flags.parse(argc, argv));
  if (outcome == FlagSet::Outcome::kHelpPrinted) return 0;
  if (outcome == FlagSet::Outcome::kConfigRequested) {
    std::fputs(flags.config_json().c_str(), stdout);
    return 0;
  }
  if (!(f.seconds_per_point > 0 && f.seconds_per_point < 60))
    return make_error(ErrorCode::kInvalidArgument, "bench.flags", "--seconds-per-point {}: must lie between 0 and 60",
                      f.seconds_per_point);
  PLAIT_TRY(const auto types, types_of(f.dtypes));
  at::set_num_threads(1);
  install_accounting_allocator();
  const auto start = std::chrono::steady_clock::now();
  const std::time_t today = std::time(nullptr);
  host::Calibration calibration{.name = bench::processor_name(),
                                .source = fmt::format("plait bench calibrate, {:%Y-%m-%d}", fmt::gmtime(today)),
                                .cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency())),
                                .hand_over_seconds = calibrate::time_hand_over(),
                                .types = {}};
  for (const auto& [name, type] : types) {
    host::TypeCosts& costs = calibration.types[name];
    const calibrate::TimeOptions options{.seconds_per_point = f.seconds_per_point,
                                         .on_note = [&name = name](const std::string& what) {
                                           std::fprintf(stderr, "calibrate: %s, %s\n", name.c_str(), what.c_str());
                                         }};
    costs.products = calibrate::time_products(type, options);
    calibrate::time_steps(type, options, costs);
    for (const auto& [mlp_name, mlp] : {std::pair("gated", MlpKind::kGated), std::pair("plain", MlpKind::kPlain)})
      calibrate::time_parts(type, mlp, options, costs, costs.mlps[mlp_name]);
  }
  PLAIT_TRY_VOID(write_file(f.out, host::calibration_json(calibration)));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::fprintf(stderr, "calibrate: wrote %s in %.0f s\n", f.out.c_str(), seconds);
  return 0;
}

}  // namespace

Result<int> bench_command(int argc, const char* const* argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  if (what == "step") return bench_step_command(argc - 1, argv + 1);
  if (what == "micro") return bench_micro_command(argc - 1, argv + 1);
  if (what == "calibrate") return calibrate_command(argc - 1, argv + 1);
  if (what == "--help") {
    std::fputs(
        "usage: plait bench step|micro|calibrate [flags]\n"
        "  step       times training steps of a model under a schedule, and says where the time goes\n"
        "  micro      times every kernel beside its ATen composition and the roofline\n"
        "  calibrate  measures this machine for plait simulate --device\n",
        stdout);
    return 0;
  }
  return make_error(ErrorCode::kInvalidArgument, "bench.unknown",
                    "\"{}\" is no benchmark; expected step, micro or calibrate (see plait bench --help)", what);
}

}  // namespace plait::cli
