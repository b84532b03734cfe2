#pragma once

#include "plait/ir/lower.h"
#include "plait/run/engine/engine.h"
#include "plait/schedules/schedule_info.h"
#include "plait/verify/verify.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

/// What the tests of whole training steps share.
namespace plait::testing {

/// A small Llama with grouped heads.
inline ModelConfig tiny_config(int num_layers, HeadTying tying) {
  return ModelConfig{.family = ModelFamily::kLlama,
                     .num_layers = num_layers,
                     .hidden_size = 16,
                     .ffn_size = 24,
                     .num_heads = 4,
                     .num_kv_heads = 2,
                     .head_dim = 4,
                     .vocab_size = 29,
                     .max_positions = 64,
                     .initializer_range = 0.2,  // far from zero, so that every gradient is of a size to compare
                     .tied_head = tying == HeadTying::kTied};
}

/// The same sizes for every family; GPT-2 has neither grouped heads nor a gate.
inline ModelConfig family_config(ModelFamily family, int num_layers, HeadTying tying) {
  ModelConfig config = tiny_config(num_layers, tying);
  config.family = family;
  config.attention_bias = family == ModelFamily::kQwen2;
  if (family == ModelFamily::kGpt2) {
    config.num_kv_heads = config.num_heads;
    config.activation = Activation::kGeluTanh;
    config.attention_bias = true;
  }
  return config;
}

inline std::string family_name(ModelFamily family) {
  switch (family) {
    case ModelFamily::kLlama: return "llama";
    case ModelFamily::kMistral: return "mistral";
    case ModelFamily::kQwen2: return "qwen2";
    case ModelFamily::kGpt2: return "gpt2";
  }
  return "?";
}

enum class Mask : std::uint8_t {
  kNone,
  kLastOnly,  ///< all valid tokens are in the last micro-batch
  kUneven,    ///< micro-batch m keeps every (m + 1)th token, and its first row
};

/// Counter-based, so that the same arguments always give the same data.
inline std::vector<Microbatch> make_data(int num_microbatches, std::int64_t rows, std::int64_t length,
                                         std::int64_t vocab_size, Mask mask, std::uint64_t seed) {
  std::vector<Microbatch> data;
  std::uint64_t state = seed;
  const auto draw = [&] {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;  // Knuth's MMIX generator
    return static_cast<std::int64_t>((state >> 33) % static_cast<std::uint64_t>(vocab_size));
  };
  for (int m = 0; m < num_microbatches; ++m) {
    Microbatch microbatch{.tokens = at::empty({rows, length}, at::kLong),
                          .targets = at::empty({rows, length}, at::kLong)};
    auto* tokens = microbatch.tokens.data_ptr<std::int64_t>();
    auto* targets = microbatch.targets.data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < rows * length; ++i) {
      tokens[i] = draw();
      targets[i] = draw();
      const bool masked = (mask == Mask::kLastOnly && m + 1 < num_microbatches) ||
                          (mask == Mask::kUneven && i >= length && i % (m + 1) != 0);
      if (masked) targets[i] = kIgnoredTarget;
    }
    data.push_back(std::move(microbatch));
  }
  return data;
}

inline Result<VerifiedProgram> program_of(std::string_view name, const ScheduleShape& shape) {
  auto schedule = build_schedule(name, shape);
  if (!schedule) return schedule.error();
  auto program = lower(*schedule);
  if (!program) return program.error();
  return prove(*std::move(program));
}

inline std::unique_ptr<Engine> make_engine(const VerifiedProgram& program, const ModelConfig& config,
                                           const EngineOptions& options, std::uint64_t seed = 1) {
  auto engine = Engine::create(program, config, options);
  EXPECT_TRUE(engine) << engine.error().message;
  if (!engine) return nullptr;
  (*engine)->initialize(seed);
  return *std::move(engine);
}

/// Largest difference, as a share of the largest expected value.
inline double difference(const at::Tensor& result, const at::Tensor& expected) {
  const double largest = expected.abs().max().item<double>();
  return result.sub(expected).abs().max().item<double>() / (largest > 0 ? largest : 1);
}

inline void expect_equal(const std::map<std::string, at::Tensor>& result,
                         const std::map<std::string, at::Tensor>& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(result.size(), expected.size()) << what;
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(result.contains(name)) << what << ": " << name;
    EXPECT_LE(difference(result.at(name), tensor), tolerance) << what << ": " << name;
  }
}

inline std::map<std::string, at::Tensor> weights_of(const Engine& engine) {
  std::map<std::string, at::Tensor> weights;
  auto saved = engine.save();
  EXPECT_TRUE(saved) << saved.error().message;
  if (!saved) return weights;
  for (auto& [name, state] : *saved) weights.emplace(name, state.master);
  return weights;
}

}  // namespace plait::testing
