#include "plait/base/files.h"
#include "plait/run/model/config.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <utility>

namespace plait {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// model_type and architecture of each family.
struct FamilyName {
  ModelFamily family;
  std::string_view model_type;
  std::string_view architecture;
};
constexpr std::array kFamilies = {FamilyName{ModelFamily::kLlama, "llama", "LlamaForCausalLM"},
                                  FamilyName{ModelFamily::kMistral, "mistral", "MistralForCausalLM"},
                                  FamilyName{ModelFamily::kQwen2, "qwen2", "Qwen2ForCausalLM"},
                                  FamilyName{ModelFamily::kGpt2, "gpt2", "GPT2LMHeadModel"}};

const FamilyName& name_of(ModelFamily family) {
  return *std::find_if(kFamilies.begin(), kFamilies.end(), [&](const FamilyName& f) { return f.family == family; });
}

/// Reads keys of a config.json and keeps the first error, so that the reading code stays a list of keys.
class KeyReader {
 public:
  KeyReader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  [[nodiscard]] bool has(std::string_view key) const {
    const auto found = json_.find(key);
    return found != json_.end() && !found->is_null();
  }
  [[nodiscard]] bool is_null(std::string_view key) const {
    const auto found = json_.find(key);
    return found != json_.end() && found->is_null();
  }
  [[nodiscard]] const Json& at(std::string_view key) const { return *json_.find(key); }
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

  /// Takes over the error of a nested object's reader.
  void adopt(const KeyReader& nested) {
    if (!error_) error_ = nested.error_;
  }
  void refuse(std::string_view rule, std::string message) {
    if (!error_) error_ = make_error(ErrorCode::kUnsupported, rule, "{}: {}", where_, message);
  }
  void malformed(std::string_view key, std::string_view expected) {
    if (!error_)
      error_ = make_error(ErrorCode::kIo, "model.config", "{}: {} is {}, expected {}", where_, key,
                          has(key) ? at(key).dump() : "missing", expected);
  }

  /// A size, at least 1; no default means it must be there.
  std::int64_t size(std::string_view key, std::optional<std::int64_t> fallback = std::nullopt) {
    constexpr std::int64_t kLargest = std::int64_t{1} << 31;
    if (!has(key) && fallback) return *fallback;
    if (!has(key) || !at(key).is_number_integer()) {
      malformed(key, "a positive integer");
      return 1;
    }
    const auto value = at(key).is_number_unsigned() && at(key).get<std::uint64_t>() > std::uint64_t{1} << 62U
                           ? std::numeric_limits<std::int64_t>::max()
                           : at(key).get<std::int64_t>();
    if (value < 1 || value > kLargest) {
      malformed(key, "a positive integer of at most 2^31");
      return 1;
    }
    return value;
  }
  double number(std::string_view key, std::optional<double> fallback = std::nullopt) {
    if (!has(key) && fallback) return *fallback;
    if (!has(key) || !at(key).is_number()) {
      malformed(key, "a number");
      return 1.0;
    }
    return at(key).get<double>();
  }
  double positive(std::string_view key, std::optional<double> fallback = std::nullopt) {
    const double value = number(key, fallback);
    if (!(value > 0) || !std::isfinite(value)) malformed(key, "a number above 0");
    return value;
  }
  enum class Flag : std::uint8_t { kNo, kYes };
  Flag flag(std::string_view key, Flag fallback) {
    if (!has(key)) return fallback;
    if (!at(key).is_boolean()) {
      malformed(key, "true or false");
      return fallback;
    }
    return at(key).get<bool>() ? Flag::kYes : Flag::kNo;
  }
  std::string text(std::string_view key, std::string_view fallback) {
    if (!has(key)) return std::string(fallback);
    if (!at(key).is_string()) {
      malformed(key, "a string");
      return std::string(fallback);
    }
    return at(key).get<std::string>();
  }

  void refuse_dropout(std::string_view key, double fallback) {
    const double value = number(key, fallback);
    if (value != 0)
      refuse("model.dropout", fmt::format("{} is {}{}; dropout is not supported, set it to 0", key, value,
                                          has(key) ? "" : " (transformers' default where it is absent)"));
  }
  void refuse_flag(std::string_view key, Flag unsupported, std::string_view rule) {
    if (flag(key, unsupported == Flag::kYes ? Flag::kNo : Flag::kYes) == unsupported)
      refuse(rule,
             fmt::format("{} is {}; only {} is supported", key, unsupported == Flag::kYes, unsupported != Flag::kYes));
  }

 private:
  const Json& json_;
  std::string where_;
  std::optional<Error> error_;
};
using Flag = KeyReader::Flag;

void read_activation(KeyReader& keys, std::string_view key, std::string_view fallback,
                     std::initializer_list<std::string_view> accepted) {
  const std::string found = keys.text(key, fallback);
  if (std::find(accepted.begin(), accepted.end(), found) == accepted.end())
    keys.refuse("model.activation", fmt::format("{} is \"{}\"; \"{}\" is supported for this model_type", key, found,
                                                fmt::join(accepted, "\", \"")));
}

/// rope_parameters (new), or rope_theta and rope_scaling (old).
void read_rope(KeyReader& keys, const std::string& where, ModelConfig& config) {
  constexpr double kDefaultTheta = 10000.0;
  config.rope_theta = keys.positive("rope_theta", kDefaultTheta);
  const char* key = keys.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!keys.has(key)) return;
  if (!keys.at(key).is_object()) {
    keys.malformed(key, "an object");
    return;
  }
  KeyReader rope(keys.at(key), where + ": " + key);
  config.rope_theta = rope.positive("rope_theta", config.rope_theta);
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  if (type == "llama3") {
    Llama3RopeScaling scaling;
    scaling.factor = rope.positive("factor");
    scaling.low_freq_factor = rope.positive("low_freq_factor");
    scaling.high_freq_factor = rope.positive("high_freq_factor");
    scaling.original_max_position_embeddings = rope.size("original_max_position_embeddings");
    if (scaling.high_freq_factor <= scaling.low_freq_factor)
      rope.malformed("high_freq_factor", "a number above low_freq_factor");
    config.rope_scaling = scaling;
  } else if (type != "default") {
    rope.refuse("model.rope_type", fmt::format("rope_type is \"{}\"; \"default\" and \"llama3\" are supported", type));
  }
  if (rope.number("partial_rotary_factor", 1.0) != 1.0)
    rope.refuse("model.rope_type", "partial_rotary_factor is not 1; heads are rotated whole");
  for (const auto& [name, value] : keys.at(key).items())
    if (value.is_object())
      rope.refuse("model.rope_type", fmt::format("{} is an object; one setting for all layers is supported", name));
  keys.adopt(rope);
}

void refuse_sliding_window(KeyReader& keys, const ModelConfig& config) {
  if (config.family == ModelFamily::kQwen2) {
    keys.refuse_flag("use_sliding_window", Flag::kYes, "model.sliding_window");
    if (keys.has("layer_types") && keys.at("layer_types").is_array())
      for (const Json& type : keys.at("layer_types"))
        if (type != "full_attention")
          keys.refuse("model.sliding_window",
                      fmt::format("layer_types holds {}; only \"full_attention\" is supported", type.dump()));
  }
  if (config.family == ModelFamily::kMistral) {
    // Absent means transformers' default; null means none. One that no sequence can outgrow does nothing.
    constexpr std::int64_t kMistralWindow = 4096;
    if (keys.is_null("sliding_window")) return;
    const std::int64_t window = keys.size("sliding_window", kMistralWindow);
    if (window < config.max_positions)
      keys.refuse("model.sliding_window",
                  fmt::format("sliding_window is {}{} and shorter than max_position_embeddings ({}); set it to null",
                              window, keys.has("sliding_window") ? "" : " (transformers' default where it is absent)",
                              config.max_positions));
  }
}

ModelConfig read_llama_like(KeyReader& keys, const std::string& where, ModelFamily family) {
  const bool is_llama = family == ModelFamily::kLlama;
  const bool is_mistral = family == ModelFamily::kMistral;
  ModelConfig config;
  config.family = family;
  config.num_layers = static_cast<int>(std::min<std::int64_t>(keys.size("num_hidden_layers"), 1 << 20));
  config.hidden_size = keys.size("hidden_size");
  config.ffn_size = keys.size("intermediate_size");
  config.num_heads = keys.size("num_attention_heads");
  // Defaults are those of transformers' configuration classes.
  config.num_kv_heads = keys.size("num_key_value_heads", is_llama ? config.num_heads : is_mistral ? 8 : 32);
  if (!keys.has("head_dim") && config.hidden_size % config.num_heads != 0)
    keys.malformed("hidden_size", "a multiple of num_attention_heads, or a head_dim");
  config.head_dim = keys.size("head_dim", std::max<std::int64_t>(1, config.hidden_size / config.num_heads));
  config.vocab_size = keys.size("vocab_size");
  config.max_positions = keys.size("max_position_embeddings", is_llama ? 2048 : is_mistral ? 131072 : 32768);
  config.norm_eps = keys.positive("rms_norm_eps", 1e-6);
  config.initializer_range = keys.positive("initializer_range", 0.02);
  config.tied_head = keys.flag("tie_word_embeddings", Flag::kNo) == Flag::kYes;
  config.attention_bias = family == ModelFamily::kQwen2;
  config.activation = Activation::kSilu;
  read_activation(keys, "hidden_act", "silu", {"silu", "swish"});
  read_rope(keys, where, config);
  keys.refuse_dropout("attention_dropout", 0.0);
  if (family != ModelFamily::kQwen2) keys.refuse_flag("attention_bias", Flag::kYes, "model.attention_bias");
  keys.refuse_flag("mlp_bias", Flag::kYes, "model.mlp_bias");
  if (keys.size("pretraining_tp", 1) != 1)
    keys.refuse("model.pretraining_tp", "pretraining_tp is not 1; only 1 is supported");
  refuse_sliding_window(keys, config);
  return config;
}

ModelConfig read_gpt2(KeyReader& keys) {
  ModelConfig config;
  config.family = ModelFamily::kGpt2;
  config.num_layers = static_cast<int>(std::min<std::int64_t>(keys.size("n_layer"), 1 << 20));
  config.hidden_size = keys.size("n_embd");
  config.ffn_size = keys.size("n_inner", 4 * config.hidden_size);
  config.num_heads = keys.size("n_head");
  config.num_kv_heads = config.num_heads;
  if (config.hidden_size % config.num_heads != 0) keys.malformed("n_embd", "a multiple of n_head");
  config.head_dim = std::max<std::int64_t>(1, config.hidden_size / config.num_heads);
  config.vocab_size = keys.size("vocab_size");
  config.max_positions = keys.size("n_positions", 1024);
  config.norm_eps = keys.positive("layer_norm_epsilon", 1e-5);
  config.initializer_range = keys.positive("initializer_range", 0.02);
  config.tied_head = keys.flag("tie_word_embeddings", Flag::kYes) == Flag::kYes;
  config.attention_bias = true;
  config.activation = Activation::kGeluTanh;
  read_activation(keys, "activation_function", "gelu_new", {"gelu_new", "gelu_pytorch_tanh"});
  constexpr double kGpt2Dropout = 0.1;  // where transformers finds none
  for (const std::string_view key : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) keys.refuse_dropout(key, kGpt2Dropout);
  keys.refuse_flag("scale_attn_weights", Flag::kNo, "model.attention_scale");
  keys.refuse_flag("scale_attn_by_inverse_layer_idx", Flag::kYes, "model.attention_scale");
  keys.refuse_flag("reorder_and_upcast_attn", Flag::kYes, "model.attention_scale");
  keys.refuse_flag("add_cross_attention", Flag::kYes, "model.cross_attention");
  return config;
}

Json rope_json(const ModelConfig& config) {
  if (!config.rope_scaling) return {{"rope_theta", config.rope_theta}, {"rope_type", "default"}};
  const Llama3RopeScaling& s = *config.rope_scaling;
  return {{"rope_theta", config.rope_theta},
          {"rope_type", "llama3"},
          {"factor", s.factor},
          {"low_freq_factor", s.low_freq_factor},
          {"high_freq_factor", s.high_freq_factor},
          {"original_max_position_embeddings", s.original_max_position_embeddings}};
}

Json llama_like_json(const ModelConfig& config) {
  Json json = {{"attention_dropout", 0.0},
               {"head_dim", config.head_dim},
               {"hidden_act", "silu"},
               {"hidden_size", config.hidden_size},
               {"intermediate_size", config.ffn_size},
               {"max_position_embeddings", config.max_positions},
               {"num_attention_heads", config.num_heads},
               {"num_hidden_layers", config.num_layers},
               {"num_key_value_heads", config.num_kv_heads},
               {"rms_norm_eps", config.norm_eps},
               {"rope_parameters", rope_json(config)},
               {"rope_theta", config.rope_theta}};  // with rope_scaling, for readers older than rope_parameters
  if (config.rope_scaling) json["rope_scaling"] = rope_json(config);
  if (config.family == ModelFamily::kLlama) {
    json["attention_bias"] = false;
    json["mlp_bias"] = false;
  }
  if (config.family == ModelFamily::kMistral) json["sliding_window"] = nullptr;
  if (config.family == ModelFamily::kQwen2) json["use_sliding_window"] = false;
  return json;
}

Json gpt2_json(const ModelConfig& config) {
  return {{"activation_function", "gelu_new"},
          {"attn_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"layer_norm_epsilon", config.norm_eps},
          {"n_embd", config.hidden_size},
          {"n_head", config.num_heads},
          {"n_inner", config.ffn_size},
          {"n_layer", config.num_layers},
          {"n_positions", config.max_positions},
          {"resid_pdrop", 0.0}};
}

}  // namespace

Result<> check_model_config(const ModelConfig& c) {
  const auto bad = [](std::string message) {
    return make_error(ErrorCode::kInvalidArgument, "model.shape", "{}", std::move(message));
  };
  const std::array<std::pair<std::string_view, std::int64_t>, 8> sizes = {{{"layers", c.num_layers},
                                                                           {"hidden size", c.hidden_size},
                                                                           {"ffn size", c.ffn_size},
                                                                           {"heads", c.num_heads},
                                                                           {"key/value heads", c.num_kv_heads},
                                                                           {"head size", c.head_dim},
                                                                           {"vocabulary", c.vocab_size},
                                                                           {"positions", c.max_positions}}};
  for (const auto& [name, size] : sizes)
    if (size < 1) return bad(fmt::format("{} is {}, expected at least 1", name, size));
  if (c.num_heads % c.num_kv_heads != 0)
    return bad(fmt::format("{} heads cannot share {} key/value heads evenly", c.num_heads, c.num_kv_heads));
  if (c.family == ModelFamily::kGpt2) {
    if (c.num_kv_heads != c.num_heads || c.num_heads * c.head_dim != c.hidden_size)
      return bad(fmt::format(
          "gpt2 needs heads x head size = hidden size and no grouped heads, not {} x {} = {} with {} key/value heads",
          c.num_heads, c.head_dim, c.hidden_size, c.num_kv_heads));
  } else if (c.head_dim % 2 != 0) {
    return bad(fmt::format("head size {} is odd; rotary positions turn pairs", c.head_dim));
  }
  const auto expected = c.family == ModelFamily::kGpt2 ? Activation::kGeluTanh : Activation::kSilu;
  if (c.activation != expected ||
      c.attention_bias != (c.family == ModelFamily::kQwen2 || c.family == ModelFamily::kGpt2))
    return bad(fmt::format("activation or biases are not those of {}", name_of(c.family).model_type));
  return {};
}

Result<ModelConfig> read_model_config(const fs::path& dir) {
  const std::string where = (dir / "config.json").string();
  PLAIT_TRY(const std::string text, read_file(where));
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return make_error(ErrorCode::kIo, "model.config", "{}: not a JSON object", where);
  KeyReader keys(json, where);
  const std::string type = keys.text("model_type", "");
  const auto* family =
      std::find_if(kFamilies.begin(), kFamilies.end(), [&](const FamilyName& f) { return f.model_type == type; });
  if (keys.error()) return *keys.error();
  if (family == kFamilies.end())
    return make_error(ErrorCode::kUnsupported, "model.model_type",
                      "{}: model_type is \"{}\"; llama, mistral, qwen2 and gpt2 are supported", where, type);
  ModelConfig config =
      family->family == ModelFamily::kGpt2 ? read_gpt2(keys) : read_llama_like(keys, where, family->family);
  if (keys.has("quantization_config"))
    keys.refuse("model.quantization_config", "quantization_config is set; quantised weights are not supported");
  if (keys.error()) return *keys.error();
  if (auto checked = check_model_config(config); !checked)
    return make_error(ErrorCode::kIo, "model.config", "{}: {}", where, checked.error().message);
  return config;
}

std::string model_config_json(const ModelConfig& config) {
  Json json = config.family == ModelFamily::kGpt2 ? gpt2_json(config) : llama_like_json(config);
  const FamilyName& family = name_of(config.family);
  json["architectures"] = {std::string(family.architecture)};
  json["bos_token_id"] = nullptr;  // not known here; the classes' defaults may lie beyond the vocabulary
  json["eos_token_id"] = nullptr;
  json["initializer_range"] = config.initializer_range;
  json["model_type"] = std::string(family.model_type);
  json["tie_word_embeddings"] = config.tied_head;
  json["vocab_size"] = config.vocab_size;
  return json.dump(2) + "\n";
}

}  // namespace plait
