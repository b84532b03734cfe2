#include "plait/run/train/metrics.h"

#include "plait/base/files.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <string>

namespace plait {
namespace {

StepMetrics example(std::int64_t step) {
  return {.step = step,
          .loss = 0.1 + 0.2,
          .grad_norm = 1.0 / 3.0,
          .lr = 1e-3,
          .tokens = 4096,
          .tokens_per_s = 8192,
          .step_s = 0.5,
          .peak_bytes = {Bytes{1000}, Bytes{2000}},
          .bytes_moved = {Bytes{10}, Bytes{20}},
          .moved_by_kind = {{ValueKind::kActivation, Bytes{12}}, {ValueKind::kWeight, Bytes{18}}},
          .samples = 32 * step,
          .epoch = 0};
}

class MetricsTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove(file_); }
  void TearDown() override { std::filesystem::remove(file_); }
  const std::filesystem::path file_ =
      std::filesystem::path(testing::TempDir()) /
      ("plait_metrics_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
};

TEST_F(MetricsTest, ALineHasEveryKeyAndNumbersThatReadBackTheSame) {
  EXPECT_EQ(
      metrics_line(example(7)),
      R"({"step":7,"loss":0.30000000000000004,"grad_norm":0.3333333333333333,"lr":0.001,"tokens":4096,"tokens_per_s":8192.0,)"
      R"("step_s":0.5,"peak_bytes":[1000,2000],"bytes_moved":[10,20],)"
      R"("moved_by_kind":{"activation":12,"weight":18},"samples":224,"epoch":0})");
  const auto line = nlohmann::json::parse(metrics_line(example(7)));
  EXPECT_EQ(line["loss"].get<double>(), 0.1 + 0.2);
}

TEST_F(MetricsTest, AResumedRunKeepsTheLinesUpToItsCheckpoint) {
  {
    auto log = MetricsLog::open(file_, 0);
    ASSERT_TRUE(log);
    for (std::int64_t step = 1; step <= 5; ++step) ASSERT_TRUE(log->append(example(step)));
  }
  std::ofstream(file_, std::ios::app) << R"({"step":6,"loss":)";  // killed in the middle of a line
  auto log = MetricsLog::open(file_, 3);
  ASSERT_TRUE(log);
  ASSERT_TRUE(log->append(example(4)));
  std::string expected;
  for (std::int64_t step = 1; step <= 4; ++step) expected += metrics_line(example(step)) + "\n";
  const auto result = read_file(file_.string());
  ASSERT_TRUE(result);
  EXPECT_EQ(*result, expected);
}

}  // namespace
}  // namespace plait
