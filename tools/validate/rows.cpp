#include "tools/validate/rows.h"

#include "plait/base/files.h"
#include "plait/ir/lower.h"
#include "plait/schedules/schedule_info.h"
#include "plait/sim/simulate.h"

#include <fmt/format.h>

#include <charconv>
#include <set>
#include <sstream>
#include <utility>

namespace plait::validate {
namespace {

constexpr int kDevicesOfNode = 8;  // of every machine in these tables
constexpr std::int64_t kVtrainVocab = 51200;

using Cells = std::vector<std::string>;

Result<std::vector<Cells>> read_csv(const std::string& path, std::size_t num_columns) {
  PLAIT_TRY(const std::string text, read_file(path));
  std::vector<Cells> rows;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
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

Result<std::int64_t> whole(const std::string& cell) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error != std::errc{} || end != cell.data() + cell.size() || value < 1 || value > (std::int64_t{1} << 30))
    return make_error(ErrorCode::kIo, "validate.csv", "'{}' is not a positive whole number", cell);
  return value;
}

Result<> read_steps(const std::string& data, std::vector<MeasuredRow>& rows) {
  PLAIT_TRY(const auto lines, read_csv(data + "/validation/steps.csv", 22));
  for (const Cells& c : lines) {
    std::vector<std::int64_t> n;
    for (std::size_t i = 3; i <= 16; ++i) {
      PLAIT_TRY(const std::int64_t value, whole(c[i]));
      n.push_back(value);
    }
    const StashPolicy stash = c[17] == "full"        ? StashPolicy::kKeepInput
                              : c[17] == "selective" ? StashPolicy::kSelective
                                                     : StashPolicy::kKeepAll;
    rows.push_back({.set = c[0],
                    .name = c[1],
                    .device = c[2],
                    .size = fmt::format("{} layers, hidden {}", n[0], n[1]),
                    .shape = {.layers = static_cast<int>(n[0]),
                              .hidden = n[1],
                              .heads = n[2],
                              .kv_heads = n[3],
                              .head_dim = n[1] / n[2],
                              .ffn = n[4],
                              .vocab = n[5],
                              .tokens = n[6],
                              .batch = n[7],
                              .mlp = c[20] == "gated" ? MlpKind::kGated : MlpKind::kPlain,
                              .attention = c[19] == "flash" ? AttentionKernel::kFlash : AttentionKernel::kUnfused,
                              .dropout = c[19] == "flash" ? Dropout::kOff : Dropout::kOn},
                    .sharding = {.tensor = static_cast<int>(n[8]),
                                 .context = static_cast<int>(n[9]),
                                 .data = static_cast<int>(n[12]),
                                 .sequence = c[18] == "on" ? SequenceParallel::kOn : SequenceParallel::kOff,
                                 .stash = stash},
                    .pipeline = static_cast<int>(n[10]),
                    .chunks = static_cast<int>(n[11]),
                    .microbatches = static_cast<int>(n[13]),
                    .seconds = std::stod(c[21])});
  }
  return {};
}

/// vTrain's files: one more leading column in the multi-node one.
Result<> read_vtrain(const std::string& data, const std::string& nodes, std::size_t skip, StashPolicy stash,
                     std::vector<MeasuredRow>& rows) {
  PLAIT_TRY(const auto lines, read_csv(data + "/validation/vtrain-" + nodes + "-node.csv", 11 + skip));
  for (std::size_t line = 0; line < lines.size(); ++line) {
    std::vector<std::int64_t> n;
    for (std::size_t i = skip; i < skip + 10; ++i) {
      PLAIT_TRY(const std::int64_t value, whole(lines[line][i]));
      n.push_back(value);
    }
    ModelShape shape = gpt_shape(static_cast<int>(n[5]), n[3], n[4], kVtrainVocab, n[6], n[2]);
    shape.dropout = Dropout::kOn;
    rows.push_back({.set = "vtrain-" + nodes,
                    .name = fmt::format("line {}: {} GPUs, t {} d {} p {}, batch {} by {}", line + 2, n[0], n[7], n[8],
                                        n[9], n[1], n[2]),
                    .device = "a100-80gb-sxm",
                    .size = fmt::format("{} layers, hidden {}", n[5], n[3]),
                    .shape = shape,
                    .sharding = {.tensor = static_cast<int>(n[7]), .data = static_cast<int>(n[8]), .stash = stash},
                    .pipeline = static_cast<int>(n[9]),
                    .microbatches = static_cast<int>(std::max<std::int64_t>(1, n[1] / n[2] / n[8])),
                    .seconds = std::stod(lines[line][skip + 10]) / 1000});
  }
  return {};
}

}  // namespace

Result<std::vector<MeasuredRow>> read_rows(const std::string& data) {
  std::vector<MeasuredRow> rows;
  PLAIT_TRY_VOID(read_steps(data, rows));
  PLAIT_TRY_VOID(read_vtrain(data, "single", 0, StashPolicy::kKeepAll, rows));
  PLAIT_TRY_VOID(read_vtrain(data, "multi", 1, StashPolicy::kKeepInput, rows));
  PLAIT_TRY(const auto fitted, read_csv(data + "/validation/fit.csv", 2));
  std::set<std::pair<std::string, std::string>> names;
  for (const Cells& cells : fitted) names.emplace(cells[0], cells[1]);
  for (MeasuredRow& row : rows) {
    std::string plain = row.name;
    for (std::size_t at = plain.find(','); at != std::string::npos; at = plain.find(',')) plain.erase(at, 1);
    row.fitted = names.erase({row.set, plain}) > 0;
  }
  if (!names.empty())
    return make_error(ErrorCode::kIo, "validate.fit", "fit.csv names a row that is not there: {}, {}",
                      names.begin()->first, names.begin()->second);
  return rows;
}

Result<PreparedRow> prepare(const MeasuredRow& row, const std::map<std::string, Device>& devices) {
  const auto device = devices.find(row.device);
  if (device == devices.end())
    return make_error(ErrorCode::kInvalidArgument, "device.unknown", "no device '{}' under data/devices", row.device);
  const ScheduleShape shape{
      .ranks = row.pipeline, .microbatches = row.microbatches, .chunks = row.chunks, .layers = row.shape.layers};
  PLAIT_TRY(const Schedule schedule, build_schedule(row.chunks > 1 ? "interleaved-1f1b" : "1f1b", shape));
  PLAIT_TRY(Program program, lower(schedule));
  return PreparedRow{.row = row, .program = std::move(program), .device = device->second};
}

Result<double> predict(const PreparedRow& prepared, const Calibration& calibration) {
  const MeasuredRow& row = prepared.row;
  CostModel costs = zero_costs(prepared.program.layout);
  PLAIT_TRY_VOID(add_memory(prepared.program.layout, row.shape, row.sharding, {}, costs));
  // Order of the axes in all these tables: tensor, context, data, pipeline; the last is the first to leave the node.
  const int inner = row.sharding.tensor * row.sharding.context;
  const auto hops = [](int devices) { return devices > kDevicesOfNode ? Hops::kBetweenNodes : Hops::kInsideNode; };
  const DeviceOptions options{.pipeline = hops(inner * row.sharding.data * row.pipeline),
                              .data = hops(inner * row.sharding.data),
                              .tensor = hops(row.sharding.tensor)};
  PLAIT_TRY_VOID(
      add_times(prepared.program.layout, row.shape, row.sharding, prepared.device, calibration, options, costs));
  // Megatron sends 1/t of an activation over the network and gathers it inside the node.
  if (row.sharding.sequence == SequenceParallel::kOff)
    for (Bytes& bytes : costs.edge_bytes) bytes = bytes / row.sharding.tensor;
  // The Megatron of these papers waits for each transfer between stages, which so takes time of the lane that sends; the
  // recipes of the H100 records overlap them.
  const bool overlaps = row.set == "dgxc";
  if (!overlaps) {
    const Layout& layout = prepared.program.layout;
    for (int s = 0; s < layout.num_stages(); ++s) {
      const StageId stage{s};
      const auto wire = [&](const std::vector<EdgeId>& edges) {
        std::int64_t ticks = 0;
        for (const EdgeId e : edges)
          ticks += wire_ticks(*costs.cluster, costs.cluster->outer, costs.edge_bytes[e.index()]);
        return ticks;
      };
      costs.op(OpKind::kForward, stage, {}).ticks += wire(layout.edges_out_of(stage));
      costs.op(OpKind::kBackward, stage, {}).ticks += wire(layout.edges_into(stage));
    }
  }
  const TransferMode transfers = overlaps ? TransferMode::kBuffered : TransferMode::kFree;
  PLAIT_TRY(const SimResult result, simulate(prepared.program, costs, {.transfers = transfers}));
  return static_cast<double>(result.makespan) / static_cast<double>(result.ticks_per_unit);
}

}  // namespace plait::validate
