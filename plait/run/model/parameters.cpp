#include "plait/run/model/parameters.h"

#include "plait/base/check.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <span>
#include <utility>

namespace plait {
namespace {

using Shape = std::vector<std::int64_t>;

/// Tensors that share an allocation: the rows of one GEMM's weight, or a single tensor.
using TensorGroup = std::vector<ParameterSpec>;

/// Collects the tensor groups of one part after the other.
class GroupList {
 public:
  void begin_part(int part) { part_ = part; }
  void add(const std::string& name, Shape shape) {
    groups_.push_back({ParameterSpec{.name = name, .shape = std::move(shape), .part = part_}});
  }
  void add_fused(std::initializer_list<std::pair<std::string, Shape>> members) {
    TensorGroup group;
    for (const auto& [name, shape] : members) group.push_back({.name = name, .shape = shape, .part = part_});
    groups_.push_back(std::move(group));
  }
  std::vector<TensorGroup> take() && { return std::move(groups_); }

 private:
  int part_ = 0;
  std::vector<TensorGroup> groups_;
};

/// D = hidden_size, N = num_heads, G = num_kv_heads, H = head_dim, F = ffn_size, V = vocab_size.
std::vector<TensorGroup> llama_groups(const ModelConfig& c) {
  const std::int64_t d = c.hidden_size;
  const std::int64_t q = c.num_heads * c.head_dim;
  const std::int64_t kv = c.num_kv_heads * c.head_dim;
  GroupList list;
  int part = 0;
  list.begin_part(part++);
  list.add("model.embed_tokens.weight", {c.vocab_size, d});
  for (int layer = 0; layer < c.num_layers; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    list.begin_part(part++);
    list.add(at + "input_layernorm.weight", {d});
    list.begin_part(part++);
    list.add_fused({{at + "self_attn.q_proj.weight", {q, d}},
                    {at + "self_attn.k_proj.weight", {kv, d}},
                    {at + "self_attn.v_proj.weight", {kv, d}}});
    if (c.attention_bias)
      list.add_fused({{at + "self_attn.q_proj.bias", {q}},
                      {at + "self_attn.k_proj.bias", {kv}},
                      {at + "self_attn.v_proj.bias", {kv}}});
    part++;  // attn owns no weights
    list.begin_part(part++);
    list.add(at + "self_attn.o_proj.weight", {d, q});
    list.add(at + "post_attention_layernorm.weight", {d});
    list.add_fused({{at + "mlp.gate_proj.weight", {c.ffn_size, d}}, {at + "mlp.up_proj.weight", {c.ffn_size, d}}});
    list.add(at + "mlp.down_proj.weight", {d, c.ffn_size});
  }
  list.begin_part(part);
  list.add("model.norm.weight", {d});
  if (!c.tied_head) list.add("lm_head.weight", {c.vocab_size, d});
  return std::move(list).take();
}

/// Conv1D weights are [in, out].
std::vector<TensorGroup> gpt2_groups(const ModelConfig& c) {
  const std::int64_t d = c.hidden_size;
  GroupList list;
  int part = 0;
  list.begin_part(part++);
  list.add("transformer.wte.weight", {c.vocab_size, d});
  list.add("transformer.wpe.weight", {c.max_positions, d});
  for (int layer = 0; layer < c.num_layers; ++layer) {
    const std::string at = "transformer.h." + std::to_string(layer) + ".";
    list.begin_part(part++);
    list.add(at + "ln_1.weight", {d});
    list.add(at + "ln_1.bias", {d});
    list.begin_part(part++);
    list.add(at + "attn.c_attn.weight", {d, 3 * d});
    list.add(at + "attn.c_attn.bias", {3 * d});
    part++;  // attn owns no weights
    list.begin_part(part++);
    list.add(at + "attn.c_proj.weight", {d, d});
    list.add(at + "attn.c_proj.bias", {d});
    list.add(at + "ln_2.weight", {d});
    list.add(at + "ln_2.bias", {d});
    list.add(at + "mlp.c_fc.weight", {d, c.ffn_size});
    list.add(at + "mlp.c_fc.bias", {c.ffn_size});
    list.add(at + "mlp.c_proj.weight", {c.ffn_size, d});
    list.add(at + "mlp.c_proj.bias", {d});
  }
  list.begin_part(part);
  list.add("transformer.ln_f.weight", {d});
  list.add("transformer.ln_f.bias", {d});
  if (!c.tied_head) list.add("lm_head.weight", {c.vocab_size, d});
  return std::move(list).take();
}

std::vector<TensorGroup> tensor_groups(const ModelConfig& config) {
  return config.family == ModelFamily::kGpt2 ? gpt2_groups(config) : llama_groups(config);
}

/// Shape of the allocation of a group: the rows of its members behind each other.
Shape storage_shape(const TensorGroup& group) {
  Shape shape = group.front().shape;
  for (std::size_t i = 1; i < group.size(); ++i) shape[0] += group[i].shape[0];
  return shape;
}

/// A tensor's rows of a whole storage, or a segment of it on its own.
Parameter make_parameter(const ParameterSpec& spec, const ParameterStorage& storage, std::int64_t first_row,
                         const at::TensorOptions& master) {
  Parameter parameter{.name = spec.name, .master = {}, .compute = {}, .grads = {}, .shape = spec.shape};
  if (storage.share.is_whole()) {
    const auto rows = [&](const at::Tensor& whole) { return whole.narrow(0, first_row, spec.shape[0]); };
    parameter.master = rows(storage.master);
    parameter.compute = storage.compute.is_same(storage.master) ? parameter.master : rows(storage.compute);
    for (const at::Tensor& grad : storage.grads) parameter.grads.push_back(rows(grad));
    return parameter;
  }
  std::int64_t size = 1;
  for (const std::int64_t extent : spec.shape) size *= extent;
  parameter.begin = storage.share.index * size / storage.share.count;
  const std::int64_t end = (storage.share.index + 1) * size / storage.share.count;
  parameter.master = at::zeros({end - parameter.begin}, master);
  parameter.grads.push_back(at::zeros({end - parameter.begin}, master));
  return parameter;
}

}  // namespace

at::ScalarType scalar_type(ComputeType type) {
  switch (type) {
    case ComputeType::kFloat32: return at::kFloat;
    case ComputeType::kBFloat16: return at::kBFloat16;
    case ComputeType::kFloat64: return at::kDouble;
  }
  PLAIT_CHECK(false, "compute type {}", static_cast<int>(type));
}

at::ScalarType master_type(ComputeType type) {
  return type == ComputeType::kFloat64 ? at::kDouble : at::kFloat;
}

std::string token_table_name(const ModelConfig& config) {
  return config.family == ModelFamily::kGpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight";
}

std::vector<ParameterSpec> parameter_specs(const ModelConfig& config) {
  std::vector<ParameterSpec> specs;
  for (TensorGroup& group : tensor_groups(config))
    for (ParameterSpec& spec : group) specs.push_back(std::move(spec));
  return specs;
}

ParameterSet ParameterSet::create(const ModelConfig& config, const std::vector<int>& parts, ComputeType type,
                                  at::Device device) {
  const auto holds = [&](int part) { return std::find(parts.begin(), parts.end(), part) != parts.end(); };
  const int head = num_parts(config.num_layers) - 1;
  const std::string token_table = token_table_name(config);
  const auto holding_of = [&](const ParameterSpec& first) -> std::optional<Holding> {
    const bool used_by_head = config.tied_head && holds(head) && first.name == token_table;
    const int num_uses = (holds(first.part) ? 1 : 0) + (used_by_head ? 1 : 0);
    if (num_uses == 0) return std::nullopt;
    return Holding{.share = {}, .num_uses = num_uses};
  };
  return create(config, type, holding_of, device);
}

ParameterSet ParameterSet::create(const ModelConfig& config, ComputeType type, const HoldingOf& holding_of,
                                  at::Device device) {
  ParameterSet set;
  set.config_ = config;
  set.type_ = type;
  set.device_ = device;
  const at::TensorOptions master = at::TensorOptions().dtype(master_type(type)).device(device);
  for (const TensorGroup& group : tensor_groups(config)) {
    const std::optional<Holding> holding = holding_of(group.front());
    if (!holding) continue;
    const auto num_uses = static_cast<std::size_t>(std::max(1, holding->num_uses));
    ParameterStorage storage{.master = {},
                             .compute = {},
                             .grads = std::vector<at::Tensor>(num_uses),
                             .share = holding->share,
                             .shape = storage_shape(group),
                             .members = {}};
    if (storage.share.is_whole()) {
      storage.master = at::zeros(storage.shape, master);
      storage.compute = master_type(type) == scalar_type(type)
                            ? storage.master
                            : at::zeros(storage.shape, master.dtype(scalar_type(type)));
      for (at::Tensor& grad : storage.grads) grad = at::zeros(storage.shape, master);
    }
    std::int64_t row = 0;
    for (const ParameterSpec& spec : group) {
      storage.members.push_back({.name = spec.name, .first_row = row, .num_rows = spec.shape[0]});
      if (!storage.share.is_nothing()) set.by_name_.emplace(spec.name, make_parameter(spec, storage, row, master));
      row += spec.shape[0];
    }
    set.storages_.emplace(group.front().name, std::move(storage));
  }
  return set;
}

ParameterStorage& ParameterSet::storage(const std::string& first_name) {
  ParameterStorage* found = find_storage(first_name);
  PLAIT_CHECK(found != nullptr, "{} is not among the parameters of this rank", first_name);
  return *found;
}

ParameterStorage* ParameterSet::find_storage(const std::string& first_name) {
  const auto found = storages_.find(first_name);
  return found == storages_.end() ? nullptr : &found->second;
}

void ParameterSet::refresh_compute() {
  for (auto& [name, storage] : storages_)
    if (storage.share.is_whole() && !storage.compute.is_same(storage.master)) storage.compute.copy_(storage.master);
}

void ParameterStorage::empty_grad(std::size_t use) {
  if (is_of_products && use + 1 == grads.size())
    is_blank = true;
  else
    grads[use].zero_();
}

void ParameterStorage::fold_grads() {
  if (grads.size() == 1) {
    if (std::exchange(is_blank, false)) grads.front().zero_();
    return;
  }
  for (std::size_t use = 1; use < grads.size(); ++use) {
    const bool is_empty = !grads[use].defined() || (is_blank && use + 1 == grads.size());
    if (is_empty) continue;
    grads.front().add_(grads[use]);
    empty_grad(use);
  }
}

void ParameterSet::empty_grads() {
  for (auto& [name, storage] : storages_)
    if (storage.share.is_whole())
      for (std::size_t use = 0; use < storage.grads.size(); ++use) storage.empty_grad(use);
  for (auto& [name, parameter] : by_name_)
    if (!parameter.compute.defined()) parameter.grads.front().zero_();
}

}  // namespace plait
