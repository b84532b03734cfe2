#include "plait/cli/run/calibrate/chain.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <chrono>
#include <utility>

namespace plait::calibrate {
namespace {

constexpr int kParts = host::kNumPartKinds;

/// Token ids that jump through the vocabulary as those of a text do.
at::Tensor spread_ids(std::int64_t batch, std::int64_t tokens, std::int64_t vocab, std::int64_t start) {
  at::Tensor ids = at::empty({batch, tokens}, at::TensorOptions().dtype(at::kLong));
  auto* data = ids.mutable_data_ptr<std::int64_t>();
  constexpr std::int64_t kStride = 7919;  // a prime
  for (std::int64_t i = 0; i < ids.numel(); ++i) data[i] = (start + i * kStride) % vocab;
  return ids;
}

}  // namespace

ModelConfig one_layer(const ModelShape& shape) {
  const bool gated = shape.mlp == MlpKind::kGated;
  return {.family = gated ? ModelFamily::kLlama : ModelFamily::kGpt2,
          .num_layers = 1,
          .hidden_size = shape.hidden,
          .ffn_size = shape.ffn,
          .num_heads = shape.heads,
          .num_kv_heads = shape.kv_heads,
          .head_dim = shape.head_dim,
          .vocab_size = shape.vocab,
          .max_positions = shape.tokens,
          .activation = gated ? Activation::kSilu : Activation::kGeluTanh};
}

Chain::Chain(const ModelConfig& config, ComputeType type, std::int64_t batch, std::int64_t tokens)
    : config_(config), account_(make_memory_account()) {
  const AccountScope scope(account_);
  parameters_ = ParameterSet::create(config_, {0, 1, 2, 3, 4, 5}, type);
  parameters_.initialize(1);
  parameters_.refresh_compute();
  for (int part = 0; part < kParts; ++part)
    parts_.emplace_back(config_, PartRange{.begin = part, .end = part + 1}, parameters_);
  data_ = {.tokens = spread_ids(batch, tokens, config_.vocab_size, 0),
           .targets = spread_ids(batch, tokens, config_.vocab_size, 1),
           .loss_scale = 1.0 / static_cast<double>(batch * tokens)};
}

PassSeconds Chain::run() {
  constexpr std::size_t kDepth = 2;  // micro-batches between a forward and its backward, as layers of a small stage
  const AccountScope scope(account_);
  PassSeconds seconds{};
  const auto measure = [&](int part, host::Phase phase, const auto& body) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const auto end = std::chrono::steady_clock::now();
    seconds[static_cast<std::size_t>(part)][static_cast<std::size_t>(phase)] +=
        std::chrono::duration<double>(end - start).count() / kDepth;
  };
  std::array<std::array<Stash, kParts>, kDepth> stashes;
  std::array<std::array<WeightStash, kParts>, kDepth> weight_stashes;
  const auto forward = [&](host::Phase phase, bool counts) {
    for (auto& stashes_of : stashes) {
      Payload payload;
      for (int part = 0; part < kParts; ++part) {
        const auto index = static_cast<std::size_t>(part);
        const auto body = [&] {
          Stash* stash = phase == host::Phase::kForward ? &stashes_of[index] : nullptr;
          payload = parts_[index].forward(data_, std::move(payload), stash, nullptr).output;
        };
        if (counts)
          measure(part, phase, body);
        else
          body();
      }
    }
  };
  const auto backward = [&](host::Phase phase) {
    for (std::size_t k = kDepth; k-- > 0;) {
      Payload grad;
      for (int part = kParts; part-- > 0;) {
        const auto index = static_cast<std::size_t>(part);
        measure(part, phase, [&] {
          StageModule& module = parts_[index];
          Stash stash = std::move(stashes[k][index]);
          WeightStash& weight_stash = weight_stashes[k][index];
          BackwardResult result =
              phase == host::Phase::kBoth
                  ? module.backward(data_, std::move(grad), std::move(stash), nullptr, 0)
                  : module.backward_input(data_, std::move(grad), std::move(stash), &weight_stash, nullptr, 0);
          grad = std::move(result.input_grad);
        });
      }
    }
  };
  forward(host::Phase::kForwardOnly, true);
  forward(host::Phase::kForward, true);
  backward(host::Phase::kBackward);
  for (std::size_t k = kDepth; k-- > 0;)
    for (int part = kParts; part-- > 0;) {
      const auto index = static_cast<std::size_t>(part);
      measure(part, host::Phase::kWeight, [&] { parts_[index].backward_weight(std::move(weight_stashes[k][index])); });
    }
  forward(host::Phase::kForward, false);
  backward(host::Phase::kBoth);
  return seconds;
}

}  // namespace plait::calibrate
