#pragma once

#include "plait/base/result.h"
#include "plait/ir/parts.h"
#include "plait/run/model/config.h"

#include <ATen/core/TensorBody.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace plait {

enum class ComputeType : std::uint8_t { kFloat32, kBFloat16, kFloat64 };

/// Type of activations and of the weights that kernels read.
at::ScalarType scalar_type(ComputeType type);
/// Type of master weights and gradient accumulators: fp32 for bf16.
at::ScalarType master_type(ComputeType type);

/// What a rank keeps of a tensor between its uses: segment `index` of `count` of its n flat elements, which is
/// [index n / count, (index + 1) n / count). Nothing where `count` is 0: there its weights only visit.
struct Share {
  int index = 0;
  int count = 1;
  [[nodiscard]] bool is_whole() const { return count == 1; }
  [[nodiscard]] bool is_nothing() const { return count == 0; }
  friend bool operator==(const Share&, const Share&) = default;
};

/// How a rank holds a tensor.
struct Holding {
  Share share;
  int num_uses = 1;  ///< gradient accumulators: one per use on this rank
};

/// One tensor of a model on one rank, under its Hugging Face name. In bf16 runs `master` is fp32 and `compute` bf16; else
/// both are the same tensor. Tensors of one GEMM (q, k, v; gate, up) are row ranges of one storage.
///
/// Of a shard, `master` and the one accumulator are flat segments, and there is no `compute`.
struct Parameter {
  std::string name;                 ///< "model.layers.0.self_attn.q_proj.weight"
  at::Tensor master;                ///< fp32 or fp64
  at::Tensor compute;               ///< what the kernels read
  std::vector<at::Tensor> grads;    ///< master's type; one accumulator per use on this rank (a tied table may have two)
  std::vector<std::int64_t> shape;  ///< of the whole tensor
  std::int64_t begin = 0;           ///< first flat element of the whole that `master` holds
};

/// Name and shape of a tensor, in the order of the chain.
struct ParameterSpec {
  std::string name;
  std::vector<std::int64_t> shape;
  int part = 0;  ///< chain index of the part that owns it (a tied table is owned by embed)
  friend bool operator==(const ParameterSpec&, const ParameterSpec&) = default;
};

/// All tensors of a model. A tied LM head is not listed: it is the token table.
std::vector<ParameterSpec> parameter_specs(const ModelConfig& config);

/// Name of the token table: "model.embed_tokens.weight" or "transformer.wte.weight".
std::string token_table_name(const ModelConfig& config);

/// Rows of a storage that are one tensor of the model.
struct StorageMember {
  std::string name;
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
  friend bool operator==(const StorageMember&, const StorageMember&) = default;
};

/// One allocation that holds a tensor, or the tensors that one GEMM uses at once, as row ranges in the order of the specs.
/// Kernels read these; a pointer to one stays good as long as its set.
///
/// Where the rank does not keep the whole, `master` is undefined, and `compute` and `grads` are bound to buffers while
/// weights visit and a partial gradient is here.
struct ParameterStorage {
  at::Tensor master;
  at::Tensor compute;
  std::vector<at::Tensor> grads;  ///< one per use on this rank: embed's first, then head's of a tied table
  bool is_of_products = false;    ///< only a linear layer adds to the last accumulator: it may overwrite instead
  bool is_blank = false;          ///< the last accumulator holds nothing that counts; the next product overwrites it
  Share share;
  std::vector<std::int64_t> shape;
  std::vector<StorageMember> members;

  /// Adds the accumulators of all uses into the first, in their order; those of the others hold nothing then.
  void fold_grads();
  /// Zeroes the accumulator of a use, or leaves it blank until the next product.
  void empty_grad(std::size_t use);
};

/// The parameters of some parts of the chain on one rank.
///
/// A rank that holds head but not embed of a tied model holds a copy of the token table, under its own name.
class ParameterSet {
 public:
  /// Allocates parameters and zero gradient accumulators for `parts` (chain indices, ascending). The values of the
  /// parameters are zero until initialize, or until someone copies into the masters and calls refresh_compute.
  static ParameterSet create(const ModelConfig& config, const std::vector<int>& parts, ComputeType type,
                             at::Device device = at::kCPU);

  /// As above for tensors of which the rank keeps a share only, or which visit it.
  ///
  /// \param holding_of  how the rank holds the tensors of an allocation, asked with the first of them; none = not at all
  using HoldingOf = std::function<std::optional<Holding>(const ParameterSpec& first)>;
  static ParameterSet create(const ModelConfig& config, ComputeType type, const HoldingOf& holding_of,
                             at::Device device = at::kCPU);

  /// What the rank keeps: whole tensors and shards.
  [[nodiscard]] std::map<std::string, Parameter>& by_name() { return by_name_; }
  [[nodiscard]] const std::map<std::string, Parameter>& by_name() const { return by_name_; }

  /// The allocation whose first tensor has this name. \throws InternalError if the set does not hold it
  [[nodiscard]] ParameterStorage& storage(const std::string& first_name);
  /// The same; null if the set does not hold it.
  [[nodiscard]] ParameterStorage* find_storage(const std::string& first_name);
  [[nodiscard]] ComputeType type() const { return type_; }
  /// Where all of it lies, and what is made beside it.
  [[nodiscard]] at::Device device() const { return device_; }

  /// Fills each tensor with normal(0, initializer_range) values (norms 1, biases 0) drawn from a counter-based generator
  /// keyed by (seed, parameter name): the same for every layout. GPT-2 scales residual projections by 1/sqrt(2 layers).
  void initialize(std::uint64_t seed);
  /// Copies master to compute where they differ.
  void refresh_compute();
  /// What the accumulators hold counts no more.
  void empty_grads();

 private:
  ModelConfig config_;
  ComputeType type_ = ComputeType::kFloat32;
  at::Device device_ = at::kCPU;
  std::map<std::string, Parameter> by_name_;
  std::map<std::string, ParameterStorage> storages_;  ///< by the name of the first tensor
};

}  // namespace plait
