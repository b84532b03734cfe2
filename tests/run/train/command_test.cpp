#include "plait/ir/text.h"

#include "run_command.h"
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace plait::test {
namespace {

using testing::HasSubstr;

std::set<std::string> keys(const nlohmann::json& object) {
  std::set<std::string> names;
  for (const auto& [key, value] : object.items()) names.insert(key);
  return names;
}

/// Ops of the run's program.plait as "rank:name", rank by rank in row order.
std::vector<std::string> program_ops(const std::filesystem::path& run) {
  const auto parsed = parse_text(slurp(run / "program.plait"), "program.plait");
  const auto& program = std::get<Program>(*parsed);
  std::vector<std::string> ops;
  for (std::size_t rank = 0; rank < program.rows.size(); ++rank)
    for (const Instr& instr : program.rows[rank])
      if (const Op* op = std::get_if<Op>(&instr))
        ops.push_back(fmt::format("{}:{}{}{}", rank, op->stage.value(), to_string(op->kind), op->microbatch.value()));
  return ops;
}

TEST(TrainCommand, LeavesMetricsTraceProgramAndCheckpoint) {
  const TestFolder folder;
  spill(folder / "text", sample_text(4000));
  const CommandResult result =
      run_command(tiny_run(folder / "text", folder / "run") + std::vector<std::string>{"--steps", "5"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto lines = metrics_of(folder / "run");
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_EQ(keys(lines[0]),
            (std::set<std::string>{"step", "loss", "grad_norm", "lr", "tokens", "tokens_per_s", "step_s", "peak_bytes",
                                   "bytes_moved", "moved_by_kind", "samples", "epoch"}));
  EXPECT_EQ(lines[0].at("tokens"), 4 * 2 * 16);
  EXPECT_EQ(lines[0].at("peak_bytes").size(), 2U);
  EXPECT_NEAR(lines[0].at("loss").get<double>(), std::log(256.0), 0.1);
  EXPECT_THAT(column(lines, "lr"), testing::Pointwise(testing::DoubleNear(1e-15), {0.005, 0.01, 0.01, 0.0075, 0.0025}));
  EXPECT_TRUE(lines[4].contains("val_loss"));

  const auto trace = nlohmann::json::parse(slurp(folder / "run" / "trace.json"));
  std::vector<std::string> traced;
  for (const auto& op : trace.at("ops")) {
    traced.push_back(std::to_string(op.at("rank").get<int>()) + ":" + op.at("op").get<std::string>());
    EXPECT_LE(op.at("start").get<std::int64_t>(), op.at("end").get<std::int64_t>());
  }
  EXPECT_EQ(traced, program_ops(folder / "run"));
  for (const auto& bytes : trace.at("bytes_moved")) EXPECT_GT(bytes.get<std::int64_t>(), 0);

  EXPECT_TRUE(std::filesystem::exists(folder / "run" / "checkpoints" / "step-000005" / "model.safetensors"));
  for (const char* word : {"validation loss", "tokens/s", "bubble", "peak memory", "rank 1", "step-000005"})
    EXPECT_THAT(result.out, HasSubstr(word));
  EXPECT_THAT(result.err, HasSubstr("step     5/5"));
}

TEST(TrainCommand, WithoutAScheduleRunsHelixPipeAndComparesItWith1F1B) {
  const TestFolder folder;
  spill(folder / "text", sample_text(4000));
  const auto schedule_of = [&](const std::string& name, const std::vector<std::string>& flags) {
    const CommandResult result = run_command(tiny_run(folder / "text", folder / name) +
                                             std::vector<std::string>{"--steps", "2", "--format", "json"} + flags);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::vector<std::string> names = {nlohmann::json::parse(slurp(folder / name / "trace.json")).at("schedule")};
    const auto report = nlohmann::json::parse(result.out);
    if (!report.contains("comparison")) return names;
    for (const auto& row : report.at("comparison")) {
      names.push_back(row.at("schedule"));
      EXPECT_GT(row.at("step_s"), 0);
      EXPECT_GT(row.at("bytes_moved"), 0);
      EXPECT_EQ(row.at("peak_bytes").size(), 2U);
    }
    return names;
  };
  EXPECT_EQ(schedule_of("two", {}), (std::vector<std::string>{"helixpipe", "helixpipe", "1f1b"}));
  EXPECT_EQ(schedule_of("six", {"--microbatches", "6"}), (std::vector<std::string>{"helixpipe", "helixpipe", "1f1b"}));
  EXPECT_EQ(schedule_of("three", {"--microbatches", "3"}), (std::vector<std::string>{"1f1b"}));
  EXPECT_EQ(schedule_of("given", {"--schedule", "gpipe"}), (std::vector<std::string>{"gpipe"}));
  EXPECT_EQ(schedule_of("asked", {"--schedule", "gpipe", "--compare", "zb-h1"}),
            (std::vector<std::string>{"gpipe", "gpipe", "zb-h1"}));
}

// Compared steps come behind the checkpoint and learn nothing.
TEST(TrainCommand, AComparisonChangesNothing) {
  const TestFolder folder;
  spill(folder / "text", sample_text(4000));
  for (const std::string other : {"none", "1f1b"}) {
    const CommandResult result =
        run_command(tiny_run(folder / "text", folder / other) +
                    std::vector<std::string>{"--steps", "3", "--schedule", "gpipe", "--compare", other});
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  EXPECT_EQ(column(metrics_of(folder / "none"), "loss"), column(metrics_of(folder / "1f1b"), "loss"));
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_EQ(slurp(folder / "none/checkpoints/step-000003" / file),
              slurp(folder / "1f1b/checkpoints/step-000003" / file));
}

TEST(TrainCommand, RecomputesAndChunksAsAskedWithTheSameLosses) {
  const TestFolder folder;
  spill(folder / "text", sample_text(4000));
  const auto losses = [&](const std::string& name, const std::vector<std::string>& flags) {
    const CommandResult result = run_command(tiny_run(folder / "text", folder / name) +
                                             std::vector<std::string>{"--steps", "3", "--dtype", "fp64"} + flags);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return column(metrics_of(folder / name), "loss");
  };
  const auto plain = losses("plain", {});
  for (const std::string recompute : {"full", "no-attention"})
    EXPECT_THAT(losses(recompute, {"--recompute", recompute, "--mlp-chunk", "5", "--loss-chunk", "7"}),
                testing::Pointwise(testing::DoubleNear(1e-10), plain));
  const std::vector<std::string> ops = program_ops(folder / "no-attention");
  EXPECT_THAT(ops, testing::IsSupersetOf({"0:0R0", "1:1R0"}));
  const auto trace = nlohmann::json::parse(slurp(folder / "no-attention" / "trace.json"));
  std::vector<std::string> traced;
  for (const auto& op : trace.at("ops"))
    traced.push_back(std::to_string(op.at("rank").get<int>()) + ":" + op.at("op").get<std::string>());
  EXPECT_EQ(traced, ops);
}

TEST(TrainCommand, SameSeedSameBitsAnotherSeedOthers) {
  const TestFolder folder;
  spill(folder / "text", sample_text(4000));
  const auto losses = [&](const std::string& name, const std::string& seed) {
    const CommandResult result = run_command(tiny_run(folder / "text", folder / name) +
                                             std::vector<std::string>{"--steps", "6", "--seed", seed});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return column(metrics_of(folder / name), "loss");
  };
  const auto first = losses("a", "3");
  EXPECT_EQ(first, losses("b", "3"));
  EXPECT_NE(first, losses("c", "4"));
  EXPECT_EQ(slurp(folder / "a/checkpoints/step-000006/model.safetensors"),
            slurp(folder / "b/checkpoints/step-000006/model.safetensors"));
}

TEST(TrainCommand, OneAndTwoRanksAgreeOverFiftySteps) {
  const TestFolder folder;
  spill(folder / "text", sample_text(6000));
  const auto losses = [&](const std::string& name, const std::vector<std::string>& layout) {
    const CommandResult result =
        run_command(tiny_run(folder / "text", folder / name) + std::vector<std::string>{"--steps", "50"} + layout);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return column(metrics_of(folder / name), "loss");
  };
  const auto one = losses("one", {"--ranks", "1"});
  const auto two = losses("two", {"--ranks", "2"});
  const auto four = losses("four", {"--ranks", "4", "--schedule", "gpipe"});
  ASSERT_EQ(one.size(), 50U);
  EXPECT_LT(one.back(), 0.7 * one.front());
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(two[i], one[i], 1e-5 * one[i]) << "step " << i + 1;
    EXPECT_NEAR(four[i], one[i], 1e-5 * one[i]) << "step " << i + 1;
  }
}

// One valid target in the whole step: the loss is its own, however the rows are spread over micro-batches.
TEST(TrainCommand, MaskedTargetsDoNotCountAnywhere) {
  const TestFolder folder;
  spill(folder / "rows.json", R"({"tokens": [[1, 2, 3, 4], [5, 6, 7, 0]], "mask": [[0, 0, 1, 0], [0, 0, 0]]})");
  spill(folder / "one.json", R"({"tokens": [[1, 2, 3], [1, 2, 3]], "mask": [[0, 1], [0, 1]]})");
  const auto losses = [&](const std::string& rows, const std::string& name, const std::string& microbatches) {
    const CommandResult result = run_command({"train",
                                              "--tokens",
                                              (folder / rows).string(),
                                              "--vocab",
                                              "8",
                                              "--max-positions",
                                              "8",
                                              "--layers",
                                              "2",
                                              "--hidden",
                                              "8",
                                              "--heads",
                                              "2",
                                              "--no-shuffle",
                                              "--dtype",
                                              "fp64",
                                              "--microbatches",
                                              microbatches,
                                              "--microbatch-size",
                                              microbatches == "1" ? "2" : "1",
                                              "--steps",
                                              "3",
                                              "--out",
                                              (folder / name).string()});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return metrics_of(folder / name);
  };
  const auto spread = losses("rows.json", "spread", "2");
  EXPECT_EQ(spread.at(0).at("tokens"), 1);
  const auto together = losses("rows.json", "together", "1");
  const auto same = losses("one.json", "same", "2");
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(spread.at(i).at("loss").get<double>(), together.at(i).at("loss").get<double>(), 1e-12);
    EXPECT_NEAR(spread.at(i).at("loss").get<double>(), same.at(i).at("loss").get<double>(), 1e-12);
    EXPECT_NEAR(spread.at(i).at("grad_norm").get<double>(), same.at(i).at("grad_norm").get<double>(), 1e-12);
  }
}

TEST(TrainCommand, FlagGoesBeforeConfigFileGoesBeforeDefault) {
  const TestFolder folder;
  spill(folder / "config.json", R"({"steps": 7, "lr": 0.5, "no-shuffle": true, "ranks": 4})");
  const CommandResult result =
      run_command({"train", "--config", (folder / "config.json").string(), "--lr", "0.25", "--print-config"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto config = nlohmann::json::parse(result.out);
  EXPECT_EQ(config.at("lr"), 0.25);
  EXPECT_EQ(config.at("steps"), 7);
  EXPECT_EQ(config.at("no-shuffle"), true);
  EXPECT_EQ(config.at("ranks"), 4);
  EXPECT_EQ(config.at("beta2"), 0.95);
  spill(folder / "config.json", R"({"stepps": 7})");
  EXPECT_NE(run_command({"train", "--config", (folder / "config.json").string(), "--print-config"}).exit_code, 0);
}

TEST(EvalCommand, AgreesWithTheTrainersValidation) {
  const TestFolder folder;
  spill(folder / "text", sample_text(4000));
  const CommandResult trained =
      run_command(tiny_run(folder / "text", folder / "run") + std::vector<std::string>{"--steps", "5"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const CommandResult result =
      run_command({"eval", "--model", (folder / "run").string(), "--text", (folder / "text").string(), "--seq", "16",
                   "--last-fraction", "0.1", "--format", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto evaluation = nlohmann::json::parse(result.out);
  const double expected = metrics_of(folder / "run").back().at("val_loss").get<double>();
  EXPECT_NEAR(evaluation.at("loss").get<double>(), expected, 1e-5 * expected);
  EXPECT_NEAR(evaluation.at("perplexity").get<double>(), std::exp(expected), 1e-4 * std::exp(expected));
}

/// Trains until the text is known by heart, so that what greedy generation must say is known as well.
class GenerateCommand : public testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 200; ++i) text_ += "abcdefgh";
    spill(folder_ / "text", text_);
    const CommandResult result = run_command(tiny_run(folder_ / "text", folder_ / "run") +
                                             std::vector<std::string>{"--steps", "120", "--max-positions", "64"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    ASSERT_LT(metrics_of(folder_ / "run").back().at("loss").get<double>(), 0.2);
  }
  CommandResult generate(const std::vector<std::string>& flags) const {
    return run_command(std::vector<std::string>{"generate", "--model", (folder_ / "run").string()} + flags);
  }
  const TestFolder folder_;
  std::string text_;
};

TEST_F(GenerateCommand, GreedyContinuesTheText) {
  const CommandResult result = generate({"--prompt", "abcdefghabc", "--max-new-tokens", "5"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "abcdefghabcdefgh\n");
  EXPECT_EQ(generate({"--prompt-tokens", "97,98,99,100", "--max-new-tokens", "3"}).out, "101,102,103\n");
}

TEST_F(GenerateCommand, TopOneIsGreedyAndTheSeedDecides) {
  const std::vector<std::string> hot = {"--prompt", "abcdefgh", "--max-new-tokens", "30", "--temperature", "20"};
  EXPECT_EQ(generate(hot + std::vector<std::string>{"--top-k", "1"}).out,
            generate({"--prompt", "abcdefgh", "--max-new-tokens", "30"}).out);
  const auto drawn = [&](const std::string& seed) {
    return generate(hot + std::vector<std::string>{"--seed", seed}).out;
  };
  EXPECT_EQ(drawn("1"), drawn("1"));
  EXPECT_NE(drawn("1"), drawn("2"));
}

TEST_F(GenerateCommand, WhatDoesNotFitThePositionsIsRefused) {
  const CommandResult result = generate({"--prompt", std::string(60, 'a'), "--max-new-tokens", "5"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("at most 4 new tokens fit"));
  EXPECT_EQ(generate({"--prompt", std::string(60, 'a'), "--max-new-tokens", "4"}).exit_code, 0);
  const CommandResult longer = generate({"--prompt", std::string(65, 'a')});
  EXPECT_EQ(longer.exit_code, 2);
  EXPECT_THAT(longer.err, HasSubstr("the prompt alone is too long"));
}

}  // namespace
}  // namespace plait::test
