#include "plait/run/model/config.h"

#include "plait/base/files.h"

#include "support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace plait::test {
namespace {

using Json = nlohmann::json;

// Keys as transformers 5 writes them, and some that do not matter.
Json base_config(const std::string& type) {
  if (type == "gpt2")
    return Json::parse(R"({"activation_function":"gelu_new","add_cross_attention":false,"attn_pdrop":0,"embd_pdrop":0,
      "initializer_range":0.02,"layer_norm_epsilon":1e-05,"model_type":"gpt2","n_embd":32,"n_head":4,"n_inner":null,
      "n_layer":4,"n_positions":64,"reorder_and_upcast_attn":false,"resid_pdrop":0,
      "scale_attn_by_inverse_layer_idx":false,"scale_attn_weights":true,"summary_first_dropout":0.1,
      "summary_use_proj":true,"tie_word_embeddings":true,"use_cache":true,"vocab_size":97})");
  Json json = Json::parse(R"({"attention_dropout":0.0,"bos_token_id":1,"hidden_act":"silu","hidden_size":32,
      "initializer_range":0.02,"intermediate_size":88,"max_position_embeddings":64,"num_attention_heads":4,
      "num_hidden_layers":3,"num_key_value_heads":2,"rms_norm_eps":1e-06,
      "rope_parameters":{"rope_theta":20000.0,"rope_type":"default"},"tie_word_embeddings":false,"vocab_size":97})");
  json["model_type"] = type;
  if (type == "mistral") json["sliding_window"] = nullptr;
  if (type == "qwen2") json.update({{"use_sliding_window", false}, {"max_window_layers", 28}, {"sliding_window", 16}});
  if (type == "llama") json.update({{"attention_bias", false}, {"mlp_bias", false}, {"pretraining_tp", 1}});
  return json;
}

Result<ModelConfig> read(const Json& json) {
  const TemporaryFolder folder;
  EXPECT_TRUE(write_file((folder.path() / "config.json").string(), json.dump()));
  return read_model_config(folder.path());
}

/// The base config of a family with some keys changed; null removes the key.
Json with(const std::string& type, const Json& changes) {
  Json json = base_config(type);
  for (const auto& [key, value] : changes.items()) {
    if (value == "absent") {
      json.erase(key);
    } else {
      json[key] = value;
    }
  }
  return json;
}

TEST(ModelConfig, ReadsTheFamilies) {
  ModelConfig llama{.family = ModelFamily::kLlama,
                    .num_layers = 3,
                    .hidden_size = 32,
                    .ffn_size = 88,
                    .num_heads = 4,
                    .num_kv_heads = 2,
                    .head_dim = 8,
                    .vocab_size = 97,
                    .max_positions = 64,
                    .norm_eps = 1e-6,
                    .rope_theta = 20000.0};
  EXPECT_EQ(read(base_config("llama")).value(), llama);
  llama.family = ModelFamily::kMistral;
  EXPECT_EQ(read(base_config("mistral")).value(), llama);
  llama.family = ModelFamily::kQwen2;
  llama.attention_bias = true;
  EXPECT_EQ(read(base_config("qwen2")).value(), llama);
  const ModelConfig gpt2{.family = ModelFamily::kGpt2,
                         .num_layers = 4,
                         .hidden_size = 32,
                         .ffn_size = 128,
                         .num_heads = 4,
                         .num_kv_heads = 4,
                         .head_dim = 8,
                         .vocab_size = 97,
                         .max_positions = 64,
                         .norm_eps = 1e-5,
                         .activation = Activation::kGeluTanh,
                         .tied_head = true,
                         .attention_bias = true};
  EXPECT_EQ(read(base_config("gpt2")).value(), gpt2);
}

TEST(ModelConfig, AcceptsOldAndNewKeys) {
  const auto changed = [](const std::string& type, const Json& changes, auto&& change) {
    ModelConfig expected = read(base_config(type)).value();
    change(expected);
    EXPECT_EQ(read(with(type, changes)).value(), expected) << changes;
  };
  const Json llama3{{"rope_type", "llama3"},
                    {"factor", 8.0},
                    {"low_freq_factor", 1.0},
                    {"high_freq_factor", 4.0},
                    {"original_max_position_embeddings", 8192}};
  changed("llama", {{"rope_parameters", "absent"}, {"rope_theta", 5e5}}, [](ModelConfig& c) { c.rope_theta = 5e5; });
  changed("llama", {{"rope_parameters", "absent"}}, [](ModelConfig& c) { c.rope_theta = 1e4; });
  changed("llama", {{"rope_parameters", "absent"}, {"rope_theta", 5e5}, {"rope_scaling", nullptr}},
          [](ModelConfig& c) { c.rope_theta = 5e5; });
  changed("llama", {{"rope_parameters", "absent"}, {"rope_theta", 5e5}, {"rope_scaling", llama3}}, [](ModelConfig& c) {
    c.rope_theta = 5e5;
    c.rope_scaling = Llama3RopeScaling{};
  });
  Json old_type = llama3;
  old_type["type"] = old_type["rope_type"];
  old_type.erase("rope_type");
  changed("llama", {{"rope_parameters", old_type}}, [](ModelConfig& c) {
    c.rope_theta = 1e4;
    c.rope_scaling = Llama3RopeScaling{};
  });
  changed("llama", {{"num_key_value_heads", "absent"}}, [](ModelConfig& c) { c.num_kv_heads = 4; });
  changed("llama", {{"head_dim", 24}}, [](ModelConfig& c) { c.head_dim = 24; });
  changed("llama", {{"head_dim", nullptr}}, [](ModelConfig&) {});
  changed("llama", {{"tie_word_embeddings", true}}, [](ModelConfig& c) { c.tied_head = true; });
  changed("llama", {{"hidden_act", "swish"}, {"anything", {1, 2}}}, [](ModelConfig&) {});
  changed("mistral", {{"sliding_window", 64}}, [](ModelConfig&) {});  // as long as the longest sequence
  changed("gpt2", {{"n_inner", 50}}, [](ModelConfig& c) { c.ffn_size = 50; });
  changed("gpt2", {{"activation_function", "gelu_pytorch_tanh"}}, [](ModelConfig&) {});
  changed("gpt2", {{"tie_word_embeddings", "absent"}}, [](ModelConfig&) {});
  changed("gpt2", {{"tie_word_embeddings", false}}, [](ModelConfig& c) { c.tied_head = false; });
}

TEST(ModelConfig, WrittenKeysAreReadBack) {
  for (const ModelFamily family :
       {ModelFamily::kLlama, ModelFamily::kMistral, ModelFamily::kQwen2, ModelFamily::kGpt2}) {
    ModelConfig config = tiny_config(family);
    config.norm_eps = 3e-6;
    config.initializer_range = 0.03;
    if (family != ModelFamily::kGpt2) config.rope_theta = 12345.0;
    EXPECT_EQ(read(Json::parse(model_config_json(config))).value(), config);
    config.tied_head = !config.tied_head;
    EXPECT_EQ(read(Json::parse(model_config_json(config))).value(), config);
  }
}

struct RefusedCase {
  const char* type;
  Json changes;
  ErrorCode code;
  const char* rule;
  const char* says;  ///< the key and what it is
};

std::vector<RefusedCase> refused_cases() {
  const auto unsupported = ErrorCode::kUnsupported;
  const auto io = ErrorCode::kIo;
  return {
      {"llama", {{"model_type", "bert"}}, unsupported, "model.model_type", "model_type is \"bert\""},
      {"llama", {{"model_type", "absent"}}, unsupported, "model.model_type", "model_type is \"\""},
      {"llama", {{"attention_dropout", 0.1}}, unsupported, "model.dropout", "attention_dropout is 0.1"},
      {"gpt2", {{"attn_pdrop", 0.1}}, unsupported, "model.dropout", "attn_pdrop is 0.1"},
      {"gpt2", {{"embd_pdrop", 0.2}}, unsupported, "model.dropout", "embd_pdrop is 0.2"},
      {"gpt2", {{"resid_pdrop", 1}}, unsupported, "model.dropout", "resid_pdrop is 1"},
      {"gpt2", {{"resid_pdrop", "absent"}}, unsupported, "model.dropout", "resid_pdrop is 0.1 (transformers' default"},
      {"mistral", {{"sliding_window", 63}}, unsupported, "model.sliding_window", "sliding_window is 63"},
      {"mistral",
       {{"sliding_window", "absent"}, {"max_position_embeddings", 8192}},
       unsupported,
       "model.sliding_window",
       "sliding_window is 4096 (transformers' default"},
      {"qwen2", {{"use_sliding_window", true}}, unsupported, "model.sliding_window", "use_sliding_window is true"},
      {"qwen2",
       {{"layer_types", {"full_attention", "sliding_attention"}}},
       unsupported,
       "model.sliding_window",
       "layer_types holds \"sliding_attention\""},
      {"llama", {{"attention_bias", true}}, unsupported, "model.attention_bias", "attention_bias is true"},
      {"llama", {{"mlp_bias", true}}, unsupported, "model.mlp_bias", "mlp_bias is true"},
      {"llama", {{"hidden_act", "relu"}}, unsupported, "model.activation", "hidden_act is \"relu\""},
      {"gpt2", {{"activation_function", "gelu"}}, unsupported, "model.activation", "activation_function is \"gelu\""},
      {"llama",
       {{"rope_parameters", {{"rope_type", "yarn"}}}},
       unsupported,
       "model.rope_type",
       "rope_type is \"yarn\""},
      {"llama",
       {{"rope_parameters", "absent"}, {"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}},
       unsupported,
       "model.rope_type",
       "rope_scaling: rope_type is \"linear\""},
      {"llama",
       {{"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}}},
       unsupported,
       "model.rope_type",
       "partial_rotary_factor"},
      {"llama",
       {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}},
       unsupported,
       "model.rope_type",
       "full_attention is an object"},
      {"llama", {{"pretraining_tp", 2}}, unsupported, "model.pretraining_tp", "pretraining_tp"},
      {"llama",
       {{"quantization_config", {{"bits", 4}}}},
       unsupported,
       "model.quantization_config",
       "quantization_config"},
      {"gpt2", {{"scale_attn_weights", false}}, unsupported, "model.attention_scale", "scale_attn_weights is false"},
      {"gpt2",
       {{"scale_attn_by_inverse_layer_idx", true}},
       unsupported,
       "model.attention_scale",
       "scale_attn_by_inverse_layer_idx is true"},
      {"gpt2",
       {{"reorder_and_upcast_attn", true}},
       unsupported,
       "model.attention_scale",
       "reorder_and_upcast_attn is true"},
      {"gpt2", {{"add_cross_attention", true}}, unsupported, "model.cross_attention", "add_cross_attention is true"},
      {"llama", {{"hidden_size", "absent"}}, io, "model.config", "hidden_size is missing, expected a positive integer"},
      {"llama", {{"hidden_size", 0}}, io, "model.config", "hidden_size is 0, expected a positive integer"},
      {"llama", {{"hidden_size", 32.5}}, io, "model.config", "hidden_size is 32.5"},
      {"llama", {{"vocab_size", 18446744073709551615ULL}}, io, "model.config", "vocab_size is 18446744073709551615"},
      {"llama", {{"num_hidden_layers", -1}}, io, "model.config", "num_hidden_layers is -1"},
      {"llama", {{"num_hidden_layers", "4"}}, io, "model.config", "num_hidden_layers is \"4\""},
      {"llama", {{"tie_word_embeddings", 1}}, io, "model.config", "tie_word_embeddings is 1, expected true or false"},
      {"llama", {{"rms_norm_eps", 0}}, io, "model.config", "rms_norm_eps is 0, expected a number above 0"},
      {"llama", {{"hidden_size", 33}}, io, "model.config", "hidden_size is 33, expected a multiple"},
      {"llama", {{"num_key_value_heads", 3}}, io, "model.config", "4 heads cannot share 3"},
      {"llama", {{"head_dim", 7}}, io, "model.config", "head size 7 is odd"},
      {"llama", {{"rope_parameters", {{"rope_type", "llama3"}}}}, io, "model.config", "factor is missing"},
      {"llama", {{"rope_parameters", 3}}, io, "model.config", "rope_parameters is 3, expected an object"},
      {"gpt2", {{"n_embd", 30}}, io, "model.config", "n_embd is 30, expected a multiple of n_head"},
  };
}

TEST(ModelConfig, RefusesByName) {
  for (const RefusedCase& refused : refused_cases()) {
    SCOPED_TRACE(refused.changes.dump());
    const auto result = read(with(refused.type, refused.changes));
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, refused.code) << result.error().message;
    EXPECT_EQ(result.error().rule, refused.rule) << result.error().message;
    EXPECT_THAT(result.error().message,
                testing::AllOf(testing::HasSubstr("config.json"), testing::HasSubstr(refused.says)));
  }
}

TEST(ModelConfig, MissingOrTornFilesAreErrors) {
  const TemporaryFolder folder;
  EXPECT_EQ(read_model_config(folder.path()).error().rule, "io.read");
  for (const char* text : {"", "{", "[1]", "null", "\xff\xfe"}) {
    ASSERT_TRUE(write_file((folder.path() / "config.json").string(), text));
    const auto result = read_model_config(folder.path());
    ASSERT_FALSE(result) << text;
    EXPECT_EQ(result.error().rule, "model.config");
  }
}

TEST(ModelConfig, ShapesMustFit) {
  ModelConfig config = tiny_config(ModelFamily::kLlama);
  EXPECT_TRUE(check_model_config(config));
  config.num_kv_heads = 3;
  EXPECT_EQ(check_model_config(config).error().rule, "model.shape");
  config = tiny_config(ModelFamily::kGpt2);
  EXPECT_TRUE(check_model_config(config));
  config.head_dim = 4;
  EXPECT_FALSE(check_model_config(config));
}

}  // namespace
}  // namespace plait::test
