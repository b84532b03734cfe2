// What a run does about a loss or gradient that is not finite.

#include "plait/base/files.h"

#include "spoilt_run.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <sstream>

namespace plait::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class OnNanTest : public ::testing::TestWithParam<Spoilt> {
 protected:
  void SetUp() override { fs::remove_all(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  Result<TrainSummary> run(const std::string& name, TokenRows rows, std::int64_t steps, OnNan on_nan,
                           StepOrder order = StepOrder::kBehindNorm) {
    const auto job = spoilt_job(std::move(rows), order);
    if (!job) return job.error();
    notes_ = {};
    return train(*job, spoilt_options(folder_ / name, steps, on_nan, GetParam()), notes_, [] { return false; });
  }
  [[nodiscard]] std::string last_file(const std::string& name, const std::string& file) const {
    const auto text = read_file((folder_ / name / "checkpoints" / "step-000006" / file).string());
    EXPECT_TRUE(text) << text.error().message;
    return text ? *text : "";
  }
  /// Steps and what each says was skipped.
  [[nodiscard]] std::vector<std::pair<int, int>> lines(const std::string& name) const {
    std::vector<std::pair<int, int>> found;
    std::istringstream in(*read_file((folder_ / name / "metrics.jsonl").string()));
    for (std::string line; std::getline(in, line);) {
      const auto json = nlohmann::json::parse(line);
      found.emplace_back(json.at("step").get<int>(), json.value("skipped", 0));
    }
    return found;
  }
  /// Weights and moments are those of a run that never saw the rows of these steps.
  void expect_as_without(const std::string& name, const std::set<std::int64_t>& left_out) {
    const auto without = run("without", spoilt_rows(12, {}, left_out), 6, OnNan::kStop);
    ASSERT_TRUE(without) << without.error().message;
    for (const char* file : {"model.safetensors", "optimizer.safetensors"})
      EXPECT_EQ(last_file(name, file), last_file("without", file)) << file;
  }
  const fs::path folder_ = fs::path(::testing::TempDir()) / ("plait_on_nan_" + std::to_string(::getpid()));
  Notes notes_;
};

TEST_P(OnNanTest, StopNamesTheStepAndWhatItWas) {
  const auto result = run("run", spoilt_rows(12, {4}), 6, OnNan::kStop);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().rule, "train.diverged");
  EXPECT_THAT(result.error().message, HasSubstr("step 5: "));
  EXPECT_THAT(result.error().message,
              HasSubstr(GetParam() == Spoilt::kLoss ? "the loss is inf (rank 3)" : "the gradient of model."));
  EXPECT_THAT(result.error().message, HasSubstr("step-000004"));
  EXPECT_THAT(lines("run"), ElementsAre(std::pair(1, 0), std::pair(2, 0), std::pair(3, 0), std::pair(4, 0)));
}

TEST_P(OnNanTest, SkipPassesOverTheBatchAndCountsIt) {
  const auto result = run("run", spoilt_rows(12, {3, 4, 7}), 6, OnNan::kSkip);
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_THAT(lines("run"), ElementsAre(std::pair(1, 0), std::pair(2, 0), std::pair(3, 0), std::pair(4, 2),
                                        std::pair(5, 0), std::pair(6, 1)));
  EXPECT_EQ(notes_.notes.size(), 3U);
  EXPECT_THAT(notes_.notes[0], HasSubstr("its 8 rows are passed over and nothing is updated"));
  EXPECT_THAT(notes_.notes[0], HasSubstr("its rows are rows, rows 24, 25, 26, 27, 28, 29, 30 and 31;"));
  expect_as_without("run", {3, 4, 7});
}

TEST_P(OnNanTest, StepsThatAreValidatedArePassedOverAlike) {
  const auto result = run("run", spoilt_rows(12, {3, 4, 7}), 6, OnNan::kSkip, StepOrder::kPostValidated);
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_THAT(lines("run"), ElementsAre(std::pair(1, 0), std::pair(2, 0), std::pair(3, 0), std::pair(4, 2),
                                        std::pair(5, 0), std::pair(6, 1)));
  EXPECT_EQ(notes_.notes.size(), 3U);
  expect_as_without("run", {3, 4, 7});
}

TEST_P(OnNanTest, RollbackGoesToTheCheckpointAndOnBehindTheBatch) {
  const auto result = run("run", spoilt_rows(12, {3}), 6, OnNan::kRollback);
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_THAT(notes_.steps, ElementsAre(1, 2, 3, 3, 4, 5, 6));
  EXPECT_THAT(lines("run"), ElementsAre(std::pair(1, 0), std::pair(2, 0), std::pair(3, 1), std::pair(4, 0),
                                        std::pair(5, 0), std::pair(6, 0)));
  // The rows of step 3 were learnt from, and that was undone.
  expect_as_without("run", {2, 3});
}

TEST_P(OnNanTest, RollbackWithoutACheckpointGoesToTheBeginning) {
  const auto result = run("run", spoilt_rows(12, {1}), 6, OnNan::kRollback);
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_THAT(notes_.notes, ElementsAre(HasSubstr("the run goes on behind step 0")));
  expect_as_without("run", {0, 1});
}

TEST_P(OnNanTest, TenInARowAreTheEnd) {
  for (const OnNan choice : {OnNan::kSkip, OnNan::kRollback}) {
    fs::remove_all(folder_);
    const auto result = run("run", spoilt_rows(20, {2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}), 6, choice);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().rule, "train.diverged");
    EXPECT_THAT(result.error().message, HasSubstr("that was so 10 times"));
    EXPECT_EQ(notes_.notes.size(), 9U);
  }
}

INSTANTIATE_TEST_SUITE_P(Spoilt, OnNanTest, ::testing::Values(Spoilt::kLoss, Spoilt::kGradient));

}  // namespace
}  // namespace plait::testing
