#include "plait/sim/model_json.h"

#include "plait/base/files.h"
#include "plait/sim/named_data.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>

namespace plait {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// Reads whole numbers and keeps the first error.
class Sizes {
 public:
  explicit Sizes(const Json& json) : json_(json) {}

  [[nodiscard]] bool has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }

  std::int64_t at(const char* key) {
    const bool fits = has(key) && json_[key].is_number_integer() && json_[key].get<std::int64_t>() > 0;
    if (fits) return json_[key].get<std::int64_t>();
    if (!error_)
      error_ = make_error(ErrorCode::kIo, "model.config", "config.json: {} is {}, expected a positive whole number",
                          key, has(key) ? json_[key].dump() : "missing");
    return 1;
  }
  std::int64_t at_or(const char* key, std::int64_t otherwise) { return has(key) ? at(key) : otherwise; }

  [[nodiscard]] bool is_set(const char* key, bool otherwise) const {
    return has(key) && json_[key].is_boolean() ? json_[key].get<bool>() : otherwise;
  }
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

 private:
  const Json& json_;
  std::optional<Error> error_;
};

ModelShape gpt2(Sizes& sizes) {
  const std::int64_t hidden = sizes.at("n_embd");
  const std::int64_t heads = sizes.at("n_head");
  return {.layers = static_cast<int>(sizes.at("n_layer")),
          .hidden = hidden,
          .heads = heads,
          .kv_heads = heads,
          .head_dim = std::max<std::int64_t>(1, hidden / heads),
          .ffn = sizes.at_or("n_inner", 4 * hidden),
          .vocab = sizes.at("vocab_size"),
          .tokens = sizes.at("n_positions"),
          .mlp = MlpKind::kPlain,
          .positions = sizes.at("n_positions"),
          .tying = sizes.is_set("tie_word_embeddings", true) ? HeadTying::kTied : HeadTying::kUntied};
}

ModelShape llama(Sizes& sizes, std::string_view type) {
  const std::int64_t hidden = sizes.at("hidden_size");
  const std::int64_t heads = sizes.at("num_attention_heads");
  const bool biased = type == "qwen2" || sizes.is_set("attention_bias", false);
  return {.layers = static_cast<int>(sizes.at("num_hidden_layers")),
          .hidden = hidden,
          .heads = heads,
          .kv_heads = sizes.at_or("num_key_value_heads", heads),
          .head_dim = sizes.at_or("head_dim", std::max<std::int64_t>(1, hidden / heads)),
          .ffn = sizes.at("intermediate_size"),
          .vocab = sizes.at("vocab_size"),
          .tokens = sizes.at_or("max_position_embeddings", 2048),
          .mlp = MlpKind::kGated,
          .tying = sizes.is_set("tie_word_embeddings", false) ? HeadTying::kTied : HeadTying::kUntied,
          .qkv_bias = biased ? QkvBias::kAlways : QkvBias::kAsTheMlp};
}

/// "checkpoints/00000400/config.json" of the newest checkpoint of a run; empty where there is none.
std::string config_of_run(const std::string& folder) {
  std::string newest;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder + "/checkpoints", ignored)) {
    const std::string config = (entry.path() / "config.json").string();
    std::error_code missing;
    if (fs::exists(config, missing)) newest = std::max(newest, config);
  }
  return newest;
}

}  // namespace

Result<ModelShape> parse_model(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return make_error(ErrorCode::kIo, "model.config", "config.json: no JSON object");
  const auto type = json.find("model_type");
  const std::string name = type != json.end() && type->is_string() ? type->get<std::string>() : "";
  if (name != "gpt2" && name != "llama" && name != "mistral" && name != "qwen2")
    return make_error(ErrorCode::kUnsupported, "model.type",
                      "config.json: model_type is '{}'; expected llama, mistral, qwen2 or gpt2", name);
  Sizes sizes(json);
  ModelShape shape = name == "gpt2" ? gpt2(sizes) : llama(sizes, name);
  if (sizes.error()) return *sizes.error();
  shape.attention = AttentionKernel::kFlash;
  PLAIT_TRY_VOID(check_shape(shape));
  return shape;
}

Result<ModelShape> read_model(const std::string& where) {
  std::error_code ignored;
  std::string path = where;
  if (fs::is_directory(where, ignored)) {
    path = where + "/config.json";
    if (!fs::exists(path, ignored)) path = config_of_run(where);
    if (path.empty())
      return make_error(ErrorCode::kIo, "model.missing", "{}: neither a config.json nor a checkpoint with one", where);
  }
  PLAIT_TRY(const std::string text, read_named("model", path));
  return parse_model(text);
}

}  // namespace plait
