#include "plait/schedules/common.h"

#include <string>
#include <utility>
#include <vector>

namespace plait {
namespace {

/// The two-fold order is the paper's own choice.
constexpr int kDefaultFolds = 2;
/// Layers per rank where none are given.
constexpr int kDefaultDepth = 2;

/// Where the QKV projection runs. What recompute without attention keeps is counted with the projection beside attention.
QkvPlace qkv_of(const ScheduleShape& shape) {
  return shape.qkv.value_or(shape.recompute == Recompute::kNoAttention ? QkvPlace::kAttn : QkvPlace::kPre);
}

struct Sizes {
  int ranks = 1;
  int layers = 1;
  int folds = 1;
  int repeats = 1;
};

Sizes sizes_of(const ScheduleShape& shape) {
  Sizes sizes{.ranks = shape.ranks,
              .layers = shape.layers.value_or(kDefaultDepth * shape.ranks),
              .folds = shape.folds.value_or(kDefaultFolds)};
  sizes.repeats = *shape.microbatches / (sizes.folds * sizes.ranks);
  return sizes;
}

Result<> supports(const ScheduleShape& shape) {
  PLAIT_TRY_VOID(check_positive("helixpipe", shape));
  if (shape.weights == WeightTrips::kOnce && qkv_of(shape) == QkvPlace::kPre)
    return make_error(ErrorCode::kInvalidArgument, "schedule.weights",
                      "helixpipe: ships weights only where attention projects them, got --weights once with --qkv pre; "
                      "use --qkv attn, or leave --weights out");
  ScheduleShape plain = shape;
  plain.folds.reset();
  plain.repeats.reset();
  plain.qkv.reset();
  plain.residual = ResidualPath::kThrough;
  plain.weights = WeightTrips::kPerMicrobatch;
  PLAIT_TRY_VOID(check_plain("helixpipe", plain));
  const std::int64_t p = shape.ranks;
  const std::int64_t m = *shape.microbatches;
  const std::int64_t folds = shape.folds.value_or(kDefaultFolds);
  if (shape.layers && *shape.layers % p != 0)
    return make_error(
        ErrorCode::kInvalidArgument, "schedule.layers",
        "helixpipe: deals the layers out evenly, got --layers {1} and --ranks {0}; use a multiple of {0} layers", p,
        *shape.layers);
  if (m % (folds * p) != 0)
    return make_error(ErrorCode::kInvalidArgument, "schedule.microbatches",
                      "helixpipe: runs repeats of F p = {} x {} micro-batches, got --microbatches {}; use a multiple "
                      "of {}, or other --folds",
                      folds, p, m, folds * p);
  if (shape.repeats && *shape.repeats != m / (folds * p))
    return make_error(ErrorCode::kInvalidArgument, "schedule.repeats",
                      "helixpipe: {} micro-batches are {} repeats of F p = {} x {}, got --repeats {}; leave one out", m,
                      m / (folds * p), folds, p, *shape.repeats);
  return {};
}

/// The forwards of one rank. A micro-batch is (repeat, offset, fold): the attention of layer l of an offset runs on rank
/// (l + offset) mod p, and module q, what lies between two attentions, on rank q mod p.
class ForwardList {
 public:
  explicit ForwardList(const Sizes& sizes) : sizes_(sizes) {}

  std::vector<Op> of_rank(int rank) && {
    for (int repeat = 0; repeat < sizes_.repeats; ++repeat) {
      if (sizes_.ranks == 1)
        run_alone(repeat);
      else
        walk(rank, repeat);
    }
    return std::move(ops_);
  }

 private:
  void attention(int layer, int repeat, int offset, int fold) { add(2 * layer - 1, repeat, offset, fold); }
  void module(int q, int repeat, int offset, int fold) { add(2 * q, repeat, offset, fold); }
  void add(int stage, int repeat, int offset, int fold) {
    ops_.push_back(forward(stage, (repeat * sizes_.ranks + offset) * sizes_.folds + fold));
  }

  /// One rank: each micro-batch through the whole chain.
  void run_alone(int repeat) {
    for (int fold = 0; fold < sizes_.folds; ++fold)
      for (int stage = 0; stage <= 2 * sizes_.layers; ++stage) add(stage, repeat, 0, fold);
  }

  void walk(int rank, int repeat) {
    const int p = sizes_.ranks;
    if (rank == 0) open(repeat);
    for (int layer = 1; layer <= sizes_.layers; ++layer) {
      const int offset = (rank + sizes_.layers - layer) % p;  // p divides the layers
      if (offset == 0) {
        const bool closed_by_next = rank == 0 && layer == sizes_.layers && repeat + 1 < sizes_.repeats;
        if (!closed_by_next) run_module(layer, repeat);
      } else if (offset < p - 1) {  // the last offset's attention stands behind the module before it
        for (int fold = 0; fold < sizes_.folds; ++fold) attention(layer, repeat, offset, fold);
      }
    }
  }

  /// Module 0 of a repeat, and the last module of the repeat before it on the way.
  void open(int repeat) {
    const int last_layer = sizes_.layers;
    for (int offset = 0; offset < sizes_.ranks; ++offset) {
      for (int fold = 0; fold < sizes_.folds; ++fold) {
        if (repeat > 0) {
          if (offset == 0) attention(last_layer, repeat - 1, 0, fold);
          module(last_layer, repeat - 1, offset, fold);
        }
        module(0, repeat, offset, fold);
        if (offset == sizes_.ranks - 1) attention(1, repeat, offset, fold);
      }
    }
  }

  void run_module(int layer, int repeat) {
    const int last = sizes_.ranks - 1;
    for (int offset = 0; offset <= last; ++offset) {
      for (int fold = 0; fold < sizes_.folds; ++fold) {
        if (offset == 0) attention(layer, repeat, 0, fold);
        module(layer, repeat, offset, fold);
        if (offset == last && layer < sizes_.layers) attention(layer + 1, repeat, last, fold);
      }
    }
  }

  Sizes sizes_;
  std::vector<Op> ops_;
};

/// Cuts every layer around its attention: stage 2q is module q, stage 2l - 1 the attention of layer l (from 1). With the
/// projection beside attention its weights still live with the module before it.
LayoutSpec cut_at_attention(const ScheduleShape& shape, const Sizes& sizes) {
  LayoutSpec spec{.name = "helixpipe",
                  .num_ranks = sizes.ranks,
                  .num_microbatches = *shape.microbatches,
                  .num_layers = sizes.layers,
                  .tying = shape.tying,
                  .stages = {},
                  .homes = {}};
  const bool ships_weights = qkv_of(shape) == QkvPlace::kAttn;
  int begin = 0;
  for (int layer = 0; layer < sizes.layers; ++layer) {
    const int attn = part_index(sizes.layers, Part{.kind = PartKind::kAttn, .layer = layer});
    const int cut = ships_weights ? attn - 1 : attn;
    const std::vector<RankId> home = {RankId{layer % sizes.ranks}};
    spec.stages.push_back(PartRange{.begin = begin, .end = cut});
    spec.homes.push_back(home);
    spec.stages.push_back(PartRange{.begin = cut, .end = attn + 1});
    spec.homes.push_back(ships_weights ? home : std::vector<RankId>{});  // without weights it runs where its ops stand
    begin = attn + 1;
  }
  spec.stages.push_back(PartRange{.begin = begin, .end = num_parts(sizes.layers)});
  spec.homes.push_back({RankId{0}});
  return spec;
}

/// Brings the weights of the projection to the ranks that run attention elsewhere, and the gradients back:
///
///   owner     M0.m send W            ... recv dW, add, back of M0.m
///   borrower  recv W A1.m            ... back of A1.m send dW free W
class WeightRoutes {
 public:
  WeightRoutes(const Layout& layout, const Sizes& sizes, WeightTrips trips)
      : layout_(layout), sizes_(sizes), trips_(trips) {}

  void append_forward(Row& row, const Op& op, int rank) const {
    const int layer = (op.stage.value() + 1) / 2;  // of an attention
    if (op.stage.value() % 2 == 1) {
      if (owner(layer) != rank && travels(op)) row.push_back(Recv{weight(layer), RankId{owner(layer)}});
      row.push_back(op);
      return;
    }
    row.push_back(op);
    const int next = op.stage.value() / 2 + 1;
    if (next <= sizes_.layers && borrower(next, op) != rank && travels(op))
      row.push_back(Send{weight(next), RankId{borrower(next, op)}});
  }

  void append_backward(Row& row, const Op& op, int rank) const {
    const int layer = (op.stage.value() + 1) / 2;
    if (op.stage.value() % 2 == 1) {
      row.push_back(op);
      if (owner(layer) == rank || !travels(op)) return;
      row.push_back(Send{gradient(layer), RankId{owner(layer)}});
      row.push_back(Free{weight(layer)});
      return;
    }
    const int next = op.stage.value() / 2 + 1;
    if (next <= sizes_.layers && borrower(next, op) != rank && travels(op)) {
      row.push_back(Recv{gradient(next), RankId{borrower(next, op)}});
      row.push_back(Add{group(next)});
    }
    row.push_back(op);
  }

 private:
  [[nodiscard]] int owner(int layer) const { return (layer - 1) % sizes_.ranks; }
  /// Where the attention of a layer runs for the op's micro-batch.
  [[nodiscard]] int borrower(int layer, const Op& op) const {
    return (layer + op.microbatch.value() / sizes_.folds) % sizes_.ranks;
  }
  /// Once: with the first micro-batch of a rank, which is also the last one backwards.
  [[nodiscard]] bool travels(const Op& op) const {
    const bool first = op.microbatch.value() < sizes_.folds * sizes_.ranks && op.microbatch.value() % sizes_.folds == 0;
    return trips_ == WeightTrips::kPerMicrobatch || first;
  }
  [[nodiscard]] GroupId group(int layer) const {
    return layout_.stages[static_cast<std::size_t>(2 * layer - 1)].groups.front();
  }
  [[nodiscard]] Value weight(int layer) const { return Value::weight(group(layer)); }
  [[nodiscard]] Value gradient(int layer) const { return Value::weight_grad(group(layer)); }

  const Layout& layout_;
  const Sizes& sizes_;
  WeightTrips trips_;
};

Result<Schedule> build(const ScheduleShape& shape) {
  const Sizes sizes = sizes_of(shape);
  PLAIT_TRY(Layout layout, make_layout(cut_at_attention(shape, sizes)));
  layout.exchanges = Exchanges::kSwaps;
  layout.folds = sizes.folds;
  if (shape.residual == ResidualPath::kDirect)
    for (int q = 1; q <= sizes.layers; ++q)
      layout.edges.push_back(Edge{.producer = StageId{2 * q - 2}, .consumer = StageId{2 * q}});
  const bool ships_weights = qkv_of(shape) == QkvPlace::kAttn;
  const WeightRoutes routes(layout, sizes, shape.weights);
  std::vector<Row> rows;
  for (int rank = 0; rank < sizes.ranks; ++rank) {
    const std::vector<Op> forwards = ForwardList(sizes).of_rank(rank);
    Row& row = rows.emplace_back();
    for (const Op& op : forwards) {
      if (ships_weights)
        routes.append_forward(row, op, rank);
      else
        row.push_back(op);
    }
    for (auto op = forwards.rbegin(); op != forwards.rend(); ++op) {
      const Op reversed = backward(op->stage.value(), op->microbatch.value());
      if (ships_weights)
        routes.append_backward(row, reversed, rank);
      else
        row.push_back(reversed);
    }
  }
  return Schedule{.layout = std::move(layout), .rows = std::move(rows)};
}

/// Times are by part, so no makespan in F, B and W is stated. Of p offsets all but the last leave the rank of a module for
/// the attention, and all but the first leave that for the next module; a direct residual always goes to the next rank.
Expectation expect(const ScheduleShape& shape) {
  const Sizes sizes = sizes_of(shape);
  const std::int64_t per_offset = std::int64_t{sizes.repeats} * sizes.folds * sizes.layers;
  std::int64_t sends = std::int64_t{4} * (sizes.ranks - 1) * per_offset;
  if (shape.residual == ResidualPath::kDirect && sizes.ranks > 1) sends += std::int64_t{2} * sizes.ranks * per_offset;
  if (qkv_of(shape) == QkvPlace::kAttn)
    sends += std::int64_t{2} * (sizes.ranks - 1) * (shape.weights == WeightTrips::kOnce ? sizes.layers : per_offset);
  return Expectation{.sends = sends};
}

constexpr ScheduleInfo kInfo{
    .name = "helixpipe",
    .summary = "attention of one layer spread over all ranks, weights dealt out layer by layer; F folds hide transfers",
    .needs = "layers a multiple of p; m a multiple of F p (F = 2 unless set)",
    .forms =
        "times by part, each B = W = F, attention B = 2F: bubble 3(p-1)(pre+post) for F = 1; "
        "3(F(p-3)+2)(pre+post) for p >= 4 and pre = post",
    .source = "Zhang et al. 2025, arXiv:2507.00394",
    .supports = &supports,
    .build = &build,
    .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
