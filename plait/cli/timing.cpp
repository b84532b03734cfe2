#include "plait/cli/timing.h"

#include "plait/sim/times.h"

#include <CLI/CLI.hpp>

#include <utility>

namespace plait {
namespace {

TransferMode transfer_mode(const std::string& name) {
  if (name == "bounded") return TransferMode::kBounded;
  if (name == "rendezvous") return TransferMode::kRendezvous;
  return TransferMode::kBuffered;
}

Result<TimedProgram> timed(Program program, CostModel costs, const TimingFlags& timing, Detail detail) {
  const SimOptions options{.transfers = transfer_mode(timing.transfers),
                           .buffers = timing.buffers,
                           .pair_factor = timing.pair_factor,
                           .turns = timing.lock_step ? Turns::kLockStep : Turns::kIgnored,
                           .detail = detail};
  PLAIT_TRY(SimResult result, simulate(program, costs, options));
  return TimedProgram{.program = std::move(program), .costs = std::move(costs), .result = std::move(result)};
}

}  // namespace

void add_timing_flags(CLI::App& app, TimingFlags& flags) {
  constexpr const char* kGroup = "Transfers";
  app.add_option("--transfers", flags.transfers, "buffered, bounded or rendezvous")
      ->check(CLI::IsMember({"buffered", "bounded", "rendezvous"}))
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--buffers", flags.buffers, "slots per ordered pair of ranks, for bounded")
      ->capture_default_str()
      ->group(kGroup);
  app.add_option("--pair-factor", flags.pair_factor,
                 "a pair of ops is one unit of X times their sum (default: in order)")
      ->group(kGroup);
  app.add_flag("--lock-step", flags.lock_step, "all ranks wait for each other at the end of every turn")->group(kGroup);
}

Result<TimedProgram> time_step(LoadedSchedule loaded, const TimingFlags& timing, Detail detail) {
  PLAIT_TRY(Program program, lowered(std::move(loaded.content)));
  PLAIT_TRY(CostModel costs, abstract_costs(program.layout, loaded.times, loaded.ticks_per_unit));
  return timed(std::move(program), std::move(costs), timing, detail);
}

Result<TimedProgram> time_source(const std::string& name_or_file, const ScheduleFlags& flags, const TimingFlags& timing,
                                 const CostFlags& cost_flags, const TorchCsvOptions& csv, Detail detail) {
  PLAIT_TRY(const std::optional<ModelShape> model, resolve_model(cost_flags));
  ScheduleFlags shaped = flags;
  if (model) PLAIT_TRY_VOID(shape_for_model(*model, shaped));
  PLAIT_TRY(LoadedSchedule loaded, load_schedule(name_or_file, shaped, csv));
  if (!model && !cost_flags.costs) return time_step(std::move(loaded), timing, detail);
  PLAIT_TRY(Program program, lowered(std::move(loaded.content)));
  PLAIT_TRY(CostModel costs, resolve_costs(program, flags, cost_flags, model));
  return timed(std::move(program), std::move(costs), timing, detail);
}

}  // namespace plait
