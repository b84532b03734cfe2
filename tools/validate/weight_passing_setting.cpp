#include "tools/validate/weight_passing_setting.h"

#include "plait/base/files.h"
#include "plait/ir/lower.h"
#include "plait/schedules/schedule_info.h"
#include "plait/sim/edge_bytes.h"
#include "plait/sim/simulate.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>
#include <utility>

namespace plait::validate {
namespace {

// The published setting: three nodes of eight, 48 layers, 1536 sequences a step.
constexpr int kRanks = 24;
constexpr int kRanksOfNode = 8;
constexpr int kNodes = kRanks / kRanksOfNode;
constexpr int kLayers = 48;
constexpr std::int64_t kSequences = 1536;
constexpr std::int64_t kVocab = 32000;  // LLaMA-2's
constexpr std::int64_t kHeadDim = 64;
/// Tokens of a micro-batch. Not stated; with one sequence a micro-batch the weights of a round alone would need more time on
/// the network than the published step takes, and 16, 8 and 4 sequences are what the WeiPipe code is run with.
constexpr std::int64_t kTokensOfMicrobatch = 65536;

// Kept as on the A100 rows above (calibrations/korthikanti.json), rounded.
constexpr double kGemmSeconds = 10e-6;
constexpr double kMemoryEfficiency = 0.8;
constexpr double kInnerBytesPerSecond = 200e9;
constexpr std::int64_t kInnerLatency = 3'400;   // ns; data/clusters/dgx-a100.json
constexpr std::int64_t kOuterLatency = 30'000;  // ns; TCP over Ethernet, order of magnitude

using Cells = std::vector<std::string>;

Result<std::vector<Cells>> read_rows(const std::string& path, std::size_t num_columns) {
  PLAIT_TRY(const std::string text, read_file(path));
  std::vector<Cells> rows;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (number == 1 || line.empty()) continue;
    Cells cells;
    std::istringstream fields(line);
    for (std::string cell; std::getline(fields, cell, ',');) cells.push_back(cell);
    if (cells.size() != num_columns)
      return make_error(ErrorCode::kIo, "validate.csv", "{}, line {}: {} columns, expected {}", path, number,
                        cells.size(), num_columns);
    rows.push_back(std::move(cells));
  }
  return rows;
}

std::array<std::pair<const char*, double*>, 6> fields(SettingConstants& c) {
  return {{{"gemm_efficiency", &c.gemm_efficiency},
           {"gemm_half_width", &c.gemm_half_width},
           {"attention_efficiency", &c.attention_efficiency},
           {"network_bytes_per_second", &c.network_bytes_per_second},
           {"fsdp_slowdown", &c.fsdp_slowdown},
           {"flat_tawpipe_slowdown", &c.flat_tawpipe_slowdown}}};
}

constexpr const char* kFlatTawpipe = "no groups";

double slowdown_of(const std::string& system, const SettingConstants& constants) {
  if (system == "fsdp") return constants.fsdp_slowdown;
  if (system == kFlatTawpipe) return constants.flat_tawpipe_slowdown;
  return 1;
}

}  // namespace

Result<std::vector<Throughput>> read_throughputs(const std::string& data) {
  PLAIT_TRY(const auto lines, read_rows(data + "/validation/weight-passing.csv", 5));
  std::vector<Throughput> rows;
  for (const Cells& c : lines)
    rows.push_back({.table = c[0],
                    .system = c[1],
                    .hidden = std::stoll(c[2]),
                    .tokens = std::stoll(c[3]),
                    .tokens_per_second = std::stod(c[4])});
  PLAIT_TRY(const auto fitted, read_rows(data + "/validation/weight-passing-fit.csv", 4));
  for (const Cells& c : fitted) {
    const auto row = std::find_if(rows.begin(), rows.end(), [&](const Throughput& r) {
      return r.table == c[0] && r.system == c[1] && r.hidden == std::stoll(c[2]) && r.tokens == std::stoll(c[3]);
    });
    if (row == rows.end())
      return make_error(ErrorCode::kIo, "validate.csv", "weight-passing-fit.csv: no row {} {} {} {}", c[0], c[1], c[2],
                        c[3]);
    row->fitted = true;
  }
  return rows;
}

Result<SettingConstants> read_constants(const std::string& file) {
  PLAIT_TRY(const std::string text, read_file(file));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  SettingConstants constants;
  for (const auto& [key, number] : fields(constants)) {
    if (!json.is_object() || !json.contains(key) || !json[key].is_number())
      return make_error(ErrorCode::kIo, "validate.constants", "{}: \"{}\" is missing", file, key);
    *number = json[key].get<double>();
  }
  return constants;
}

std::string constants_json(const SettingConstants& constants) {
  SettingConstants copy = constants;
  nlohmann::ordered_json json;
  for (const auto& [key, number] : fields(copy)) json[key] = *number;
  return json.dump(2) + "\n";
}

Result<SimulatedRow> SimulatedRow::make(const Throughput& row) {
  SimulatedRow made;
  made.row_ = row;
  const std::int64_t batch = kTokensOfMicrobatch / row.tokens;
  ScheduleShape shape{.ranks = kRanks, .microbatches = static_cast<int>(kSequences / batch), .layers = kLayers};
  std::string schedule = row.system;
  if (row.table == "ablation" || row.system == "tawpipe") {
    schedule = "tawpipe";
    // Without the scheduler that knows groups, all ranks are one.
    shape.groups = row.system == kFlatTawpipe ? 1 : kNodes;
    if (row.system == "no overlap") shape.prefetch = 0;
  } else if (row.system == "fsdp") {
    shape.chunks = kLayers / kRanks;  // gathered layer by layer
  }
  PLAIT_TRY(const Schedule built, build_schedule(schedule, shape));
  PLAIT_TRY(made.program_, lower(built));
  made.model_ = ModelShape{.layers = kLayers,
                           .hidden = row.hidden,
                           .heads = row.hidden / kHeadDim,
                           .kv_heads = row.hidden / kHeadDim,
                           .head_dim = kHeadDim,
                           .ffn = 8 * row.hidden / 3,  // 12 H^2 parameters a layer
                           .vocab = kVocab,
                           .tokens = row.tokens,
                           .batch = batch,
                           .mlp = MlpKind::kGated,
                           .attention = AttentionKernel::kFlash};
  return made;
}

Result<double> SimulatedRow::tokens_per_second(const Device& device, const SettingConstants& constants) const {
  const Layout& layout = program_.layout;
  const Sharding sharding{.stash = StashPolicy::kKeepInput};
  CostModel costs = zero_costs(layout);
  PLAIT_TRY_VOID(add_memory(layout, model_, sharding, {.optimizer = {.gradient = 2}}, costs));
  for (std::size_t e = 0; e < layout.edges.size(); ++e)
    costs.edge_bytes[e] = Bytes{edge_bytes(layout, model_, sharding, EdgeId{static_cast<std::int32_t>(e)})};
  const double slowdown = slowdown_of(row_.system, constants);
  const auto width = static_cast<double>(row_.hidden);
  // What the width does to matrix products is in the efficiency; none is left for add_times to take off.
  constexpr double kNoHalfWidth = 1e-9;
  const Calibration calibration{
      .gemm_efficiency = constants.gemm_efficiency * width / (width + constants.gemm_half_width) / slowdown,
      .gemm_half_width = kNoHalfWidth,
      .gemm_seconds = kGemmSeconds,
      .attention_efficiency = constants.attention_efficiency / slowdown,
      .memory_efficiency = kMemoryEfficiency / slowdown};
  PLAIT_TRY_VOID(add_times(layout, model_, sharding, device, calibration, {}, costs));
  costs.cluster = make_cluster(
      kRanks, kRanksOfNode,
      Link{.latency_ticks = kInnerLatency, .bytes_per_second = static_cast<std::int64_t>(kInnerBytesPerSecond)},
      Link{.latency_ticks = kOuterLatency,
           .bytes_per_second = std::max<std::int64_t>(1, std::llround(constants.network_bytes_per_second))},
      costs.ticks_per_unit);
  costs.cluster->outer_ports = 1;
  PLAIT_TRY(const SimResult result, simulate(program_, costs));
  const double seconds = static_cast<double>(result.makespan) / static_cast<double>(result.ticks_per_unit);
  return static_cast<double>(kSequences * row_.tokens) / kRanks / seconds;
}

Result<SettingConstants> fit_constants(const std::vector<const SimulatedRow*>& rows, const Device& device) {
  // Five rows do not fix six constants alone: a weak pull to the start does the rest.
  constexpr double kPull = 1e-4;
  constexpr double kFirstStep = 0.3;
  constexpr double kLastStep = 1e-3;
  const SettingConstants start;
  const auto loss = [&](const SettingConstants& constants) -> Result<double> {
    double sum = 0;
    for (const SimulatedRow* row : rows) {
      PLAIT_TRY(const double found, row->tokens_per_second(device, constants));
      const double off = std::log(found / row->row().tokens_per_second);
      sum += off * off;
    }
    SettingConstants a = constants;
    SettingConstants b = start;
    const auto own = fields(a);
    const auto first = fields(b);
    for (std::size_t i = 0; i < own.size(); ++i) {
      const double off = std::log(*own[i].second / *first[i].second);
      sum += kPull * off * off;
    }
    return sum;
  };
  SettingConstants best = start;
  PLAIT_TRY(double least, loss(best));
  for (double step = kFirstStep; step > kLastStep; step /= 2) {
    for (bool better = true; better;) {
      better = false;
      for (std::size_t i = 0; i < fields(best).size(); ++i) {
        for (const double direction : {step, -step}) {
          SettingConstants moved = best;
          *fields(moved)[i].second *= std::exp(direction);
          PLAIT_TRY(const double found, loss(moved));
          if (found >= least) continue;
          least = found;
          best = moved;
          better = true;
        }
      }
    }
  }
  return best;
}

}  // namespace plait::validate
