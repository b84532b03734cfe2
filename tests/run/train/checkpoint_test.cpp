#include "plait/run/train/checkpoint.h"

#include "plait/base/files.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace plait {
namespace {

namespace fs = std::filesystem;

Checkpoint example(std::int64_t step) {
  Checkpoint checkpoint{
      .state = {.step = step,
                .samples = 8 * step,
                .epoch = 1,
                .seed = 42,
                .shuffled = true,
                .data = {.num_rows = 100, .row_size = 17, .crc = 0xfedcba9876543210ULL},
                .optimizer = "adamw",
                .dtype = "fp32",
                .tokenizer = "bytes",
                .schedule = "any",
                .ranks = 3},
      .config = {.num_layers = 1, .hidden_size = 8, .ffn_size = 16, .num_heads = 2, .num_kv_heads = 1, .head_dim = 4}};
  double value = static_cast<double>(step);
  for (const ParameterSpec& spec : parameter_specs(checkpoint.config)) {
    ParameterState& state = checkpoint.parameters[spec.name];
    state.master = at::full(spec.shape, value, at::kFloat);
    state.moments["exp_avg"] = at::full(spec.shape, value + 0.25, at::kFloat);
    state.moments["exp_avg_sq"] = at::full(spec.shape, value + 0.5, at::kFloat);
    value += 1;
  }
  return checkpoint;
}

void expect_equal(const Checkpoint& result, const Checkpoint& expected) {
  EXPECT_EQ(result.state, expected.state);
  EXPECT_EQ(result.config, expected.config);
  ASSERT_EQ(result.parameters.size(), expected.parameters.size());
  for (const auto& [name, state] : expected.parameters) {
    ASSERT_TRUE(result.parameters.contains(name)) << name;
    const ParameterState& found = result.parameters.at(name);
    EXPECT_TRUE(at::equal(found.master, state.master)) << name;
    ASSERT_EQ(found.moments.size(), state.moments.size()) << name;
    for (const auto& [moment, tensor] : state.moments)
      EXPECT_TRUE(at::equal(found.moments.at(moment), tensor)) << name << moment;
  }
}

const std::vector<std::string> kFiles = {"config.json", "model.safetensors", "optimizer.safetensors", "state.json",
                                         "MANIFEST.json"};

class CheckpointTest : public testing::Test {
 protected:
  void expect_passed_over(const fs::path& older, const fs::path& damaged) const {
    const auto found = read_newest_checkpoint(run_);
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(found->path, older);
    EXPECT_THAT(found->note, testing::AllOf(testing::HasSubstr(damaged.string()), testing::HasSubstr(older.string())));
  }
  void SetUp() override { fs::remove_all(run_); }
  void TearDown() override { fs::remove_all(run_); }
  fs::path write(std::int64_t step, int keep = 2) const {
    const auto path = write_checkpoint(run_, example(step), {.keep = keep});
    EXPECT_TRUE(path) << path.error().message;
    return *path;
  }
  const fs::path run_ =
      fs::path(testing::TempDir()) /
      ("plait_checkpoint_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
};

TEST_F(CheckpointTest, ComesBackWhole) {
  const fs::path path = write(100);
  EXPECT_EQ(path, run_ / "checkpoints" / "step-000100");
  const auto result = read_checkpoint(path);
  ASSERT_TRUE(result) << result.error().message;
  expect_equal(*result, example(100));
}

TEST_F(CheckpointTest, TheNewestAreKept) {
  for (const std::int64_t step : {9, 10, 11, 100}) write(step, 3);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(run_ / "checkpoints")) names.push_back(entry.path().filename());
  EXPECT_THAT(names, testing::UnorderedElementsAre("step-000010", "step-000011", "step-000100"));
  EXPECT_EQ(read_newest_checkpoint(run_)->path, run_ / "checkpoints" / "step-000100");
}

TEST_F(CheckpointTest, WhatIsTornIsPassedOverWhateverFileItIs) {
  for (const std::string& file : kFiles) {
    fs::remove_all(run_);
    const fs::path older = write(1);
    const fs::path newer = write(2);
    fs::resize_file(newer / file, fs::file_size(newer / file) / 2);
    expect_passed_over(older, newer / file);
    fs::remove(newer / file);
    expect_passed_over(older, newer / file);
  }
}

// Over the bytes of all files together, so that large files are hit more often.
class Damaged : public CheckpointTest, public testing::WithParamInterface<bool> {};

TEST_P(Damaged, AnywhereIsFoundAndTheOneBeforeIsUsed) {
  const auto seed = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  const fs::path older = write(1);
  const fs::path newer = write(2);
  std::vector<std::pair<fs::path, std::uint64_t>> bytes;  // every one of all files
  for (const std::string& file : kFiles)
    for (std::uint64_t at = 0; at < fs::file_size(newer / file); ++at) bytes.emplace_back(newer / file, at);
  for (int i = 0; i < 50; ++i) {
    const auto& [file, at] = bytes[random() % bytes.size()];
    const unsigned bit = random() % 8;
    SCOPED_TRACE(file.string() + ", byte " + std::to_string(at) + ", bit " + std::to_string(bit));
    const std::string good = *read_file(file.string());
    std::string bad = good;
    if (GetParam())
      bad.resize(at);
    else
      bad[at] = static_cast<char>(static_cast<unsigned char>(bad[at]) ^ (1U << bit));
    ASSERT_TRUE(write_file(file.string(), bad));
    expect_passed_over(older, file);
    ASSERT_TRUE(write_file(file.string(), good));
  }
  EXPECT_EQ(read_newest_checkpoint(run_)->path, newer);
}

INSTANTIATE_TEST_SUITE_P(By, Damaged, testing::Values(true, false),
                         [](const auto& which) { return which.param ? "CuttingItShort" : "FlippingABit"; });

TEST_F(CheckpointTest, WithoutOneThatIsIntactAllAreNamed) {
  for (const std::int64_t step : {1, 2}) fs::resize_file(write(step) / "state.json", 3);
  const auto result = read_newest_checkpoint(run_);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().rule, "checkpoint.damaged");
  for (const char* path : {"step-000001/state.json", "step-000002/state.json"})
    EXPECT_THAT(result.error().message, testing::HasSubstr(path));
}

TEST_F(CheckpointTest, ARunWithoutAnyHasNone) {
  const auto result = read_newest_checkpoint(run_);
  ASSERT_TRUE(result);
  EXPECT_FALSE(result->checkpoint);
}

// A run that goes on from step 1 and writes step 2 must not lose that for the sake of a damaged step 3.
TEST_F(CheckpointTest, ADamagedOneOfALaterStepDoesNotCountAmongThoseToKeep) {
  write(1, 1);
  const fs::path damaged = write(3, 0);
  fs::resize_file(damaged / "state.json", 3);
  const fs::path path = write(2, 1);
  EXPECT_EQ(read_newest_checkpoint(run_)->path, path);
  EXPECT_TRUE(fs::exists(damaged));
  EXPECT_FALSE(fs::exists(run_ / "checkpoints" / "step-000001"));
}

TEST_F(CheckpointTest, OneOfTheSameStepIsReplaced) {
  const fs::path path = write(1);
  fs::resize_file(path / "model.safetensors", 10);
  EXPECT_EQ(write(1), path);
  const auto result = read_checkpoint(path);
  ASSERT_TRUE(result) << result.error().message;
  expect_equal(*result, example(1));
}

TEST_F(CheckpointTest, TemporariesAreIgnoredAndRemoved) {
  const fs::path path = write(1);
  fs::create_directories(run_ / "checkpoints" / ".tmp-step-000002");
  fs::create_directories(run_ / "checkpoints" / "step-x");
  const auto found = read_newest_checkpoint(run_);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->path, path);
  EXPECT_EQ(found->note, "");
  ASSERT_TRUE(remove_temporaries(run_));
  EXPECT_FALSE(fs::exists(run_ / "checkpoints" / ".tmp-step-000002"));
  EXPECT_TRUE(fs::exists(path));
}

TEST_F(CheckpointTest, AFlippedBitIsFoundInEveryFile) {
  const fs::path path = write(1);
  for (const std::string& file : kFiles) {
    const std::string good = *read_file((path / file).string());
    std::string bad = good;
    bad[bad.size() / 2] = static_cast<char>(bad[bad.size() / 2] ^ 4);
    ASSERT_TRUE(write_file((path / file).string(), bad));
    const auto result = read_checkpoint(path);
    ASSERT_FALSE(result) << file;
    EXPECT_EQ(result.error().rule, "checkpoint.damaged") << file;
    EXPECT_THAT(result.error().message, testing::HasSubstr(file));
    ASSERT_TRUE(write_file((path / file).string(), good));
  }
  EXPECT_TRUE(read_checkpoint(path));
}

TEST_F(CheckpointTest, NothingThatIsNotFiniteIsWritten) {
  for (const double value : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    Checkpoint checkpoint = example(1);
    checkpoint.parameters["model.norm.weight"].moments["exp_avg_sq"].fill_(value);
    const auto result = write_checkpoint(run_, checkpoint, {});
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().rule, "checkpoint.not_finite");
    EXPECT_THAT(result.error().message, testing::HasSubstr("model.norm.weight.exp_avg_sq"));
    EXPECT_FALSE(fs::exists(run_ / "checkpoints"));
  }
}

TEST_F(CheckpointTest, TheSpaceItTakesIsKnownBefore) {
  std::uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(write(1))) bytes += entry.file_size();
  const std::uint64_t expected = checkpoint_bytes(example(1).config, ComputeType::kFloat32, OptimizerKind::kAdamW);
  EXPECT_LE(bytes, expected);
  EXPECT_GT(2 * bytes, expected / 4);
}

}  // namespace
}  // namespace plait
