#pragma once

#include "plait/base/ids.h"
#include "plait/base/result.h"
#include "plait/ir/parts.h"
#include "plait/ir/program.h"
#include "plait/sim/cost_model.h"
#include "plait/sim/rank_memory.h"

#include <cstdint>

namespace plait {

enum class MlpKind : std::uint8_t { kPlain, kGated };  ///< two matrices, or three (SwiGLU)
enum class AttentionKernel : std::uint8_t {
  kUnfused,  ///< writes the scores: all of them, causal or not
  kFlash,    ///< skips blocks above the diagonal, keeps the log-sum-exp only
};
enum class QkvBias : std::uint8_t {
  kAsTheMlp,  ///< a GPT has one, a Llama none
  kAlways,    ///< Qwen2
};
enum class Dropout : std::uint8_t { kOff, kOn };           ///< on: masks of one byte an element are kept
enum class SequenceParallel : std::uint8_t { kOff, kOn };  ///< on: also what tensor parallelism leaves whole is cut
enum class StashPolicy : std::uint8_t {
  kKeepAll,
  kSelective,  ///< recomputes the attention core (scores, softmax, values)
  kKeepInput,  ///< full recompute: keeps the input of each layer
};

/// What a transformer is made of, and what one micro-batch of it is. Letters as in docs/glossary.md: D = hidden,
/// N = heads, G = kv_heads, H = head_dim, V = vocab, T = tokens, B = batch.
struct ModelShape {
  int layers = 1;
  std::int64_t hidden = 1;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 1;
  std::int64_t ffn = 1;
  std::int64_t vocab = 1;
  std::int64_t tokens = 1;  ///< of one sequence
  std::int64_t batch = 1;   ///< sequences of one micro-batch
  MlpKind mlp = MlpKind::kPlain;
  AttentionKernel attention = AttentionKernel::kUnfused;
  Dropout dropout = Dropout::kOff;
  std::int64_t element_bytes = 2;  ///< of activations and of the weights that compute
  std::int64_t positions = 0;      ///< rows of a GPT's position table; 0: as many as tokens
  HeadTying tying = HeadTying::kUntied;
  QkvBias qkv_bias = QkvBias::kAsTheMlp;
  friend bool operator==(const ModelShape&, const ModelShape&) = default;
};

/// A GPT of the usual proportions: kv_heads = heads, head_dim = hidden / heads, ffn = 4 hidden.
ModelShape gpt_shape(int layers, std::int64_t hidden, std::int64_t heads, std::int64_t vocab, std::int64_t tokens,
                     std::int64_t batch);

/// \errors kInvalidArgument "shape.*": a size that is not positive or is absurd, heads that kv_heads does not divide
Result<> check_shape(const ModelShape& shape);

/// How one pipeline rank is cut further.
struct Sharding {
  int tensor = 1;   ///< t: heads, ffn and vocab are cut
  int context = 1;  ///< tokens are cut
  int data = 1;     ///< replicas
  SequenceParallel sequence = SequenceParallel::kOff;
  StashPolicy stash = StashPolicy::kKeepAll;
  friend bool operator==(const Sharding&, const Sharding&) = default;
};

/// Floating-point operations of the forward of a part for one micro-batch on one of the t x context devices; a multiply
/// and an add are two. Matrix products only. Backward: twice that (once for B, once for W; attention has no W).
///
///   qkv   2 B T D (N + 2 G) H          post  2 B T (N H D + 2 D ffn)     (3 D ffn if gated)
///   attn  4 B T^2 N H c                head  2 B T D V
///
/// c = 1 unfused; causal flash with blocks of 128: (n + 1) / 2n for n = T / 128 blocks.
/// \source Narayanan et al. 2021, arXiv:2104.04473, appendix: their 96 B s l h^2 (1 + s/6h + V/16lh) is 4 forwards of the
///         layers (one of them recomputed) and 3 of the head
double forward_flops(const ModelShape& shape, const Sharding& sharding, PartKind part);

/// The part of forward_flops that the attention kernel does.
double attention_fraction(const ModelShape& shape);

/// Parameters of a part, whole (not cut by t). Matrices, or with the vectors (biases of a GPT, norms) as well. A tied head
/// has its norm only: its matrix is embed's.
enum class Parameters : std::uint8_t { kMatrices, kAll };
std::int64_t parameter_count(const ModelShape& shape, PartKind part, Parameters which);

/// Bytes that the forward of a part leaves for its backward, one micro-batch, one device.
///
/// In units of 2 B T D without dropout; sharded by t unless marked *, which sequence parallelism cuts too:
///   norm  input*                qkv   input*            attn  q, k, v; unfused: scores (softmax out; with dropout its
///   mask and output); flash: log-sum-exp in fp32
///   post  attention output, dropout mask*, norm input*, MLP input*, before and after the activation (gated: gate, up and
///   product), dropout mask*
///   embed nothing; head: input*, norm output*, logits in fp32 (logit_bytes of them)
/// \source Korthikanti et al. 2022, arXiv:2205.05198, section 4: sums up to s b h (10 + 24/t + 5 a s / (h t)) per layer
std::int64_t stash_bytes(const ModelShape& shape, const Sharding& sharding, PartKind part);
std::int64_t logit_bytes(const ModelShape& shape, const Sharding& sharding);

/// Bytes per parameter of mixed-precision training with Adam.
struct OptimizerBytes {
  std::int64_t weight = 2;
  std::int64_t gradient = 4;  ///< accumulated in fp32
  std::int64_t state = 12;    ///< master weight and two moments
  friend bool operator==(const OptimizerBytes&, const OptimizerBytes&) = default;
};

struct MemoryOptions {
  OptimizerBytes optimizer;
  Parameters parameters = Parameters::kAll;
  int optimizer_shards = 1;  ///< ranks that share the optimizer state (distributed optimizer)
  Bytes fixed;               ///< context and library workspaces
  Bytes block{512};          ///< allocator's granularity
};

/// Bytes of a type of weights that compute (2: with fp32 masters and gradients; 4 and 8: the weights are the masters).
OptimizerBytes adam_bytes(std::int64_t element_bytes);

/// Fills in the bytes of a cost model: edges, stashes, groups, and what each op takes and gives back. Where the layout
/// recomputes, F keeps the stage's input (no-attention: and what attention leaves), and R takes the rest of the stash.
///
/// \errors those of check_shape; "shape.layers", "shape.tying": the program is for another model; "shape.sharding"
Result<> add_memory(const Layout& layout, const ModelShape& shape, const Sharding& sharding,
                    const MemoryOptions& options, CostModel& costs);

/// What a rank holds at an instruction (RankFigures::peak_position, say), for resident weights or known memory.
MemoryOwners memory_owners(const Program& program, const CostModel& costs, RankId rank, int position);

}  // namespace plait
