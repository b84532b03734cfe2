#include "plait/sim/host.h"

#include "plait/base/check.h"

#include <algorithm>
#include <cmath>

namespace plait::host {
namespace {

constexpr double kNanos = 1e9;
/// Seconds that one pass over one element is taken to need; the measured ratios correct it.
constexpr double kPass = 0.2e-9;
/// Seconds per operation that attention is taken to need; the measured ratios correct it.
constexpr double kAttentionOperation = 1e-11;

/// Where a coordinate lies among the points of an axis: between `low` and `low + 1`, `part` of the way.
struct Place {
  std::size_t low = 0;
  double part = 0;
};
Place place_on(const std::vector<double>& axis, double x) {
  if (axis.size() < 2 || x <= axis.front()) return {};
  if (x >= axis.back()) return {.low = axis.size() - 2, .part = 1};
  const auto above = std::upper_bound(axis.begin(), axis.end(), x);
  const auto low = static_cast<std::size_t>(above - axis.begin()) - 1;
  return {.low = low, .part = std::log(x / axis[low]) / std::log(axis[low + 1] / axis[low])};
}

struct Sizes {
  double rows, hidden, query, key, ffn, vocab;
};
Sizes sizes_of(const ModelShape& s, std::int64_t tokens) {
  return {.rows = static_cast<double>(s.batch * tokens),
          .hidden = static_cast<double>(s.hidden),
          .query = static_cast<double>(s.heads * s.head_dim),
          .key = static_cast<double>(s.kv_heads * s.head_dim),
          .ffn = static_cast<double>(s.ffn),
          .vocab = static_cast<double>(s.vocab)};
}

double ratio_of(const PartCost& cost, Company company, const ModelShape& shape, std::int64_t tokens, PartKind part) {
  const Grid& grid = company == Company::kAlone ? cost.alone : cost.shared;
  if (grid.values.empty()) return 0;
  const Sizes s = sizes_of(shape, tokens);
  std::array<double, 2> point = {s.rows, s.hidden};
  if (part == PartKind::kAttn) point = {static_cast<double>(tokens), static_cast<double>(shape.head_dim)};
  if (part == PartKind::kHead) point = {s.rows, s.vocab};
  return grid.at(point);
}

std::string_view type_name(std::int64_t element_bytes) {
  return element_bytes == 8 ? "fp64" : element_bytes == 4 ? "fp32" : "bf16";
}

/// Tokens of each slice: equal, and one more for the first ones.
std::int64_t tokens_of(const ModelShape& shape, int num_slices, int slice) {
  const std::int64_t extra = slice < shape.tokens % num_slices ? 1 : 0;
  return shape.tokens / num_slices + extra;
}

}  // namespace

double Grid::at(std::span<const double> point) const {
  PLAIT_CHECK(point.size() == axes.size(), "{} coordinates for {} axes", point.size(), axes.size());
  std::vector<Place> places;
  for (std::size_t i = 0; i < axes.size(); ++i) places.push_back(place_on(axes[i], point[i]));
  double sum = 0;
  for (std::size_t corner = 0; corner < (std::size_t{1} << axes.size()); ++corner) {
    double weight = 1;
    std::size_t index = 0;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      const bool high = (corner >> i & 1) != 0;
      weight *= high ? places[i].part : 1 - places[i].part;
      index = index * axes[i].size() + std::min(places[i].low + (high ? 1 : 0), axes[i].size() - 1);
    }
    if (weight != 0) sum += weight * values[index];
  }
  return sum;
}

double work_seconds(const TypeCosts& type, Company company, const ModelShape& shape, std::int64_t tokens, PartKind part,
                    Phase phase) {
  if (phase == Phase::kBoth)
    return work_seconds(type, company, shape, tokens, part, Phase::kBackward) +
           work_seconds(type, company, shape, tokens, part, Phase::kWeight);
  const Sizes s = sizes_of(shape, tokens);
  const double matrices = shape.mlp == MlpKind::kGated ? 2 : 1;
  const auto kind = phase == Phase::kBackward ? 1U : phase == Phase::kWeight ? 2U : 0U;
  const Grid& grid = company == Company::kAlone ? type.products.alone[kind] : type.products.shared[kind];
  const auto product = [&](double inputs, double outputs) {
    const std::array<double, 3> point = {s.rows, inputs, outputs};
    return 2 * s.rows * inputs * outputs * grid.at(point);
  };
  const auto passes = [&](double elements) { return kPass * elements; };
  switch (part) {
    case PartKind::kEmbed: return phase == Phase::kBackward ? 0 : passes(s.rows * s.hidden);
    case PartKind::kNorm: return passes(2 * s.rows * s.hidden);
    case PartKind::kQkv: return product(s.hidden, s.query + 2 * s.key);
    case PartKind::kAttn: {
      if (phase == Phase::kWeight) return 0;
      const double operations = 2 * s.rows * (static_cast<double>(tokens) + 1) * s.query;  // causal: half of 4 T
      const double again = phase == Phase::kBackward ? 2.5 : 1;
      return again * operations * kAttentionOperation + passes(2 * s.rows * (s.query + s.key));
    }
    case PartKind::kPost:
      return product(s.query, s.hidden) + product(s.hidden, matrices * s.ffn) + product(s.ffn, s.hidden) +
             passes(s.rows * (2 * s.hidden + 3 * s.ffn));
    case PartKind::kHead: return product(s.hidden, s.vocab) + passes(2 * s.rows * s.vocab);
  }
  return 0;
}

Result<CostModel> host_costs(const Program& program, const ModelShape& shape, const Calibration& calibration,
                             Company company) {
  PLAIT_TRY_VOID(check_shape(shape));
  const Layout& layout = program.layout;
  if (layout.num_ranks > calibration.cores)
    return make_error(ErrorCode::kInvalidArgument, "host.cores",
                      "{} has {} cores; {} ranks would share them, which the calibration does not cover",
                      calibration.name, calibration.cores, layout.num_ranks);
  const auto type = calibration.types.find(std::string(type_name(shape.element_bytes)));
  const std::string mlp = shape.mlp == MlpKind::kGated ? "gated" : "plain";
  if (type == calibration.types.end() || !type->second.mlps.contains(mlp))
    return make_error(ErrorCode::kInvalidArgument, "host.type",
                      "{} was not calibrated for {} and a {} MLP; see plait bench calibrate --help", calibration.name,
                      type_name(shape.element_bytes), mlp);
  const TypeCosts& costs_of_type = type->second;
  const PartCosts& parts = costs_of_type.mlps.at(mlp);

  CostModel costs = zero_costs(layout);
  const MemoryOptions memory{.optimizer = adam_bytes(shape.element_bytes), .block = Bytes{64}};
  PLAIT_TRY_VOID(add_memory(layout, shape, {}, memory, costs));
  costs.ticks_per_unit = static_cast<std::int64_t>(kNanos);
  costs.unit = "s";
  costs.latency = std::llround(calibration.hand_over_seconds * kNanos);
  costs.messages = MessageBytes::kInFlight;
  const OptimizerBytes per_parameter = adam_bytes(shape.element_bytes);
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    GroupCost& group = costs.groups[g];
    const double parameters = static_cast<double>(group.gradient.value()) / static_cast<double>(per_parameter.gradient);
    const Grid& grid = company == Company::kAlone ? costs_of_type.step_alone : costs_of_type.step_shared;
    if (parameters > 0) {
      const std::array<double, 1> point = {parameters};
      group.step_ticks = std::llround(parameters * grid.at(point) * kNanos);
    }
  }
  const bool keeps_attention = layout.recompute == Recompute::kNoAttention;
  for (std::size_t s = 0; s < layout.stages.size(); ++s) {
    const StageId stage{static_cast<std::int32_t>(s)};
    const PartRange range = layout.stages[s].parts;
    for (int q = 0; q < layout.num_slices; ++q) {
      const std::int64_t tokens = tokens_of(shape, layout.num_slices, q);
      const auto seconds_of = [&](Phase phase, bool with_attention = true) {
        double seconds = 0;
        for (int part = range.begin; part < range.end; ++part) {
          const PartKind kind = part_at(layout.num_layers, part).kind;
          if (kind == PartKind::kAttn && !with_attention) continue;
          const PartCost& cost = parts.parts[static_cast<std::size_t>(kind)][static_cast<std::size_t>(phase)];
          seconds += work_seconds(costs_of_type, company, shape, tokens, kind, phase) *
                     ratio_of(cost, company, shape, tokens, kind);
        }
        return seconds;
      };
      const auto set = [&](OpKind kind, double seconds) {
        costs.op(kind, stage, SliceId{q}) = OpCost{.ticks = std::llround(seconds * kNanos)};
      };
      set(OpKind::kForward, seconds_of(layout.mode == Mode::kTrain ? Phase::kForward : Phase::kForwardOnly));
      set(OpKind::kRecompute, seconds_of(Phase::kForward, !keeps_attention));
      set(OpKind::kBackwardInput, seconds_of(Phase::kBackward));
      set(OpKind::kBackwardWeight, seconds_of(Phase::kWeight));
      set(OpKind::kBackward, seconds_of(Phase::kBoth));
    }
  }
  return costs;
}

}  // namespace plait::host
