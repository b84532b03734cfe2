#include "plait/view/timeline.h"

#include "run_command.h"
#include <gmock/gmock.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

namespace plait::test {
namespace {

using testing::HasSubstr;

TEST(Profile, RecordsTheKernelsOfOneStep) {
  const TestFolder folder;
  spill(folder / "text", sample_text(4000));
  const CommandResult result =
      run_command(tiny_run(folder / "text", folder / "run") + std::vector<std::string>{"--steps", "3", "--profile"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string text = slurp(folder / "run" / "profile.json");
  const auto trace = nlohmann::json::parse(text);
  EXPECT_EQ(trace.at("step"), 2);
  std::set<std::string> kernels;
  for (const auto& kernel : trace.at("kernels")) kernels.insert(kernel.at("kernel"));
  for (const char* kernel : {"gemm", "gemm_weight_grad", "attention", "cross_entropy", "optimizer", "zero_grads"})
    EXPECT_TRUE(kernels.contains(kernel)) << kernel;
  // Each part lies in its op, each kernel of a part in that.
  const auto timeline = read_trace(text, "").value();
  const auto lies_in = [](const auto& inner, const auto& outer) {
    return inner.rank == outer.rank && outer.start <= inner.start && inner.end <= outer.end;
  };
  std::size_t parts = 0;
  const Span* part = nullptr;
  for (const Span& span : timeline.spans) {
    if (span.kind == Span::Kind::kPart) {
      ++parts;
      part = &span;
      EXPECT_TRUE(std::any_of(timeline.bars.begin(), timeline.bars.end(), [&](const Bar& bar) {
        return lies_in(span, bar);
      })) << span.name;
    } else if (part != nullptr && span.start < part->end && span.rank == part->rank) {
      EXPECT_TRUE(lies_in(span, *part)) << span.name << " in " << part->name;
    }
  }
  // embed, 4 layers of 4 and head, forward and backward of 4 micro-batches.
  EXPECT_EQ(parts, (4 * 4 + 2) * 2 * 4U);
  // The last step's own trace is without.
  EXPECT_FALSE(nlohmann::json::parse(slurp(folder / "run" / "trace.json")).contains("kernels"));
  for (const char* word : {"step 2, whose kernels are in", "gemm_input_grad", "not covered"})
    EXPECT_THAT(result.out, HasSubstr(word));
}

TEST(Profile, OfAChosenStepIntoAFileAndIntoTheReport) {
  const TestFolder folder;
  spill(folder / "text", sample_text(4000));
  const std::string file = (folder / "third.json").string();
  const CommandResult result = run_command(
      tiny_run(folder / "text", folder / "run") +
      std::vector<std::string>{"--steps", "3", "--profile", file, "--profile-step", "3", "--format", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(slurp(file)).at("step"), 3);
  EXPECT_FALSE(std::filesystem::exists(folder / "run" / "profile.json"));
  const auto profile = nlohmann::json::parse(result.out).at("profile");
  EXPECT_EQ(profile.at("step"), 3);
  EXPECT_EQ(profile.at("file"), file);
  EXPECT_EQ(profile.at("ranks").size(), 2U);
  // A run of one step has no second.
  const CommandResult single =
      run_command(tiny_run(folder / "text", folder / "single") + std::vector<std::string>{"--steps", "1", "--profile"});
  ASSERT_EQ(single.exit_code, 0) << single.err;
  EXPECT_EQ(nlohmann::json::parse(slurp(folder / "single" / "profile.json")).at("step"), 1);
}

TEST(Profile, StepsThatDoNotRunAreRefusedBeforeAnythingIsWritten) {
  const TestFolder folder;
  spill(folder / "text", sample_text(4000));
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--profile", "--profile-step", "4"}, "train.profile"},
      {{"--profile", "--profile-step", "-1"}, "train.flags"},
      {{"--profile-step", "2"}, "train.flags"}};
  for (const auto& [flags, rule] : cases) {
    const CommandResult result =
        run_command(tiny_run(folder / "text", folder / "run") + std::vector<std::string>{"--steps", "3"} + flags);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr("[" + rule + "]"));
    EXPECT_FALSE(std::filesystem::exists(folder / "run"));
  }
}

}  // namespace
}  // namespace plait::test
