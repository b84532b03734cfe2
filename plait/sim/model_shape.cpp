#include "plait/sim/model_shape.h"

#include "plait/sim/edge_bytes.h"

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
  const std::pair<const char*, std::int64_t> sizes[] = {{"layers", shape.layers},
                                                        {"hidden", shape.hidden},
                                                        {"heads", shape.heads},
                                                        {"kv_heads", shape.kv_heads},
                                                        {"head_dim", shape.head_dim},
                                                        {"ffn", shape.ffn},
                                                        {"vocab", shape.vocab},
                                                        {"tokens", shape.tokens},
                                                        {"batch", shape.batch},
                                                        {"element_bytes", shape.element_bytes},
                                                        {"positions", std::max<std::int64_t>(1, shape.positions)}};
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
  const bool qkv_biased = biased || shape.qkv_bias == QkvBias::kAlways;
  const std::int64_t d = shape.hidden;
  const std::int64_t query = shape.heads * shape.head_dim;
  const std::int64_t key = shape.kv_heads * shape.head_dim;
  const std::int64_t norm = all ? (biased ? 2 * d : d) : 0;
  switch (part) {
    case PartKind::kEmbed:
      return shape.vocab * d + (biased ? (shape.positions > 0 ? shape.positions : shape.tokens) * d : 0);
    case PartKind::kNorm: return norm;
    case PartKind::kQkv: return d * (query + 2 * key) + (all && qkv_biased ? query + 2 * key : 0);
    case PartKind::kAttn: return 0;
    case PartKind::kPost:
      return query * d + (biased ? 2 : 3) * d * shape.ffn + norm + (all && biased ? 2 * d + shape.ffn : 0);
    case PartKind::kHead: return (shape.tying == HeadTying::kTied ? 0 : shape.vocab * d) + norm;
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
    case PartKind::kHead: return element * 2 * whole + logit_bytes(shape, sharding);
  }
  return 0;
}

std::int64_t logit_bytes(const ModelShape& shape, const Sharding& sharding) {
  return kLogitBytes * (shape.batch * shape.tokens / sharding.context) * shape.vocab / sharding.tensor;
}

OptimizerBytes adam_bytes(std::int64_t element_bytes) {
  constexpr std::int64_t kMaster = 4;
  if (element_bytes < kMaster) return {.weight = element_bytes};
  return {.weight = element_bytes, .gradient = element_bytes, .state = 2 * element_bytes};
}

Result<> add_memory(const Layout& layout, const ModelShape& shape, const Sharding& sharding,
                    const MemoryOptions& options, CostModel& costs) {
  PLAIT_TRY_VOID(check_shape(shape));
  if (shape.layers != layout.num_layers)
    return make_error(ErrorCode::kInvalidArgument, "shape.layers", "the model has {} layers, the program {}",
                      shape.layers, layout.num_layers);
  if (layout.tying == HeadTying::kTied && shape.tying == HeadTying::kUntied)
    return make_error(ErrorCode::kInvalidArgument, "shape.tying", "the program ties the head, the model does not");
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
  for (std::size_t e = 0; e < layout.edges.size(); ++e) {
    const std::int64_t whole = edge_bytes(layout, shape, sharding, EdgeId{static_cast<std::int32_t>(e)});
    for (int q = 0; q < layout.num_slices; ++q)
      costs.edge_bytes[costs.cell(e, SliceId{q})] = Bytes{whole / layout.num_slices};
  }
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    std::int64_t parameters = 0;
    for (const int part : layout.groups[g].parts)
      parameters += parameter_count(shape, part_at(layout.num_layers, part).kind, options.parameters);
    parameters = (parameters + sharding.tensor - 1) / sharding.tensor;
    costs.groups[g].weight = Bytes{rounded(parameters * options.optimizer.weight)};
    costs.groups[g].gradient = Bytes{rounded(parameters * options.optimizer.gradient)};
    costs.groups[g].optimizer = Bytes{rounded(parameters * options.optimizer.state / options.optimizer_shards)};
    // Where weights are as wide as gradients they are the masters.
    const bool is_master = options.optimizer.weight >= options.optimizer.gradient;
    const std::int64_t changed = options.optimizer.state + (is_master ? options.optimizer.weight : 0);
    costs.groups[g].undo = Bytes{rounded(parameters * changed / options.optimizer_shards)};
  }
  for (std::size_t s = 0; s < layout.stages.size(); ++s) {
    const StageId stage{static_cast<std::int32_t>(s)};
    std::int64_t stash = 0;
    std::int64_t weight_stash = 0;
    std::int64_t attention = 0;
    std::int64_t logits = 0;
    for (int part = layout.stages[s].parts.begin; part < layout.stages[s].parts.end; ++part) {
      const PartKind kind = part_at(layout.num_layers, part).kind;
      const std::int64_t kept = rounded(stash_bytes(shape, sharding, kind) / layout.num_slices);
      stash += kept;
      // From B to W live the inputs of the matrices and the gradients of their outputs; attention has none.
      if (kind != PartKind::kAttn) weight_stash += kept;
      if (kind == PartKind::kAttn) attention += kept;
      if (kind == PartKind::kHead) logits += logit_bytes(shape, sharding) / layout.num_slices;
    }
    const auto sum = [&](const std::vector<EdgeId>& edges) {
      std::int64_t bytes = 0;
      for (const EdgeId edge : edges) bytes += rounded(costs.edge_bytes[costs.cell(edge.index(), SliceId{0})].value());
      return bytes;
    };
    const std::int64_t in = sum(layout.edges_into(stage));
    const std::int64_t out = sum(layout.edges_out_of(stage));
    // What F leaves; R makes the rest.
    std::int64_t kept = stash;
    if (layout.recompute != Recompute::kNone) kept = in;
    if (layout.recompute == Recompute::kNoAttention) kept += attention;
    kept = std::min(kept, stash);
    for (int q = 0; q < layout.num_slices; ++q) {
      const SliceId slice{q};
      costs.stash_bytes[costs.cell(s, slice)] = Bytes{kept};
      costs.remade_bytes[costs.cell(s, slice)] = Bytes{stash - kept};
      costs.logit_bytes[costs.cell(s, slice)] = Bytes{logits};
      costs.weight_stash_bytes[costs.cell(s, slice)] = Bytes{weight_stash};
      const auto set = [&](OpKind kind, std::int64_t alloc, std::int64_t freed) {
        OpCost& op = costs.op(kind, stage, slice);
        op.alloc = alloc;
        op.freed = freed;
      };
      set(OpKind::kForward, out + (layout.mode == Mode::kTrain ? kept : 0), in);
      set(OpKind::kRecompute, stash - kept, 0);
      set(OpKind::kBackwardInput, in + weight_stash, out + stash);
      set(OpKind::kBackwardWeight, 0, weight_stash);
      set(OpKind::kBackward, in, out + stash);
    }
  }
  return {};
}

MemoryOwners memory_owners(const Program& program, const CostModel& costs, RankId rank, int position) {
  if (!costs.known_memory.empty() && position >= 0)
    return costs.known_memory[rank.index()].during[static_cast<std::size_t>(position)];
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
  const bool handed_over = costs.messages == MessageBytes::kInFlight;
  std::vector<Value> arriving;  // handed over, charged to their readers
  const auto take_over = [&](const std::vector<EdgeId>& edges, ValueKind kind, const Op& op) {
    std::erase_if(arriving, [&](const Value& value) {
      const bool read = value.kind() == kind && value.microbatch() == op.microbatch && value.slice() == op.slice &&
                        std::find(edges.begin(), edges.end(), value.edge()) != edges.end();
      if (read) owners.buffers += buffer(value);
      return read;
    });
  };
  std::int64_t undo = 0;  // of steps that are not validated yet
  const Row& row = program.rows[rank.index()];
  for (int at = 0; at <= position && at < static_cast<int>(row.size()); ++at) {
    const Instr& instr = row[static_cast<std::size_t>(at)];
    if (const Op* op = std::get_if<Op>(&instr)) {
      const OpCost& cost = costs.op(op->kind, op->stage, op->slice);
      if (op->kind == OpKind::kForward) take_over(layout.edges_into(op->stage), ValueKind::kActivation, *op);
      if (op->kind == OpKind::kBackward || op->kind == OpKind::kBackwardInput)
        take_over(layout.edges_out_of(op->stage), ValueKind::kGradient, *op);
      const std::size_t cell = costs.cell(op->stage.index(), op->slice);
      const std::int64_t kept = costs.stash_bytes[cell].value();
      const std::int64_t remade = costs.remade_bytes[cell].value();
      const std::int64_t weight_stash = costs.weight_stash_bytes[cell].value();
      const std::int64_t logits = costs.logit_bytes[cell].value();
      const bool last = at == position;  // what it frees is still there
      const bool trains = layout.mode == Mode::kTrain;
      const bool ends_stash = op->kind == OpKind::kBackward || op->kind == OpKind::kBackwardInput;
      const bool makes_logits = op->kind == (remade > 0 ? OpKind::kRecompute : OpKind::kForward);
      std::int64_t taken = 0, freed = 0, weight_taken = 0, weight_freed = 0;
      if (op->kind == OpKind::kForward && trains) taken = kept;
      if (op->kind == OpKind::kRecompute) taken = remade;
      if (ends_stash) freed = kept + remade;
      if (op->kind == OpKind::kBackwardInput) weight_taken = weight_stash;
      if (op->kind == OpKind::kBackwardWeight) weight_freed = weight_stash;
      const std::int64_t logits_taken = makes_logits && trains ? logits : 0;
      const std::int64_t logits_freed = ends_stash ? logits : 0;
      owners.logits += logits_taken - (last ? 0 : logits_freed);
      owners.stash += taken - logits_taken - (last ? 0 : freed - logits_freed);
      owners.weight_stash += weight_taken - (last ? 0 : weight_freed);
      owners.buffers += cost.alloc - taken - weight_taken - (last ? 0 : cost.freed - freed - weight_freed);
      if (last) owners.transient = cost.transient;
    } else if (const Recv* recv = std::get_if<Recv>(&instr)) {
      if (handed_over) {
        arriving.push_back(recv->value);
      } else {
        owners.buffers += buffer(recv->value);
      }
    } else if (const Step* step = std::get_if<Step>(&instr)) {
      const ParamGroup& group = layout.groups[step->group.index()];
      const auto shards = static_cast<std::int64_t>(group.residency == Residency::kSharded ? group.homes.size() : 1);
      const bool on_trial = std::any_of(row.begin() + at, row.end(),
                                        [](const Instr& later) { return std::holds_alternative<Validate>(later); });
      if (on_trial) undo += (costs.groups[step->group.index()].undo.value() + shards - 1) / shards;
    } else if (std::holds_alternative<Validate>(instr)) {
      undo = 0;
    } else if (const WaitSend* wait = std::get_if<WaitSend>(&instr)) {
      if (!handed_over) owners.buffers -= buffer(wait->value);
    } else if (const Send* send = std::get_if<Send>(&instr)) {
      if (handed_over) owners.buffers -= buffer(send->value);
    }
  }
  owners.optimizer += undo;
  return owners;
}

}  // namespace plait
