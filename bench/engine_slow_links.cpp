// Steps of the systems whose weights travel, over emulated links that are slow between two groups of ranks: measured in
// turns, beside what the simulator says for the same links and the ops' own measured times.

#include "plait/base/units.h"
#include "plait/ir/lower.h"
#include "plait/run/engine/crossing.h"
#include "plait/run/engine/delayed_transport.h"
#include "plait/run/engine/engine.h"
#include "plait/run/model/parameters.h"
#include "plait/schedules/schedule_info.h"
#include "plait/sim/simulate.h"

#include <ATen/ops/zeros.h>
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

namespace plait {
namespace {

constexpr const char* kSystems[] = {"tawpipe", "weipipe", "fsdp"};
constexpr std::int64_t kFloat = 4;
constexpr double kNanosPerMilli = 1e6;

struct Setting {
  int ranks = 4;
  int groups = 2;
  int rounds = 2;
  int layers = 4;
  std::int64_t hidden = 128;
  std::int64_t tokens = 32;
  std::string inner = "1GB/s";
  std::vector<int> ratios = {10, 100};
  int steps = 7;
};

/// One system's program on its engine, with what was measured so far.
struct Contender {
  std::string name;
  std::unique_ptr<VerifiedProgram> program;
  std::unique_ptr<Engine> engine;
  std::vector<double> millis;
  std::map<std::tuple<OpKind, std::int32_t>, std::vector<std::int64_t>> ops;  ///< nanoseconds by kind and stage
  Bytes between;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

ModelConfig model_of(const Setting& s) {
  constexpr std::int64_t kHeadDim = 32;
  return {.num_layers = s.layers,
          .hidden_size = s.hidden,
          .ffn_size = 8 * s.hidden / 3,
          .num_heads = s.hidden / kHeadDim,
          .num_kv_heads = s.hidden / kHeadDim,
          .head_dim = kHeadDim};
}

Result<Contender> make_contender(const char* name, const Setting& s, const EmulatedCluster& cluster) {
  ScheduleShape shape{.ranks = s.ranks, .microbatches = s.ranks * s.rounds, .layers = s.layers};
  if (std::string_view(name) == "tawpipe") shape.groups = s.groups;
  PLAIT_TRY(const Schedule schedule, build_schedule(name, shape));
  PLAIT_TRY(Program program, lower(schedule));
  PLAIT_TRY(VerifiedProgram proved, prove(std::move(program)));
  Contender contender{.name = name, .program = std::make_unique<VerifiedProgram>(std::move(proved))};
  EngineOptions options{.optimizer = {.kind = OptimizerKind::kSgd, .clip = std::nullopt},
                        .wrap_transport = emulate_cluster(cluster)};
  PLAIT_TRY(contender.engine, Engine::create(*contender.program, model_of(s), options));
  contender.engine->initialize(1);
  return contender;
}

Result<> run_step(Contender& c, const Setting& s) {
  std::vector<Microbatch> data(static_cast<std::size_t>(s.ranks * s.rounds));
  for (Microbatch& microbatch : data) {
    microbatch.tokens = at::zeros({1, s.tokens}, at::kLong);
    microbatch.targets = at::zeros({1, s.tokens}, at::kLong);
  }
  PLAIT_TRY(const StepResult step, c.engine->train_step(data, 0.0));
  c.millis.push_back(static_cast<double>(step.duration.value()) / kNanosPerMilli);
  const Program& program = c.program->program();
  c.between = bytes_between_groups(program, step, s.ranks / s.groups);
  for (std::size_t rank = 0; rank < step.trace.size(); ++rank)
    for (const TraceEvent& event : step.trace[rank])
      if (const Op* op = std::get_if<Op>(&program.rows[rank][static_cast<std::size_t>(event.position)]))
        c.ops[{op->kind, op->stage.value()}].push_back((event.end - event.start).value());
  return {};
}

Result<double> simulated_millis(const Contender& c, const Setting& s, const EmulatedCluster& emulated) {
  const Program& program = c.program->program();
  CostModel costs = zero_costs(program.layout);
  constexpr std::int64_t kTicks = 1'000'000'000;
  costs.ticks_per_unit = kTicks;
  for (const auto& [key, nanos] : c.ops) {
    std::vector<std::int64_t> sorted = nanos;
    std::sort(sorted.begin(), sorted.end());
    costs.op(std::get<0>(key), StageId{std::get<1>(key)}, SliceId{}).ticks = sorted[sorted.size() / 2];
  }
  for (std::size_t g = 0; g < program.layout.groups.size(); ++g) {
    const std::vector<int>& parts = program.layout.groups[g].parts;
    std::int64_t elements = 0;
    for (const ParameterSpec& spec : parameter_specs(model_of(s))) {
      if (!std::binary_search(parts.begin(), parts.end(), spec.part)) continue;
      std::int64_t size = 1;
      for (const std::int64_t extent : spec.shape) size *= extent;
      elements += size;
    }
    costs.groups[g].weight = costs.groups[g].gradient = Bytes{elements * kFloat};
  }
  const auto link = [](const EmulatedLink& l) {
    return Link{.latency_ticks = l.latency.value(), .bytes_per_second = static_cast<std::int64_t>(l.bytes_per_second)};
  };
  costs.cluster = make_cluster(s.ranks, emulated.ranks_per_group, link(emulated.inner), link(emulated.outer), kTicks);
  costs.cluster->outer_ports = 1;
  PLAIT_TRY(const SimResult result, simulate(program, costs));
  return static_cast<double>(result.makespan) / kNanosPerMilli;
}

Result<> compare(const Setting& s) {
  PLAIT_TRY(const BytesPerSecond inner, parse_bandwidth(s.inner));
  fmt::print("| slower by | system | step ms, median (least to most) | simulated ms | between groups |\n");
  fmt::print("|---|---|---|---|---|\n");
  for (const int ratio : s.ratios) {
    const EmulatedCluster cluster{
        .ranks_per_group = s.ranks / s.groups,
        .inner = {.latency = Nanos{0}, .bytes_per_second = static_cast<double>(inner.value())},
        .outer = {.latency = Nanos{0}, .bytes_per_second = static_cast<double>(inner.value()) / ratio}};
    std::vector<Contender> contenders;
    for (const char* name : kSystems) {
      PLAIT_TRY(Contender contender, make_contender(name, s, cluster));
      contenders.push_back(std::move(contender));
    }
    for (Contender& contender : contenders) {  // warms up
      PLAIT_TRY_VOID(run_step(contender, s));
      contender.millis.clear();
      contender.ops.clear();
    }
    for (int step = 0; step < s.steps; ++step)
      for (Contender& contender : contenders) PLAIT_TRY_VOID(run_step(contender, s));
    for (const Contender& contender : contenders) {
      PLAIT_TRY(const double simulated, simulated_millis(contender, s, cluster));
      const auto [least, most] = std::minmax_element(contender.millis.begin(), contender.millis.end());
      fmt::print("| {} | {} | {:.1f} ({:.1f} to {:.1f}) | {:.1f} | {} |\n", ratio, contender.name,
                 median(contender.millis), *least, *most, simulated, contender.between.value());
    }
  }
  return {};
}

}  // namespace
}  // namespace plait

int main(int argc, char** argv) {
  CLI::App app{"Steps of weight passing over links that are slow between groups, measured in turns and simulated"};
  plait::Setting setting;
  app.add_option("--ranks", setting.ranks, "threads")->capture_default_str();
  app.add_option("--groups", setting.groups, "groups of neighbouring ranks")->capture_default_str();
  app.add_option("--rounds", setting.rounds, "micro-batches of a rank")->capture_default_str();
  app.add_option("--layers", setting.layers, "a multiple of the ranks")->capture_default_str();
  app.add_option("--hidden", setting.hidden, "hidden size, a multiple of 32")->capture_default_str();
  app.add_option("--tokens", setting.tokens, "of a micro-batch")->capture_default_str();
  app.add_option("--inner", setting.inner, "link inside a group")->capture_default_str();
  app.add_option("--ratios", setting.ratios, "how many times slower it is between groups")->delimiter(',');
  app.add_option("--steps", setting.steps, "measured steps of each system")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  if (const auto done = plait::compare(setting); !done) {
    fmt::print(stderr, "plait_slow_links: {} [{}]\n", done.error().message, done.error().rule);
    return plait::exit_code(done.error().code);
  }
  return 0;
}
