#pragma once

#include "plait/base/result.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace plait {

enum class ModelFamily : std::uint8_t { kLlama, kMistral, kQwen2, kGpt2 };

/// Rotary scaling of Llama 3.1 ("rope_type": "llama3").
struct Llama3RopeScaling {
  double factor = 8.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  std::int64_t original_max_position_embeddings = 8192;
  friend bool operator==(const Llama3RopeScaling&, const Llama3RopeScaling&) = default;
};

enum class Activation : std::uint8_t { kSilu, kGeluTanh };

/// Shapes and options of a model, as in a Hugging Face config.json. D = hidden_size, N = num_heads, G = num_kv_heads,
/// H = head_dim, V = vocab_size.
struct ModelConfig {
  ModelFamily family = ModelFamily::kLlama;
  int num_layers = 1;
  std::int64_t hidden_size = 64;
  std::int64_t ffn_size = 256;
  std::int64_t num_heads = 1;
  std::int64_t num_kv_heads = 1;
  std::int64_t head_dim = 64;
  std::int64_t vocab_size = 256;
  std::int64_t max_positions = 2048;
  double norm_eps = 1e-5;
  double rope_theta = 10000.0;
  std::optional<Llama3RopeScaling> rope_scaling;
  Activation activation = Activation::kSilu;
  double initializer_range = 0.02;
  bool tied_head = false;
  bool attention_bias = false;  ///< bias on q, k, v (Qwen2; GPT-2 has biases everywhere)
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

/// Reads and checks `dir`/config.json. Accepts old `rope_theta`/`rope_scaling` and new `rope_parameters` keys; ignores
/// keys that do not matter.
///
/// \errors kIo: missing or malformed file; kUnsupported "model.*": unknown model_type, dropout > 0, a sliding window in
///         use, other activations or rope types; each names the key, what it is and what is accepted
Result<ModelConfig> read_model_config(const std::filesystem::path& dir);

/// Shapes that fit together: heads shared evenly, rotary heads of even size, options that the family has.
/// \errors kInvalidArgument "model.shape"
Result<> check_model_config(const ModelConfig& config);

/// The config.json text of a model in transformers' own keys.
std::string model_config_json(const ModelConfig& config);

}  // namespace plait
