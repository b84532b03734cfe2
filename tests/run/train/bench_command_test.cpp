#include "run_command.h"
#include <gmock/gmock.h>

#include <map>
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

/// Two layers, three micro-batches: runs in a blink.
const std::vector<std::string> kSmall = {"--layers", "2",  "--hidden", "32", "--heads",        "4", "--ffn", "48",
                                         "--vocab",  "50", "--seq",    "24", "--microbatches", "3"};

nlohmann::json bench_step(const std::vector<std::string>& flags) {
  const CommandResult result =
      run_command(std::vector<std::string>{"bench", "step", "--format", "json", "--steps", "2"} + kSmall + flags);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return nlohmann::json::parse(result.out);
}

/// Calls of each kernel over all ranks.
std::map<std::string, int> kernel_counts(const nlohmann::json& report) {
  std::map<std::string, int> counts;
  for (const auto& rank : report.at("breakdown"))
    for (const auto& kernel : rank.at("kernels"))
      counts[kernel.at("kernel").get<std::string>()] += kernel.at("count").get<int>();
  return counts;
}

TEST(BenchStep, ReportsFiguresLossesAndEveryKernel) {
  const auto report = bench_step({});
  EXPECT_EQ(keys(report), (std::set<std::string>{"bench",
                                                 "machine",
                                                 "model",
                                                 "schedule",
                                                 "ranks",
                                                 "microbatches",
                                                 "microbatch_size",
                                                 "seq",
                                                 "dtype",
                                                 "seed",
                                                 "lr",
                                                 "warmup",
                                                 "steps",
                                                 "tokens_per_step",
                                                 "step_s",
                                                 "tokens_per_s",
                                                 "model_flops",
                                                 "flops_formula",
                                                 "gflops",
                                                 "gemm_gflops",
                                                 "gemm_gflops_from_memory",
                                                 "gemm_flops",
                                                 "share_of_gemm_rate",
                                                 "share_of_gemm_rate_weight_products",
                                                 "bubble_ratio",
                                                 "peak_bytes",
                                                 "peak_resident_bytes",
                                                 "losses",
                                                 "grad_norms",
                                                 "products",
                                                 "breakdown"}));
  EXPECT_EQ(report.at("tokens_per_step"), 3 * 24);
  EXPECT_EQ(report.at("losses").size(), 4U);  // warm-up, the recorded step, two timed ones
  EXPECT_EQ(report.at("step_s").at("each").size(), 2U);
  EXPECT_EQ(keys(report.at("tokens_per_s")), (std::set<std::string>{"median", "best", "worst", "spread"}));
  // 4 products a layer and the head's, each with two gradients.
  const auto counts = kernel_counts(report);
  for (const char* gemm : {"gemm", "gemm_input_grad", "gemm_weight_grad"})
    EXPECT_EQ(counts.at(gemm), 3 * (2 * 4 + 1)) << gemm;
  for (const char* attention : {"attention", "attention_grad"}) EXPECT_EQ(counts.at(attention), 3 * 2) << attention;
  EXPECT_EQ(counts.at("cross_entropy"), 3);
  EXPECT_EQ(counts.at("embedding"), 3);
  for (const char* once : {"zero_grads", "square_sum", "optimizer"}) EXPECT_GE(counts.at(once), 1) << once;
  // The products add up to all that is counted, and to what the formula says without attention.
  const double rows = 3 * 24;
  EXPECT_EQ(report.at("gemm_flops"), 6 * rows * (2 * (32 * 96 + 32 * 32 + 3 * 32 * 48) + 32 * 50));
  const auto& rank = report.at("breakdown").at(0);
  std::map<std::string, int> ops;
  for (const auto& instr : rank.at("instructions"))
    ops[instr.at("kind").get<std::string>()] = instr.at("count").get<int>();
  EXPECT_EQ(ops.at("F"), 3);
  EXPECT_EQ(ops.at("BW"), 3);
  EXPECT_GE(ops.at("step"), 1);
  std::set<std::string> parts;
  for (const auto& part : rank.at("parts"))
    parts.insert(part.at("part").get<std::string>() + " " + part.at("op").get<std::string>());
  EXPECT_EQ(parts, (std::set<std::string>{"embed F", "norm F", "qkv F", "attn F", "post F", "head F", "embed BW",
                                          "norm BW", "qkv BW", "attn BW", "post BW", "head BW"}));
  double sum = rank.at("begin_s").get<double>() + rank.at("waiting_s").get<double>();
  for (const auto& instr : rank.at("instructions")) sum += instr.at("time_s").get<double>();
  EXPECT_NEAR(sum, rank.at("step_s").get<double>(), 1e-8);
}

TEST(BenchStep, OtherSchedulesComputeTheSameLosses) {
  const auto one = bench_step({});
  const auto two = bench_step({"--schedule", "zb-h1", "--ranks", "2"});
  EXPECT_EQ(two.at("ranks"), 2);
  EXPECT_EQ(two.at("breakdown").size(), 2U);
  for (std::size_t i = 0; i < one.at("losses").size(); ++i)
    EXPECT_NEAR(one.at("losses")[i].get<double>(), two.at("losses")[i].get<double>(), 1e-5) << i;
  EXPECT_EQ(kernel_counts(two).at("gemm"), kernel_counts(one).at("gemm"));
  std::set<std::string> kinds;
  for (const auto& instr : two.at("breakdown").at(1).at("instructions")) kinds.insert(instr.at("kind"));
  for (const char* kind : {"F", "B", "W", "send", "recv", "step"}) EXPECT_TRUE(kinds.contains(kind)) << kind;
}

TEST(BenchStep, StartsFromWeightsThatItWrote) {
  const TestFolder folder;
  const std::string model = (folder / "model").string();
  const auto drawn = bench_step({"--seed", "5", "--save-model", model});
  const CommandResult result =
      run_command({"bench", "step", "--format", "json", "--steps", "2", "--seed", "5", "--init-from", model, "--seq",
                   "24", "--microbatches", "3", "--out", (folder / "report.json").string()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out).at("losses"), drawn.at("losses"));
  EXPECT_EQ(slurp(folder / "report.json"), result.out);
}

TEST(BenchStep, TableSaysWhatEachFigureIs) {
  const CommandResult result = run_command(std::vector<std::string>{"bench", "step", "--steps", "1"} + kSmall);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* word : {"tokens/s", "median", "spread", "GF/s", "GEMM rate", "share of GEMM rate", "bubble",
                           "peak memory", "losses", "accounted for", "not covered", "gemm_weight_grad", "% in kernels"})
    EXPECT_THAT(result.out, HasSubstr(word));
}

TEST(BenchMicro, TablesAndJsonHoldEveryKernel) {
  const std::vector<std::string> small = {"bench", "micro", "--preset", "tiny", "--seconds-per-kernel", "1e-6"};
  const CommandResult result = run_command(small + std::vector<std::string>{"--format", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto report = nlohmann::json::parse(result.out);
  EXPECT_EQ(keys(report), (std::set<std::string>{"bench", "machine", "model", "microbatch_size", "seq", "dtype",
                                                 "gemm_gflops", "kernels"}));
  for (const auto& kernel : report.at("kernels")) {
    EXPECT_EQ(keys(kernel), (std::set<std::string>{"kernel", "shape", "bytes", "flops", "repetitions", "time_s",
                                                   "aten_time_s", "speedup", "difference", "agrees", "gb_per_s",
                                                   "gflops", "copy_gb_per_s", "roofline_s", "share_of_roofline"}));
    EXPECT_TRUE(kernel.at("agrees").get<bool>());
  }
  const CommandResult table = run_command(small + std::vector<std::string>{"--only", "norm_weight"});
  ASSERT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("rms_norm_weight_grad"));
  EXPECT_THAT(table.out, HasSubstr("% of roofline"));
  EXPECT_THAT(table.out, testing::Not(HasSubstr("swiglu")));
}

TEST(Bench, BadFlagsAreRefused) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "bench.unknown"},
      {{"marco"}, "bench.unknown"},
      {{"step", "--preset", "E"}, "bench.flags"},
      {{"step", "--steps", "0"}, "bench.flags"},
      {{"step", "--warmup", "-1"}, "bench.flags"},
      {{"step", "--seq", "0"}, "bench.flags"},
      {{"step", "--microbatch-size", "0"}, "bench.flags"},
      {{"step", "--mlp-chunk", "-4"}, "bench.flags"},
      {{"step", "--lr", "-1"}, "bench.flags"},
      {{"step", "--timeout", "0"}, "bench.flags"},
      {{"step", "--heads", "3"}, "model.flags"},
      {{"step", "--init-from", "model", "--hidden", "64"}, "bench.flags"},
      {{"step", "--init-from", "model", "--preset", "A"}, "bench.flags"},
      {{"step", "--dtype", "fp8"}, "flags"},
      {{"step", "--compare", "zb-h1"}, "flags"},
      {{"micro", "--preset", "E"}, "bench.flags"},
      {{"micro", "--only", "softmax"}, "bench.flags"},
      {{"micro", "--seconds-per-kernel", "0"}, "bench.flags"},
      {{"micro", "--seq", "0"}, "bench.flags"},
      {{"micro", "--microbatch-size", "0"}, "bench.flags"},
  };
  for (const auto& [flags, rule] : cases) {
    const CommandResult result = run_command(std::vector<std::string>{"bench"} + flags);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr("[" + rule + "]"));
    EXPECT_EQ(result.out, "");
  }
}

TEST(Bench, HelpNamesThePresets) {
  for (const char* command : {"step", "micro"}) {
    const CommandResult result = run_command({"bench", command, "--help"});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.out, HasSubstr("vocabulary 32000"));
    EXPECT_THAT(result.out, HasSubstr("--preset"));
  }
  EXPECT_THAT(run_command({"bench", "--help"}).out, HasSubstr("calibrate"));
}

}  // namespace
}  // namespace plait::test
