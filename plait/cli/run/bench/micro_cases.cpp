#include "plait/cli/run/bench/micro.h"
#include "plait/run/data/random.h"
#include "plait/run/engine/engine.h"
#include "plait/run/engine/optimizer.h"
#include "plait/run/model/kernels/activation.h"
#include "plait/run/model/kernels/attention.h"
#include "plait/run/model/kernels/cross_entropy.h"
#include "plait/run/model/kernels/embedding.h"
#include "plait/run/model/kernels/gemm.h"
#include "plait/run/model/kernels/norm.h"
#include "plait/run/model/kernels/reference.h"
#include "plait/run/model/kernels/rotary.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <memory>
#include <tuple>
#include <utility>

namespace plait::bench {
namespace {

using kernels::WeightLayout;
using Tensors = std::vector<at::Tensor>;

constexpr double kEps = 1e-5;

/// Uniform in [-1, 1), the same every time.
at::Tensor random(at::IntArrayRef sizes, at::ScalarType type, std::uint64_t key) {
  const at::Tensor values = at::empty(sizes, at::TensorOptions().dtype(at::kFloat));
  auto* data = values.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < values.numel(); ++i)
    data[i] = static_cast<float>(2 * uniform_at(key, static_cast<std::uint64_t>(i)) - 1);
  return values.to(type);
}

at::Tensor random_ids(at::IntArrayRef sizes, std::int64_t count, std::uint64_t key) {
  at::Tensor ids = at::empty(sizes, at::TensorOptions().dtype(at::kLong));
  auto* data = ids.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < ids.numel(); ++i)
    data[i] =
        static_cast<std::int64_t>(random_bits(key, static_cast<std::uint64_t>(i)) % static_cast<std::uint64_t>(count));
  return ids;
}

/// Operands by key, made when they are first asked for and shared by the cases of one kernel.
template <class T>
std::function<T&()> once(std::function<T()> make) {
  auto value = std::make_shared<std::optional<T>>();
  return [value, make = std::move(make)]() -> T& {
    if (!*value) *value = make();
    return **value;
  };
}

/// Adds cases for one shape of model.
class Cases {
 public:
  explicit Cases(const MicroShape& shape)
      : model_(shape.model),
        type_(scalar_type(shape.type)),
        compute_(shape.type),
        wide_(master_type(shape.type)),
        batch_(shape.microbatch_size),
        tokens_(shape.tokens),
        rows_(shape.microbatch_size * shape.tokens),
        size_(static_cast<double>(c10::elementSize(type_))),
        wide_size_(static_cast<double>(c10::elementSize(wide_))) {}

  std::vector<MicroCase> all() && {
    add_norms();
    add_rotary();
    add_activations();
    add_embedding();
    add_cross_entropy();
    add_attention();
    for (const auto& [name, inputs, outputs] : products()) add_linear(name, inputs, outputs);
    add_optimizer();
    return std::move(cases_);
  }

 private:
  struct Product {
    const char* name;
    std::int64_t inputs;
    std::int64_t outputs;
  };
  [[nodiscard]] std::vector<Product> products() const {
    const std::int64_t heads = model_.num_heads * model_.head_dim;
    const std::int64_t keys = model_.num_kv_heads * model_.head_dim;
    const bool gated = model_.family != ModelFamily::kGpt2;
    return {{"qkv", model_.hidden_size, heads + 2 * keys},
            {"o", heads, model_.hidden_size},
            {gated ? "gate_up" : "up", model_.hidden_size, (gated ? 2 : 1) * model_.ffn_size},
            {"down", model_.ffn_size, model_.hidden_size},
            {"head", model_.hidden_size, model_.vocab_size}};
  }

  void add(std::string kernel, std::string shape, double bytes, double flops, MicroSide ours,
           std::optional<MicroSide> aten) {
    cases_.push_back({.kernel = std::move(kernel),
                      .shape = std::move(shape),
                      .bytes = bytes,
                      .flops = flops,
                      .ours = std::move(ours),
                      .aten = std::move(aten)});
  }

  void add_norms();
  void add_rms_norm(const std::string& shape, double elements);
  void add_layer_norm(const std::string& shape, double elements);
  void add_rotary();
  void add_activations();
  void add_embedding();
  void add_cross_entropy();
  void add_attention();
  void add_linear(const std::string& name, std::int64_t inputs, std::int64_t outputs);
  void add_optimizer();

  ModelConfig model_;
  at::ScalarType type_;
  ComputeType compute_;
  at::ScalarType wide_;
  std::int64_t batch_;
  std::int64_t tokens_;
  std::int64_t rows_;
  double size_;       ///< bytes of an element
  double wide_size_;  ///< of a statistic, a master, a gradient
  std::vector<MicroCase> cases_;
};

struct NormOperands {
  at::Tensor x, dy, residual, weight, bias;
  at::Tensor mean, rstd;
  at::Tensor grad, bias_grad, other_grad, other_bias_grad;
};

void Cases::add_norms() {
  const std::string shape = fmt::format("[{}, {}]", rows_, model_.hidden_size);
  const auto elements = static_cast<double>(rows_ * model_.hidden_size);
  add_rms_norm(shape, elements);
  add_layer_norm(shape, elements);
}

std::function<NormOperands&()> norm_operands(std::int64_t rows, std::int64_t width, at::ScalarType type,
                                             at::ScalarType wide) {
  return once<NormOperands>([=] {
    NormOperands o{.x = random({rows, width}, type, 1),
                   .dy = random({rows, width}, type, 2),
                   .residual = random({rows, width}, type, 3),
                   .weight = random({width}, type, 4),
                   .bias = random({width}, type, 5)};
    const auto stats = kernels::layer_norm(o.x, o.weight, o.bias, kEps);
    o.mean = stats.mean;
    o.rstd = stats.rstd;
    for (at::Tensor* grad : {&o.grad, &o.bias_grad, &o.other_grad, &o.other_bias_grad})
      *grad = at::zeros({width}, at::TensorOptions().dtype(wide));
    return o;
  });
}

void Cases::add_rms_norm(const std::string& shape, double elements) {
  namespace ref = kernels::reference;
  const auto o = norm_operands(rows_, model_.hidden_size, type_, wide_);
  const double pass = elements * size_;
  add("rms_norm", shape, 2 * pass, 0, {[o] {
        auto r = kernels::rms_norm(o().x, o().weight, kEps);
        return Tensors{r.y, r.rstd};
      }},
      MicroSide{[o] {
        auto r = ref::rms_norm(o().x, o().weight, kEps);
        return Tensors{r.y, r.rstd};
      }});
  add("rms_norm_apply", shape, 2 * pass, 0,
      {[o] { return Tensors{kernels::rms_norm_apply(o().x, o().rstd, o().weight)}; }},
      MicroSide{[o] { return Tensors{ref::rms_norm_apply(o().x, o().rstd, o().weight)}; }});
  add("rms_norm_input_grad", shape, 4 * pass, 0,
      {[o] { return Tensors{kernels::rms_norm_input_grad(o().dy, o().x, o().rstd, o().weight, o().residual)}; }},
      MicroSide{[o] { return Tensors{ref::rms_norm_input_grad(o().dy, o().x, o().rstd, o().weight, o().residual)}; }});
  add("rms_norm_weight_grad", shape, 2 * pass, 0, {[o] {
        kernels::rms_norm_weight_grad(o().grad, o().dy, o().x, o().rstd);
        return Tensors{o().grad};
      }},
      MicroSide{[o] {
        ref::rms_norm_weight_grad(o().other_grad, o().dy, o().x, o().rstd);
        return Tensors{o().other_grad};
      }});
}

void Cases::add_layer_norm(const std::string& shape, double elements) {
  namespace ref = kernels::reference;
  const auto o = norm_operands(rows_, model_.hidden_size, type_, wide_);
  const double pass = elements * size_;
  add("layer_norm", shape, 2 * pass, 0, {[o] {
        auto r = kernels::layer_norm(o().x, o().weight, o().bias, kEps);
        return Tensors{r.y, r.mean, r.rstd};
      }},
      MicroSide{[o] {
        auto r = ref::layer_norm(o().x, o().weight, o().bias, kEps);
        return Tensors{r.y, r.mean, r.rstd};
      }});
  add("layer_norm_apply", shape, 2 * pass, 0,
      {[o] { return Tensors{kernels::layer_norm_apply(o().x, o().mean, o().rstd, o().weight, o().bias)}; }},
      MicroSide{[o] { return Tensors{ref::layer_norm_apply(o().x, o().mean, o().rstd, o().weight, o().bias)}; }});
  add("layer_norm_input_grad", shape, 4 * pass, 0, {[o] {
        return Tensors{kernels::layer_norm_input_grad(o().dy, o().x, o().mean, o().rstd, o().weight, o().residual)};
      }},
      MicroSide{[o] {
        return Tensors{ref::layer_norm_input_grad(o().dy, o().x, o().mean, o().rstd, o().weight, o().residual)};
      }});
  add("layer_norm_weight_grad", shape, 2 * pass, 0, {[o] {
        kernels::layer_norm_weight_grad(o().grad, o().bias_grad, o().dy, o().x, o().mean, o().rstd);
        return Tensors{o().grad, o().bias_grad};
      }},
      MicroSide{[o] {
        ref::layer_norm_weight_grad(o().other_grad, o().other_bias_grad, o().dy, o().x, o().mean, o().rstd);
        return Tensors{o().other_grad, o().other_bias_grad};
      }});
}

void Cases::add_rotary() {
  struct Operands {
    at::Tensor heads, out, other_out;
    kernels::RotaryTable::Rows rows;
  };
  if (model_.head_dim % 2 != 0) return;
  const std::int64_t heads = model_.num_heads + model_.num_kv_heads;
  const auto o = once<Operands>([=, model = model_, type = type_, wide = wide_, batch = batch_, tokens = tokens_] {
    Operands made{.heads = random({batch, tokens, heads, model.head_dim}, type, 1)};
    made.out = at::empty_like(made.heads);
    made.other_out = at::empty_like(made.heads);
    made.rows = kernels::RotaryTable(model, wide).rows(0, tokens);
    return made;
  });
  const std::string shape = fmt::format("[{}, {}, {}, {}]", batch_, tokens_, heads, model_.head_dim);
  const double bytes = 2 * static_cast<double>(rows_ * heads * model_.head_dim) * size_;
  add("rotate", shape, bytes, 0, {[o] {
        kernels::rotate(o().out, o().heads, o().rows);
        return Tensors{o().out};
      }},
      MicroSide{[o] {
        kernels::reference::rotate(o().other_out, o().heads, o().rows, 1.0);
        return Tensors{o().other_out};
      }});
  add("rotate_back", shape, bytes, 0, {[o] {
        kernels::rotate_back(o().out, o().heads, o().rows);
        return Tensors{o().out};
      }},
      MicroSide{[o] {
        kernels::reference::rotate(o().other_out, o().heads, o().rows, -1.0);
        return Tensors{o().other_out};
      }});
}

void Cases::add_activations() {
  struct Operands {
    at::Tensor gate_up, up, dy;                    // as they are given
    at::Tensor spent_gate_up, spent_up, spent_dy;  // copies that a run consumes
  };
  const auto o = once<Operands>([rows = rows_, ffn = model_.ffn_size, type = type_] {
    Operands made{.gate_up = random({rows, 2 * ffn}, type, 1),
                  .up = random({rows, ffn}, type, 2),
                  .dy = random({rows, ffn}, type, 3)};
    made.spent_gate_up = at::empty_like(made.gate_up);
    made.spent_up = at::empty_like(made.up);
    made.spent_dy = at::empty_like(made.dy);
    return made;
  });
  const auto pass = static_cast<double>(rows_ * model_.ffn_size) * size_;
  const std::string gated = fmt::format("[{}, 2 x {}]", rows_, model_.ffn_size);
  const std::string plain = fmt::format("[{}, {}]", rows_, model_.ffn_size);
  add("swiglu", gated, 3 * pass, 0, {[o] { return Tensors{kernels::swiglu(o().gate_up)}; }},
      MicroSide{[o] { return Tensors{kernels::reference::swiglu(o().gate_up)}; }});
  const auto refill = [o] {
    o().spent_gate_up.copy_(o().gate_up);
    o().spent_dy.copy_(o().dy);
  };
  add("swiglu_grad", gated, 6 * pass, 0,
      {[o] {
         auto r = kernels::swiglu_grad(o().spent_dy, o().spent_gate_up);
         return Tensors{r.input_grad, r.output};
       },
       refill},
      MicroSide{[o] {
                  auto r = kernels::reference::swiglu_grad(o().spent_dy, o().spent_gate_up);
                  return Tensors{r.input_grad, r.output};
                },
                refill});
  add("gelu_tanh", plain, 2 * pass, 0, {[o] { return Tensors{kernels::gelu_tanh(o().up)}; }},
      MicroSide{[o] { return Tensors{kernels::reference::gelu_tanh(o().up)}; }});
  const auto refill_plain = [o] {
    o().spent_up.copy_(o().up);
    o().spent_dy.copy_(o().dy);
  };
  add("gelu_tanh_grad", plain, 4 * pass, 0,
      {[o] {
         auto r = kernels::gelu_tanh_grad(o().spent_dy, o().spent_up);
         return Tensors{r.input_grad, r.output};
       },
       refill_plain},
      MicroSide{[o] {
                  auto r = kernels::reference::gelu_tanh_grad(o().spent_dy, o().spent_up);
                  return Tensors{r.input_grad, r.output};
                },
                refill_plain});
}

void Cases::add_embedding() {
  struct Operands {
    at::Tensor table, ids, dx, grad, other_grad, positions, other_positions;
  };
  const auto o = once<Operands>([batch = batch_, tokens = tokens_, width = model_.hidden_size,
                                 vocab = model_.vocab_size, type = type_, wide = wide_] {
    const at::TensorOptions options = at::TensorOptions().dtype(wide);
    return Operands{.table = random({vocab, width}, type, 1),
                    .ids = random_ids({batch, tokens}, vocab, 2),
                    .dx = random({batch, tokens, width}, type, 3),
                    .grad = at::zeros({vocab, width}, options),
                    .other_grad = at::zeros({vocab, width}, options),
                    .positions = at::zeros({tokens, width}, options),
                    .other_positions = at::zeros({tokens, width}, options)};
  });
  const auto elements = static_cast<double>(rows_ * model_.hidden_size);
  const std::string shape = fmt::format("[{}, {}, {}]", batch_, tokens_, model_.hidden_size);
  add("gather_rows", shape, 2 * elements * size_, 0,
      {[o] { return Tensors{kernels::gather_rows(o().table, o().ids)}; }},
      MicroSide{[o] { return Tensors{at::embedding(o().table, o().ids)}; }});
  add("accumulate_rows", shape, elements * (size_ + 2 * wide_size_), 0, {[o] {
        kernels::accumulate_rows(o().grad, o().ids, o().dx);
        return Tensors{o().grad};
      }},
      MicroSide{[o] {
        kernels::reference::accumulate_rows(o().other_grad, o().ids, o().dx);
        return Tensors{o().other_grad};
      }});
  const auto positions = static_cast<double>(tokens_ * model_.hidden_size);
  add("accumulate_batch_sum", shape, elements * size_ + 2 * positions * wide_size_, 0, {[o] {
        kernels::accumulate_batch_sum(o().positions, o().dx);
        return Tensors{o().positions};
      }},
      MicroSide{[o] {
        o().other_positions.add_(at::sum(o().dx, {0}, /*keepdim=*/false, o().other_positions.scalar_type()));
        return Tensors{o().other_positions};
      }});
}

void Cases::add_cross_entropy() {
  struct Operands {
    at::Tensor logits, targets, lse, spent;
  };
  // As many rows as a step makes logits of at once: 8 MiB in fp32, at least 256.
  const std::int64_t rows = std::min(rows_, std::max<std::int64_t>((std::int64_t{1} << 21) / model_.vocab_size, 256));
  const auto o = once<Operands>([rows, vocab = model_.vocab_size, type = type_] {
    Operands made{.logits = random({rows, vocab}, type, 1), .targets = random_ids({rows}, vocab, 2)};
    made.lse = kernels::reference::cross_entropy(made.logits, made.targets).lse;
    made.spent = at::empty_like(made.logits);
    return made;
  });
  const auto pass = static_cast<double>(rows * model_.vocab_size) * size_;
  const std::string shape = fmt::format("[{}, {}]", rows, model_.vocab_size);
  add("cross_entropy", shape, pass, 0, {[o] {
        auto r = kernels::cross_entropy(o().logits, o().targets);
        return Tensors{r.loss, r.lse};
      }},
      MicroSide{[o] {
        auto r = kernels::reference::cross_entropy(o().logits, o().targets);
        return Tensors{r.loss, r.lse};
      }});
  const auto refill = [o] { o().spent.copy_(o().logits); };
  add("cross_entropy_grad", shape, 2 * pass, 0,
      {[o] { return Tensors{kernels::cross_entropy_grad(o().spent, o().lse, o().targets, 0.25)}; }, refill},
      MicroSide{[o] { return Tensors{kernels::reference::cross_entropy_grad(o().spent, o().lse, o().targets, 0.25)}; },
                refill});
}

void Cases::add_attention() {
  struct Operands {
    at::Tensor q, k, v, dout;
    kernels::AttentionResult result;
  };
  // Heads inside the rows, as the QKV product writes them.
  const auto o = once<Operands>([model = model_, batch = batch_, tokens = tokens_, type = type_] {
    const std::int64_t all = model.num_heads + 2 * model.num_kv_heads;
    const at::Tensor qkv = random({batch, tokens, all, model.head_dim}, type, 1).transpose(1, 2);
    Operands made{.q = qkv.narrow(1, 0, model.num_heads),
                  .k = qkv.narrow(1, model.num_heads, model.num_kv_heads),
                  .v = qkv.narrow(1, model.num_heads + model.num_kv_heads, model.num_kv_heads),
                  .dout = random({batch, tokens, model.num_heads, model.head_dim}, type, 2).transpose(1, 2)};
    made.result = kernels::attention(made.q, made.k, made.v, kernels::Mask::kCausal);
    return made;
  });
  const auto rows = static_cast<double>(rows_ * model_.head_dim) * size_;
  const auto queries = static_cast<double>(model_.num_heads);
  const auto keys = static_cast<double>(model_.num_kv_heads);
  const double pairs = static_cast<double>(batch_) * static_cast<double>(tokens_ * (tokens_ + 1)) / 2;
  const double product = 2 * pairs * queries * static_cast<double>(model_.head_dim);
  const std::string shape = fmt::format("[{}, {}/{}, {}, {}] causal", batch_, model_.num_heads, model_.num_kv_heads,
                                        tokens_, model_.head_dim);
  const bool has_aten = model_.num_heads == model_.num_kv_heads;  // it knows no shared heads
  const auto flash = [o] {
    return at::_scaled_dot_product_flash_attention_for_cpu(o().q, o().k, o().v, 0.0, /*is_causal=*/true);
  };
  std::optional<MicroSide> forward;
  std::optional<MicroSide> backward;
  if (has_aten) {
    forward = MicroSide{[flash] {
      const auto [out, lse] = flash();
      return Tensors{out, lse};
    }};
    const auto kept = once<std::tuple<at::Tensor, at::Tensor>>(flash);
    backward = MicroSide{[o, kept] {
      const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          o().dout, o().q, o().k, o().v, std::get<0>(kept()), std::get<1>(kept()), 0.0, /*is_causal=*/true);
      return Tensors{dq, dk, dv};
    }};
  }
  add("attention", shape, rows * (2 * queries + 2 * keys), 2 * product, {[o] {
        auto r = kernels::attention(o().q, o().k, o().v, kernels::Mask::kCausal);
        return Tensors{r.out, r.lse};
      }},
      std::move(forward));
  add("attention_grad", shape, rows * (4 * queries + 4 * keys), 5 * product, {[o] {
        auto r = kernels::attention_grad(o().dout, o().q, o().k, o().v, o().result.out, o().result.lse,
                                         kernels::Mask::kCausal);
        return Tensors{r.q, r.k, r.v};
      }},
      std::move(backward));
}

void Cases::add_linear(const std::string& name, std::int64_t inputs, std::int64_t outputs) {
  struct Operands {
    at::Tensor x, dy, weight, residual, grad, other_grad;
  };
  constexpr WeightLayout kLayout = WeightLayout::kOutIn;
  const auto o = once<Operands>([=, rows = rows_, type = type_, wide = wide_] {
    const at::TensorOptions options = at::TensorOptions().dtype(wide);
    return Operands{.x = random({rows, inputs}, type, 1),
                    .dy = random({rows, outputs}, type, 2),
                    .weight = random({outputs, inputs}, type, 3),
                    .residual = random({rows, outputs}, type, 4),
                    .grad = at::zeros({outputs, inputs}, options),
                    .other_grad = at::zeros({outputs, inputs}, options)};
  });
  const auto x = static_cast<double>(rows_ * inputs) * size_;
  const auto y = static_cast<double>(rows_ * outputs) * size_;
  const auto elements = static_cast<double>(inputs * outputs);
  const double flops = 2 * static_cast<double>(rows_) * elements;
  const std::string shape = fmt::format("{} x {} -> {}", rows_, inputs, outputs);
  add("linear." + name, shape, x + y + elements * size_, flops,
      {[o] { return Tensors{kernels::linear(o().x, o().weight, {}, kLayout)}; }},
      MicroSide{[o] { return Tensors{at::mm(o().x, o().weight.t())}; }});
  if (name == "o" || name == "down")
    add("linear_plus." + name, shape, x + 2 * y + elements * size_, flops,
        {[o] { return Tensors{kernels::linear_plus(o().residual, o().x, o().weight, {}, kLayout)}; }},
        MicroSide{[o] { return Tensors{at::mm(o().x, o().weight.t()) + o().residual}; }});
  add("linear_input_grad." + name, shape, x + y + elements * size_, flops,
      {[o] { return Tensors{kernels::linear_input_grad(o().dy, o().weight, kLayout)}; }},
      MicroSide{[o] { return Tensors{at::mm(o().dy, o().weight)}; }});
  add("accumulate_weight_grad." + name, shape, x + y + 2 * elements * wide_size_, flops, {[o] {
        kernels::accumulate_weight_grad(o().grad, o().x, o().dy, kLayout);
        return Tensors{o().grad};
      }},
      MicroSide{[o] {
        o().other_grad.add_(at::mm(o().dy.t(), o().x));
        return Tensors{o().other_grad};
      }});
}

/// A model of one layer, and beside it the lists that ATen's fused update wants.
struct OptimizerOperands {
  OptimizerOptions options;
  ParameterSet parameters;
  std::unique_ptr<RankOptimizer> optimizer;
  std::vector<Parameter*> list;
  Tensors masters, computes, grads, exp_avgs, exp_avg_sqs, steps;
};

std::unique_ptr<OptimizerOperands> make_optimizer_operands(ModelConfig model, ComputeType type) {
  model.num_layers = 1;
  auto o = std::make_unique<OptimizerOperands>();
  o->options.weight_decay = 0.1;
  o->options.decay = DecayRule::kAll;  // one list for ATen
  o->parameters = ParameterSet::create(model, {0, 1, 2, 3, 4, 5}, type);
  o->parameters.initialize(1);
  o->parameters.refresh_compute();
  std::uint64_t key = 1;
  const at::Tensor step = at::zeros({}, at::kFloat);
  for (auto& [name, parameter] : o->parameters.by_name()) {
    parameter.grads.front().copy_(random(parameter.shape, parameter.master.scalar_type(), key++));
    o->list.push_back(&parameter);
    o->masters.push_back(parameter.master.clone());
    o->computes.push_back(parameter.compute.is_same(parameter.master) ? at::Tensor() : parameter.compute.clone());
    o->grads.push_back(parameter.grads.front().clone());
    o->exp_avgs.push_back(at::zeros_like(o->masters.back()));
    o->exp_avg_sqs.push_back(at::zeros_like(o->masters.back()));
    o->steps.push_back(step);
  }
  o->optimizer = std::make_unique<RankOptimizer>(o->options, std::vector<std::vector<Parameter*>>{o->list});
  return o;
}

void Cases::add_optimizer() {
  const auto o = once<std::unique_ptr<OptimizerOperands>>(
      [model = model_, type = compute_] { return make_optimizer_operands(model, type); });
  ModelConfig one_layer = model_;
  one_layer.num_layers = 1;
  double elements = 0;
  for (const ParameterSpec& spec : parameter_specs(one_layer)) {
    double size = 1;
    for (const std::int64_t extent : spec.shape) size *= static_cast<double>(extent);
    elements += size;
  }
  const std::string shape = fmt::format("{:.2f} M parameters", elements * 1e-6);
  const double rounded = compute_ == ComputeType::kBFloat16 ? size_ : 0;
  constexpr double kRate = 1e-3;
  add("square_sum", shape, elements * wide_size_, 0, {[o] {
        double sum = 0;
        for (const Parameter* parameter : o()->list) sum += square_sum(parameter->grads.front());
        return Tensors{at::full({1}, sum, at::TensorOptions().dtype(at::kDouble))};
      }},
      MicroSide{[o] {
        double sum = 0;
        for (const at::Tensor& grad : o()->grads) {
          const auto norm = at::linalg_vector_norm(grad, 2, {}, /*keepdim=*/false, at::kDouble).item<double>();
          sum += norm * norm;
        }
        return Tensors{at::full({1}, sum, at::TensorOptions().dtype(at::kDouble))};
      }});
  // Masters, gradients and both moments are read, all but the gradients written.
  add("adamw", shape, elements * (7 * wide_size_ + rounded), 0, {[o] {
        o()->optimizer->begin_step();
        o()->optimizer->step(0, kRate);
        return Tensors{o()->list.front()->master};
      }},
      MicroSide{[o] {
        OptimizerOperands& of = *o();
        of.steps.front().add_(1);
        at::_fused_adamw_(of.masters, of.grads, of.exp_avgs, of.exp_avg_sqs, {}, of.steps, kRate, of.options.beta1,
                          of.options.beta2, of.options.weight_decay, of.options.eps, false, false);
        for (std::size_t i = 0; i < of.masters.size(); ++i)
          if (of.computes[i].defined()) of.computes[i].copy_(of.masters[i]);
        return Tensors{of.masters.front()};
      }});
}

}  // namespace

std::vector<MicroCase> micro_cases(const MicroShape& shape) {
  return Cases(shape).all();
}

}  // namespace plait::bench
