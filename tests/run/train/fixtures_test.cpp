#include "run_command.h"
#include <gmock/gmock.h>

#include <filesystem>
#include <string>
#include <tuple>

namespace plait::test {
namespace {

namespace fs = std::filesystem;

struct Rule {
  std::string name;  ///< key in reference.json
  std::vector<std::string> flags;
};

const Rule kAdamW{"adamw", {"--beta1", "0.9", "--beta2", "0.95", "--weight-decay", "0.1", "--decay-all"}};
const Rule kSgd{"sgd", {"--optimizer", "sgd", "--weight-decay", "0"}};

/// The four losses that transformers and torch computed for a tiny model, through the command.
class Fixtures : public testing::TestWithParam<std::tuple<std::string, std::string, int>> {
 protected:
  void SetUp() override {
    if (!fs::exists(models_))
      GTEST_SKIP() << models_ << " is absent: the shared fixtures are not part of this repository";
  }

  void check(const Rule& rule, const std::string& dtype, double tolerance) const {
    const auto& [name, schedule, ranks] = GetParam();
    const fs::path model = models_ / name;
    const auto reference = nlohmann::json::parse(slurp(model / "reference.json"));
    const TestFolder folder;
    const CommandResult result = run_command(std::vector<std::string>{"train",
                                                                      "--init-from",
                                                                      model.string(),
                                                                      "--tokens",
                                                                      (model / "reference.json").string(),
                                                                      "--microbatches",
                                                                      std::to_string(reference.at("tokens").size()),
                                                                      "--steps",
                                                                      "4",
                                                                      "--lr",
                                                                      "1e-2",
                                                                      "--clip",
                                                                      "none",
                                                                      "--warmup",
                                                                      "0",
                                                                      "--lr-schedule",
                                                                      "constant",
                                                                      "--no-shuffle",
                                                                      "--dtype",
                                                                      dtype,
                                                                      "--schedule",
                                                                      schedule,
                                                                      "--ranks",
                                                                      std::to_string(ranks),
                                                                      "--out",
                                                                      (folder / "run").string()} +
                                             rule.flags);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto expected = reference.at(rule.name).at("losses_fp64").get<std::vector<double>>();
    EXPECT_THAT(column(metrics_of(folder / "run"), "loss"),
                testing::Pointwise(testing::DoubleNear(tolerance), expected));
  }

  const fs::path models_ = fs::path(PLAIT_SHARED_DIR) / "fixtures" / "models";
};

TEST_P(Fixtures, AdamWInFp64) {
  check(kAdamW, "fp64", 1e-9);
}
TEST_P(Fixtures, SgdInFp64) {
  check(kSgd, "fp64", 1e-9);
}
TEST_P(Fixtures, AdamWInFp32) {
  check(kAdamW, "fp32", 2e-4);
}
TEST_P(Fixtures, SgdInFp32) {
  check(kSgd, "fp32", 2e-4);
}

INSTANTIATE_TEST_SUITE_P(, Fixtures,
                         testing::Combine(testing::Values("gpt2-tiny", "llama-deep-tiny", "llama-gqa-tied-tiny",
                                                          "llama-tiny", "qwen2-tiny"),
                                          testing::Values("gpipe", "1f1b"), testing::Values(1, 2, 4)),
                         [](const auto& param_info) {
                           std::string name = std::get<0>(param_info.param) + "_" + std::get<1>(param_info.param) +
                                              "_" + std::to_string(std::get<2>(param_info.param));
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

}  // namespace
}  // namespace plait::test
