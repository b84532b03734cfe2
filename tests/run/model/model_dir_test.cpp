#include "plait/run/hf/model_dir.h"

#include "plait/base/files.h"
#include "plait/run/hf/safetensors.h"

#include "support.h"
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <limits>
#include <set>

namespace plait::test {
namespace {

namespace fs = std::filesystem;

TensorMap random_weights(const ModelConfig& config, ComputeType type = ComputeType::kFloat32) {
  ParameterSet parameters = ParameterSet::create(config, all_parts(config), type);
  randomize(parameters, 5);
  TensorMap weights;
  for (const auto& [name, parameter] : parameters.by_name()) weights.emplace(name, parameter.master.clone());
  return weights;
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

void expect_equal(const TensorMap& result, const TensorMap& expected) {
  ASSERT_EQ(result.size(), expected.size());
  for (const auto& [name, tensor] : expected) EXPECT_TRUE(result.at(name).equal(tensor)) << name;
}

TEST(ModelDir, WhatIsWrittenIsRead) {
  for (const ModelFamily family : {ModelFamily::kLlama, ModelFamily::kMistral, ModelFamily::kQwen2, ModelFamily::kGpt2})
    for (const ComputeType type : {ComputeType::kFloat32, ComputeType::kFloat64}) {
      const TemporaryFolder folder;
      const ModelConfig config = tiny_config(family);
      const TensorMap weights = random_weights(config, type);
      ASSERT_TRUE(write_model_dir(folder.path() / "deep" / "model", config, weights));
      const fs::path dir = folder.path() / "deep" / "model";
      EXPECT_EQ(names_in(dir), (std::set<std::string>{"config.json", "model.safetensors"}));
      EXPECT_EQ(read_model_config(dir).value(), config);
      expect_equal(read_model_weights(dir, config).value(), weights);
      const auto json = nlohmann::json::parse(read_file((dir / "config.json").string()).value());
      EXPECT_EQ(json["dtype"], type == ComputeType::kFloat64 ? "float64" : "float32");
    }
}

TEST(ModelDir, TensorsAreStoredInTheTypeAskedFor) {
  const TemporaryFolder folder;
  const ModelConfig config = tiny_config(ModelFamily::kLlama);
  const TensorMap weights = random_weights(config);
  ASSERT_TRUE(write_model_dir(folder.path(), config, weights, {.type = at::kBFloat16}));
  const TensorMap read = read_model_weights(folder.path(), config).value();
  for (const auto& [name, tensor] : read) EXPECT_TRUE(tensor.equal(weights.at(name).to(at::kBFloat16))) << name;
}

TEST(ModelDir, LargeModelsAreSplit) {
  const TemporaryFolder folder;
  const ModelConfig config = tiny_config(ModelFamily::kQwen2);
  const TensorMap weights = random_weights(config);
  ASSERT_TRUE(write_model_dir(folder.path(), config, weights));  // its single file must not hide the shards
  constexpr std::uint64_t kLimit = 4000;
  ASSERT_TRUE(write_model_dir(folder.path(), config, weights, {.type = {}, .max_shard_bytes = kLimit}));
  const std::set<std::string> names = names_in(folder.path());
  EXPECT_TRUE(names.contains("model.safetensors.index.json"));
  EXPECT_TRUE(names.contains("model-00001-of-00003.safetensors"));  // 9232 bytes in all
  EXPECT_EQ(names.size(), 5U);
  std::uint64_t total = 0;
  for (const std::string& name : names) {
    if (!name.ends_with(".safetensors")) continue;
    std::uint64_t bytes = 0;
    const TensorMap shard = read_safetensors(folder.path() / name).value();
    for (const auto& [tensor_name, tensor] : shard) bytes += tensor.nbytes();
    EXPECT_LE(bytes, kLimit);
    total += bytes;
  }
  const auto index =
      nlohmann::json::parse(read_file((folder.path() / "model.safetensors.index.json").string()).value());
  EXPECT_EQ(index["metadata"]["total_size"], total);
  expect_equal(read_model_weights(folder.path(), config).value(), weights);
  ASSERT_TRUE(write_model_dir(folder.path(), config, weights));
  EXPECT_FALSE(fs::exists(folder.path() / "model.safetensors.index.json"));
}

/// What reading says of a directory whose tensors were changed.
class ChangedWeights : public testing::Test {
 protected:
  Result<TensorMap> read(const ModelConfig& config, TensorMap weights) {
    EXPECT_TRUE(write_safetensors(folder_.path() / "model.safetensors", weights));
    return read_model_weights(folder_.path(), config);
  }
  TemporaryFolder folder_;
};

TEST_F(ChangedWeights, AllThatIsWrongIsNamed) {
  const ModelConfig config = tiny_config(ModelFamily::kLlama);
  TensorMap weights = random_weights(config);
  weights.erase("model.layers.1.self_attn.k_proj.weight");
  weights["model.layers.0.mlp.down_proj.weight"] = at::ones({12, 11});
  weights["model.layers.2.input_layernorm.weight"] = at::ones({12});
  const auto result = read(config, weights);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().rule, "weights.mismatch");
  EXPECT_THAT(result.error().message,
              testing::AllOf(testing::HasSubstr("model.layers.1.self_attn.k_proj.weight is missing"),
                             testing::HasSubstr("model.layers.0.mlp.down_proj.weight has shape [12, 11], config.json "
                                                "makes it [12, 10]"),
                             testing::HasSubstr("model.layers.2.input_layernorm.weight is unexpected")));
}

TEST_F(ChangedWeights, NaNAndInfinityAreNamed) {
  const ModelConfig config = tiny_config(ModelFamily::kQwen2);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    TensorMap weights = random_weights(config);
    weights.at("model.layers.1.self_attn.k_proj.bias")[3] = bad;
    const auto result = read(config, weights);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().rule, "weights.not_finite");
    EXPECT_THAT(result.error().message,
                testing::HasSubstr("model.layers.1.self_attn.k_proj.bias holds NaN or infinity"));
  }
}

TEST_F(ChangedWeights, Gpt2WithoutPrefixAndWithOldBuffers) {
  const ModelConfig config = tiny_config(ModelFamily::kGpt2);
  const TensorMap weights = random_weights(config);
  TensorMap bare;
  for (const auto& [name, tensor] : weights) bare.emplace(name.substr(std::string("transformer.").size()), tensor);
  bare.emplace("h.0.attn.bias", at::ones({1, 1, 32, 32}));
  bare.emplace("h.1.attn.masked_bias", at::ones({}));
  const auto result = read(config, bare);
  ASSERT_TRUE(result) << result.error().message;
  expect_equal(*result, weights);
  bare.emplace("transformer.wte.weight", weights.at("transformer.wte.weight"));
  EXPECT_EQ(read(config, bare).error().rule, "weights.duplicate");
}

TEST_F(ChangedWeights, ATiedHeadMayBeThereIfItIsTheTable) {
  const ModelConfig config = tiny_config(ModelFamily::kLlama);
  TensorMap weights = random_weights(config);
  const TensorMap expected = weights;
  weights["lm_head.weight"] = weights.at("model.embed_tokens.weight").clone();
  const auto result = read(config, weights);
  ASSERT_TRUE(result) << result.error().message;
  expect_equal(*result, expected);
  weights["lm_head.weight"][2][1] += 1;
  EXPECT_THAT(read(config, weights).error().message, testing::HasSubstr("lm_head.weight differs"));
}

TEST_F(ChangedWeights, AnUntiedHeadMustBeThere) {
  const ModelConfig config = tiny_config(ModelFamily::kMistral);
  TensorMap weights = random_weights(config);
  weights.erase("lm_head.weight");
  EXPECT_THAT(read(config, weights).error().message, testing::HasSubstr("lm_head.weight is missing"));
}

TEST(ModelDirIndex, DamageIsRefused) {
  const TemporaryFolder folder;
  const ModelConfig config = tiny_config(ModelFamily::kMistral);
  EXPECT_EQ(read_model_weights(folder.path(), config).error().rule, "weights.missing");
  ASSERT_TRUE(write_model_dir(folder.path(), config, random_weights(config), {.type = {}, .max_shard_bytes = 4000}));
  const std::string path = (folder.path() / "model.safetensors.index.json").string();
  const auto index = nlohmann::json::parse(read_file(path).value());
  const std::string norm = "model.norm.weight";
  const auto refused = [&](const nlohmann::json& shard, const char* says) {
    auto changed = index;
    changed["weight_map"][norm] = shard;
    ASSERT_TRUE(write_file(path, changed.dump()));
    const auto result = read_model_weights(folder.path(), config);
    ASSERT_FALSE(result) << shard;
    EXPECT_THAT(result.error().message, testing::HasSubstr(says));
  };
  refused("../model.safetensors", "no plain file name");
  refused("/etc/passwd", "no plain file name");
  refused("..", "no plain file name");
  refused("", "no plain file name");
  refused(3, "in no named file");
  refused("model-00001-of-00003.safetensors", "model.norm.weight should be in model-00001");
  refused("model-00009-of-00003.safetensors", "model-00009-of-00003.safetensors: cannot be read");
  ASSERT_TRUE(write_file(path, "{}"));
  EXPECT_EQ(read_model_weights(folder.path(), config).error().rule, "weights.index");
}

TEST(ModelDir, FailureLeavesNothing) {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "file";
  ASSERT_TRUE(write_file(file.string(), "x"));
  const ModelConfig config = tiny_config(ModelFamily::kMistral);
  const auto result = write_model_dir(file / "model", config, random_weights(config));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().rule, "io.write");
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"file"});
}

}  // namespace
}  // namespace plait::test
