// Checkpoints from the shares of ranks, written while the run goes on.

#include "plait/run/train/checkpoint_writer.h"

#include "tests/run/engine/engine_support.h"
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace plait::testing {
namespace {

namespace fs = std::filesystem;

class CheckpointWriterTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    fs::remove_all(run_);
    auto program = program_of(GetParam(), {.ranks = 4, .microbatches = 8, .layers = 8});
    ASSERT_TRUE(program) << program.error().message;
    engine_ = make_engine(*program, config_, {});
    step(1);
  }
  void TearDown() override { fs::remove_all(run_); }
  void step(std::uint64_t seed) {
    ASSERT_TRUE(engine_->train_step(make_data(8, 2, 9, config_.vocab_size, Mask::kNone, seed), 0.05));
  }
  static void expect_equal(const std::map<std::string, ParameterState>& result,
                           const std::map<std::string, ParameterState>& expected) {
    ASSERT_EQ(result.size(), expected.size());
    for (const auto& [name, state] : expected) {
      EXPECT_TRUE(at::equal(result.at(name).master, state.master)) << name;
      ASSERT_EQ(result.at(name).moments.size(), 2U);
      for (const auto& [moment, tensor] : state.moments)
        EXPECT_TRUE(at::equal(result.at(name).moments.at(moment), tensor)) << name << moment;
    }
  }
  const fs::path run_ = fs::path(::testing::TempDir()) / ("plait_checkpoint_writer_" + std::to_string(::getpid()));
  const ModelConfig config_ = tiny_config(8, HeadTying::kUntied);
  const RunState state_{.step = 7, .data = {.num_rows = 10, .row_size = 9}, .optimizer = "adamw", .dtype = "fp32"};
  std::unique_ptr<Engine> engine_;
};

TEST_P(CheckpointWriterTest, HoldsTheStateOfItsBeginningThoughStepsFollow) {
  CheckpointWriter writer({.run = run_, .config = config_});
  const auto expected = engine_->save();
  ASSERT_TRUE(expected);
  engine_->copy_shares(writer.shares());
  ASSERT_TRUE(writer.begin(state_));
  EXPECT_TRUE(writer.is_busy());
  step(2);
  const auto path = writer.finish();
  ASSERT_TRUE(path) << path.error().message;
  EXPECT_FALSE(writer.is_busy());
  EXPECT_EQ(*path, run_ / "checkpoints" / "step-000007");
  const auto result = read_checkpoint(*path);
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_EQ(result->state, state_);
  expect_equal(result->parameters, *expected);
}

TEST_P(CheckpointWriterTest, TheTensorsOfTheCopyAreUsedAgain) {
  StateShares shares;
  engine_->copy_shares(shares);
  std::vector<const void*> places;
  for (const auto& share : shares)
    for (const HeldPart& held : share) places.push_back(held.part.const_data_ptr());
  step(2);
  engine_->copy_shares(shares);
  std::size_t next = 0;
  for (const auto& share : shares)
    for (const HeldPart& held : share) EXPECT_EQ(held.part.const_data_ptr(), places[next++]);
  EXPECT_EQ(next, places.size());
}

TEST_P(CheckpointWriterTest, WhatIsNotFinishedLeavesNothing) {
  {
    CheckpointWriter writer({.run = run_, .config = config_});
    engine_->copy_shares(writer.shares());
    ASSERT_TRUE(writer.begin(state_));
    EXPECT_TRUE(fs::exists(run_ / "checkpoints" / ".tmp-step-000007"));
  }
  EXPECT_FALSE(fs::exists(run_ / "checkpoints"));
}

INSTANTIATE_TEST_SUITE_P(Schedules, CheckpointWriterTest, ::testing::Values("1f1b", "chimera", "fsdp", "zero1"));

}  // namespace
}  // namespace plait::testing
