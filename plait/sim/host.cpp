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
/// Elements of the logits that the engine makes at once (plait/run/model/parts/head.cpp).
constexpr double kLogitChunkElements = 1 << 21;

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

/// Sum of the bytes of a list of lengths.
double bytes_of(const Bytewise& bytewise, const ModelShape& shape, std::int64_t tokens) {
  double sum = 0;
  for (std::size_t i = 0; i < bytewise.size(); ++i)
    if (bytewise[i] != 0) sum += bytewise[i] * length_of(shape, tokens, static_cast<Length>(i));
  return sum;
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

/// Walks an op's parts one after the other and notes what it does to memory.
class Walk {
 public:
  void step(double live, double peak) {
    peak_ = std::max(peak_, now_ + peak);
    now_ += live;
    peak_ = std::max(peak_, now_);
  }
  [[nodiscard]] std::int64_t net() const { return std::llround(now_); }
  [[nodiscard]] OpCost cost(double seconds) const {
    const std::int64_t end = net();
    const std::int64_t top = std::max<std::int64_t>(std::llround(peak_), std::max<std::int64_t>(end, 0));
    return {.ticks = std::llround(seconds * kNanos),
            .alloc = std::max<std::int64_t>(end, 0),
            .transient = top - std::max<std::int64_t>(end, 0),
            .freed = std::max<std::int64_t>(-end, 0)};
  }

 private:
  double now_ = 0;
  double peak_ = 0;
};

std::string_view type_name(std::int64_t element_bytes) {
  return element_bytes == 8 ? "fp64" : element_bytes == 4 ? "fp32" : "bf16";
}

/// Tokens of each slice: equal, and one more for the first ones.
std::int64_t tokens_of(const ModelShape& shape, int num_slices, int slice) {
  const std::int64_t extra = slice < shape.tokens % num_slices ? 1 : 0;
  return shape.tokens / num_slices + extra;
}

/// Bytes of the tensors that cross the cut in front of a part.
std::int64_t payload_bytes(const ModelShape& shape, std::int64_t tokens, int part_idx, int num_layers) {
  const auto rows = shape.batch * tokens;
  const std::int64_t query = shape.heads * shape.head_dim;
  const std::int64_t key = shape.kv_heads * shape.head_dim;
  std::int64_t width = shape.hidden;
  switch (part_at(num_layers, part_idx).kind) {
    case PartKind::kEmbed: width = 0; break;
    case PartKind::kNorm:
    case PartKind::kHead: break;
    case PartKind::kQkv: width += shape.hidden; break;
    case PartKind::kAttn: width += query + 2 * key; break;
    case PartKind::kPost: width += query; break;
  }
  return rows * width * shape.element_bytes;
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

std::string_view to_string(Length length) {
  constexpr std::array<std::string_view, kNumLengths> kNames = {"1", "R", "RD", "RQ", "RK", "RN", "RF", "RV", "CV"};
  return kNames[static_cast<std::size_t>(length)];
}

double length_of(const ModelShape& shape, std::int64_t tokens, Length length) {
  const Sizes s = sizes_of(shape, tokens);
  switch (length) {
    case Length::kOne: return 1;
    case Length::kRows: return s.rows;
    case Length::kHidden: return s.rows * s.hidden;
    case Length::kQuery: return s.rows * s.query;
    case Length::kKey: return s.rows * s.key;
    case Length::kHeads: return s.rows * static_cast<double>(shape.heads);
    case Length::kFfn: return s.rows * s.ffn;
    case Length::kLogits: return s.rows * s.vocab;
    case Length::kLogitChunk:
      return std::min(s.rows, std::max(1.0, std::floor(kLogitChunkElements / s.vocab))) * s.vocab;
  }
  return 0;
}

double work_seconds(const TypeCosts& type, Company company, const ModelShape& shape, std::int64_t tokens, PartKind part,
                    Phase phase) {
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

  // Weights, gradients and moments; then times and bytes of the ops.
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
    // A tied table that embed and head use on one rank has an accumulator for each.
    const auto has_embed = std::find(layout.groups[g].parts.begin(), layout.groups[g].parts.end(), 0);
    if (layout.tying == HeadTying::kTied && has_embed != layout.groups[g].parts.end() &&
        layout.groups[g].homes.size() == 1)
      group.gradient += Bytes{shape.vocab * shape.hidden * per_parameter.gradient};
  }
  // Tables of sines and cosines, one pair a stage with attention.
  if (shape.mlp == MlpKind::kGated) {
    std::vector<std::int64_t> stages_on(static_cast<std::size_t>(layout.num_ranks));
    std::int64_t most = 0;
    for (const Stage& stage : layout.stages)
      for (const RankId home : stage.homes) most = std::max(most, ++stages_on[home.index()]);
    const std::int64_t wide = std::max<std::int64_t>(4, shape.element_bytes);
    costs.fixed_bytes = Bytes{most * shape.tokens * shape.head_dim * wide};
  }
  const bool trains = layout.mode == Mode::kTrain;
  const bool recomputes = layout.recompute != Recompute::kNone;
  for (std::size_t s = 0; s < layout.stages.size(); ++s) {
    const StageId stage{static_cast<std::int32_t>(s)};
    const PartRange range = layout.stages[s].parts;
    for (int q = 0; q < layout.num_slices; ++q) {
      const std::int64_t tokens = tokens_of(shape, layout.num_slices, q);
      const auto forward = [&](Phase phase) {
        Walk walk;
        double seconds = 0;
        for (int part = range.begin; part < range.end; ++part) {
          const PartKind kind = part_at(layout.num_layers, part).kind;
          const PartCost& cost = parts.parts[static_cast<std::size_t>(kind)][static_cast<std::size_t>(phase)];
          walk.step(bytes_of(cost.live, shape, tokens), bytes_of(cost.peak, shape, tokens));
          seconds += work_seconds(costs_of_type, company, shape, tokens, kind, phase) *
                     ratio_of(cost, company, shape, tokens, kind);
        }
        return std::pair(walk, seconds);
      };
      const auto backward = [&](Walk& walk, Phase phase) {
        double seconds = 0;
        for (int part = range.end; part-- > range.begin;) {
          const PartKind kind = part_at(layout.num_layers, part).kind;
          const PartCost& cost = parts.parts[static_cast<std::size_t>(kind)][static_cast<std::size_t>(phase)];
          walk.step(bytes_of(cost.live, shape, tokens), bytes_of(cost.peak, shape, tokens));
          seconds += work_seconds(costs_of_type, company, shape, tokens, kind, phase) *
                     ratio_of(cost, company, shape, tokens, kind);
        }
        return seconds;
      };
      const std::size_t cell = costs.cell(s, SliceId{q});
      const std::int64_t in = range.begin == 0 ? 0 : payload_bytes(shape, tokens, range.begin, layout.num_layers);
      const bool is_last = range.end == num_parts(layout.num_layers);
      const std::int64_t out = is_last ? 0 : payload_bytes(shape, tokens, range.end, layout.num_layers);
      for (const EdgeId edge : layout.edges_out_of(stage))
        costs.edge_bytes[costs.cell(edge.index(), SliceId{q})] = Bytes{out};
      const auto [first, first_seconds] = forward(trains && !recomputes ? Phase::kForward : Phase::kForwardOnly);
      OpCost& op = costs.op(OpKind::kForward, stage, SliceId{q});
      op = first.cost(first_seconds);
      std::int64_t stash = first.net() + in - out;  // the input stays where the stash holds it
      if (trains && recomputes) {
        // F leaves its input and what the layout says; R runs again and drops its output.
        const auto [again, again_seconds] = forward(Phase::kForward);
        op.alloc += in;
        const std::int64_t kept = in;
        stash = again.net() + in - out;
        OpCost& remake = costs.op(OpKind::kRecompute, stage, SliceId{q});
        remake = again.cost(again_seconds);
        remake.freed += out;
        costs.stash_bytes[cell] = Bytes{kept};
        costs.remade_bytes[cell] = Bytes{std::max<std::int64_t>(0, stash - kept)};
      } else {
        costs.stash_bytes[cell] = Bytes{std::max<std::int64_t>(0, stash)};
        costs.remade_bytes[cell] = Bytes{};
      }
      costs.logit_bytes[cell] = Bytes{};
      if (!trains) continue;
      Walk input;
      const double input_seconds = backward(input, Phase::kBackward);
      costs.op(OpKind::kBackwardInput, stage, SliceId{q}) = input.cost(input_seconds);
      costs.weight_stash_bytes[cell] = Bytes{std::max<std::int64_t>(0, input.net() + stash + out - in)};
      Walk both = input;
      const double weight_seconds = backward(both, Phase::kWeight);
      costs.op(OpKind::kBackward, stage, SliceId{q}) = both.cost(input_seconds + weight_seconds);
      Walk weight;
      const double alone_seconds = backward(weight, Phase::kWeight);
      costs.op(OpKind::kBackwardWeight, stage, SliceId{q}) = weight.cost(alone_seconds);
    }
  }
  return costs;
}

}  // namespace plait::host
