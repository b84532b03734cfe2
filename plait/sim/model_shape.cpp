#include "plait/sim/model_shape.h"

#include <algorithm>

namespace plait {
namespace {

/// Rows and columns of a tile of the causal flash kernels.
constexpr double kFlashBlock = 128;
constexpr std::int64_t kLogSumExpBytes = 4;
constexpr std::int64_t kLogitBytes = 4;
/// No size of a real model comes near; products of a few of them still fit into 63 bits.
constexpr std::int64_t kMostSize = std::int64_t{1} << 24;

}  // namespace

ModelShape gpt_shape(int layers, std::int64_t hidden, std::int64_t heads, std::int64_t vocab, std::int64_t tokens,
                     std::int64_t batch) {
  return ModelShape{.layers = layers,
                    .hidden = hidden,
                    .heads = heads,
                    .kv_heads = heads,
                    .head_dim = heads > 0 ? hidden / heads : 0,
                    .ffn = 4 * hidden,
                    .vocab = vocab,
                    .tokens = tokens,
                    .batch = batch};
}

Result<> check_shape(const ModelShape& shape) {
  const std::pair<const char*, std::int64_t> sizes[] = {
      {"layers", shape.layers},     {"hidden", shape.hidden},
      {"heads", shape.heads},       {"kv_heads", shape.kv_heads},
      {"head_dim", shape.head_dim}, {"ffn", shape.ffn},
      {"vocab", shape.vocab},       {"tokens", shape.tokens},
      {"batch", shape.batch},       {"element_bytes", shape.element_bytes}};
  for (const auto& [name, value] : sizes)
    if (value < 1 || value > kMostSize)
      return make_error(ErrorCode::kInvalidArgument, "shape.size", "{} is {}; expected 1 to {}", name, value,
                        kMostSize);
  if (shape.heads % shape.kv_heads != 0)
    return make_error(ErrorCode::kInvalidArgument, "shape.heads", "{} heads do not share {} key/value heads evenly",
                      shape.heads, shape.kv_heads);
  return {};
}

double attention_fraction(const ModelShape& shape) {
  if (shape.attention == AttentionKernel::kUnfused) return 1;
  const double blocks = std::max(1.0, static_cast<double>(shape.tokens) / kFlashBlock);
  return (blocks + 1) / (2 * blocks);
}

double forward_flops(const ModelShape& shape, const Sharding& sharding, PartKind part) {
  const double devices = static_cast<double>(sharding.tensor) * sharding.context;
  const double rows = static_cast<double>(shape.batch) * static_cast<double>(shape.tokens) / devices;
  const auto hidden = static_cast<double>(shape.hidden);
  const double query = static_cast<double>(shape.heads) * static_cast<double>(shape.head_dim);
  const double key = static_cast<double>(shape.kv_heads) * static_cast<double>(shape.head_dim);
  const double matrices = shape.mlp == MlpKind::kGated ? 3 : 2;
  switch (part) {
    case PartKind::kQkv: return 2 * rows * hidden * (query + 2 * key);
    case PartKind::kAttn: return 4 * rows * static_cast<double>(shape.tokens) * query * attention_fraction(shape);
    case PartKind::kPost: return 2 * rows * hidden * (query + matrices * static_cast<double>(shape.ffn));
    case PartKind::kHead: return 2 * rows * hidden * static_cast<double>(shape.vocab);
    case PartKind::kEmbed:
    case PartKind::kNorm: return 0;
  }
  return 0;
}

std::int64_t parameter_count(const ModelShape& shape, PartKind part, Parameters which) {
  const bool all = which == Parameters::kAll;
  const bool biased = shape.mlp == MlpKind::kPlain;  // GPT has biases and two vectors per norm, Llama has neither
  const std::int64_t d = shape.hidden;
  const std::int64_t query = shape.heads * shape.head_dim;
  const std::int64_t key = shape.kv_heads * shape.head_dim;
  const std::int64_t norm = all ? (biased ? 2 * d : d) : 0;
  switch (part) {
    case PartKind::kEmbed: return shape.vocab * d + (biased ? shape.tokens * d : 0);
    case PartKind::kNorm: return norm;
    case PartKind::kQkv: return d * (query + 2 * key) + (all && biased ? query + 2 * key : 0);
    case PartKind::kAttn: return 0;
    case PartKind::kPost:
      return query * d + (biased ? 2 : 3) * d * shape.ffn + norm + (all && biased ? 2 * d + shape.ffn : 0);
    case PartKind::kHead: return shape.vocab * d + norm;
  }
  return 0;
}

std::int64_t stash_bytes(const ModelShape& shape, const Sharding& sharding, PartKind part) {
  const std::int64_t rows = shape.batch * shape.tokens / sharding.context;
  const std::int64_t t = sharding.tensor;
  const std::int64_t whole_cut = sharding.sequence == SequenceParallel::kOn ? t : 1;
  const std::int64_t element = shape.element_bytes;
  const std::int64_t whole = rows * shape.hidden / whole_cut;  // elements of a tensor that t alone does not cut
  const std::int64_t query = rows * shape.heads * shape.head_dim / t;
  const std::int64_t key = rows * shape.kv_heads * shape.head_dim / t;
  const std::int64_t mask = shape.dropout == Dropout::kOn ? whole : 0;
  if (sharding.stash == StashPolicy::kKeepInput && part != PartKind::kHead)
    return part == PartKind::kNorm ? element * whole : 0;
  switch (part) {
    case PartKind::kEmbed: return 0;
    case PartKind::kNorm:
    case PartKind::kQkv: return element * whole;
    case PartKind::kAttn: {
      std::int64_t core = rows * (shape.heads / std::min(t, shape.heads)) * kLogSumExpBytes;
      if (shape.attention == AttentionKernel::kUnfused) {
        const std::int64_t scores = rows * shape.tokens * shape.heads / t;
        core = shape.dropout == Dropout::kOn ? (2 * element + 1) * scores : element * scores;
        if (sharding.stash == StashPolicy::kSelective) core = 0;
      }
      return element * (query + 2 * key) + core;
    }
    case PartKind::kPost: {
      const std::int64_t inner = rows * shape.ffn / t;
      return element * query + 2 * mask + element * 2 * whole +
             element * (shape.mlp == MlpKind::kGated ? 3 : 2) * inner;
    }
    case PartKind::kHead: return element * 2 * whole + kLogitBytes * rows * shape.vocab / t;
  }
  return 0;
}

Result<> add_memory(const Layout& layout, const ModelShape& shape, const Sharding& sharding,
                    const MemoryOptions& options, CostModel& costs) {
  PLAIT_TRY_VOID(check_shape(shape));
  if (shape.layers != layout.num_layers)
    return make_error(ErrorCode::kInvalidArgument, "shape.layers", "the model has {} layers, the program {}",
                      shape.layers, layout.num_layers);
  if (sharding.tensor < 1 || sharding.context < 1 || sharding.data < 1 || options.optimizer_shards < 1 ||
      options.block.value() < 1)
    return make_error(ErrorCode::kInvalidArgument, "shape.sharding",
                      "tensor {}, context {}, data {}, optimizer shards {}, block {}; none may be below 1",
                      sharding.tensor, sharding.context, sharding.data, options.optimizer_shards,
                      options.block.value());
  const std::int64_t block = options.block.value();
  const auto rounded = [&](std::int64_t bytes) { return (bytes + block - 1) / block * block; };
  costs.block_bytes = options.block;
  costs.fixed_bytes = options.fixed;
  const std::int64_t cut = sharding.sequence == SequenceParallel::kOn ? sharding.tensor : 1;
  const std::int64_t edge =
      shape.element_bytes * shape.batch * shape.tokens * shape.hidden / sharding.context / cut / layout.num_slices;
  std::fill(costs.edge_bytes.begin(), costs.edge_bytes.end(), Bytes{edge});
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    std::int64_t parameters = 0;
    for (const int part : layout.groups[g].parts)
      parameters += parameter_count(shape, part_at(layout.num_layers, part).kind, options.parameters);
    parameters = (parameters + sharding.tensor - 1) / sharding.tensor;
    costs.groups[g].weight = Bytes{rounded(parameters * options.optimizer.weight)};
    costs.groups[g].gradient = Bytes{rounded(parameters * options.optimizer.gradient)};
    costs.groups[g].optimizer = Bytes{rounded(parameters * options.optimizer.state / options.optimizer_shards)};
  }
  for (std::size_t s = 0; s < layout.stages.size(); ++s) {
    const StageId stage{static_cast<std::int32_t>(s)};
    std::int64_t stash = 0;
    std::int64_t weight_stash = 0;
    for (int part = layout.stages[s].parts.begin; part < layout.stages[s].parts.end; ++part) {
      const PartKind kind = part_at(layout.num_layers, part).kind;
      stash += rounded(stash_bytes(shape, sharding, kind) / layout.num_slices);
      // From B to W live the inputs of the matrices and the gradients of their outputs; attention has none.
      if (kind != PartKind::kAttn) weight_stash += rounded(stash_bytes(shape, sharding, kind) / layout.num_slices);
    }
    const auto in = static_cast<std::int64_t>(layout.edges_into(stage).size()) * rounded(edge);
    const auto out = static_cast<std::int64_t>(layout.edges_out_of(stage).size()) * rounded(edge);
    for (int q = 0; q < layout.num_slices; ++q) {
      const SliceId slice{q};
      costs.stash_bytes[costs.cell(s, slice)] = Bytes{stash};
      costs.weight_stash_bytes[costs.cell(s, slice)] = Bytes{weight_stash};
      const auto set = [&](OpKind kind, std::int64_t alloc, std::int64_t freed) {
        OpCost& op = costs.op(kind, stage, slice);
        op.alloc = alloc;
        op.freed = freed;
      };
      set(OpKind::kForward, out + (layout.mode == Mode::kTrain ? stash : 0), in);
      set(OpKind::kBackwardInput, in + weight_stash, out + stash);
      set(OpKind::kBackwardWeight, 0, weight_stash);
      set(OpKind::kBackward, in, out + stash);
    }
  }
  return {};
}

MemoryOwners memory_owners(const Program& program, const CostModel& costs, RankId rank, int position) {
  const Layout& layout = program.layout;
  MemoryOwners owners{.fixed = costs.fixed_bytes.value()};
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    const auto& homes = layout.groups[g].homes;
    if (std::find(homes.begin(), homes.end(), rank) == homes.end()) continue;
    const auto shards = static_cast<std::int64_t>(layout.groups[g].residency == Residency::kSharded ? homes.size() : 1);
    owners.weights += costs.groups[g].weight.value() / shards;
    if (layout.mode == Mode::kForward) continue;
    owners.gradients += costs.groups[g].gradient.value() / shards;
    owners.optimizer += costs.groups[g].optimizer.value() / shards;
  }
  const std::int64_t block = costs.block_bytes.value();
  const auto buffer = [&](const Value& value) {
    return (value_bytes(costs, value).value() + block - 1) / block * block;
  };
  const Row& row = program.rows[rank.index()];
  for (int at = 0; at <= position && at < static_cast<int>(row.size()); ++at) {
    const Instr& instr = row[static_cast<std::size_t>(at)];
    if (const Op* op = std::get_if<Op>(&instr)) {
      const OpCost& cost = costs.op(op->kind, op->stage, op->slice);
      const std::int64_t stash = costs.stash_bytes[costs.cell(op->stage.index(), op->slice)].value();
      const std::int64_t weight_stash = costs.weight_stash_bytes[costs.cell(op->stage.index(), op->slice)].value();
      const bool last = at == position;  // what it frees is still there
      const bool trains = layout.mode == Mode::kTrain;
      std::int64_t stash_taken = 0, stash_freed = 0, weight_taken = 0, weight_freed = 0;
      if (op->kind == OpKind::kForward && trains) stash_taken = stash;
      if (op->kind == OpKind::kBackward || op->kind == OpKind::kBackwardInput) stash_freed = stash;
      if (op->kind == OpKind::kBackwardInput) weight_taken = weight_stash;
      if (op->kind == OpKind::kBackwardWeight) weight_freed = weight_stash;
      owners.stash += stash_taken - (last ? 0 : stash_freed);
      owners.weight_stash += weight_taken - (last ? 0 : weight_freed);
      owners.buffers += cost.alloc - stash_taken - weight_taken - (last ? 0 : cost.freed - stash_freed - weight_freed);
      if (last) owners.transient = cost.transient;
    } else if (const Recv* recv = std::get_if<Recv>(&instr)) {
      owners.buffers += buffer(recv->value);
    } else if (const WaitSend* wait = std::get_if<WaitSend>(&instr)) {
      owners.buffers -= buffer(wait->value);
    }
  }
  return owners;
}

}  // namespace plait
