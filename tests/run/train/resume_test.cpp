#include "run_command.h"
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace plait::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using Words = std::vector<std::string>;

constexpr int kSteps = 40;

/// Looks every millisecond until `seen` holds or the process is gone; then kills it.
std::function<void(pid_t)> kill_when(const std::function<bool()>& seen, int signal) {
  return [=](pid_t child) {
    while (!seen() && ::kill(child, 0) == 0) {
      siginfo_t info{};
      if (::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == child)
        return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ::kill(child, signal);
  };
}

std::int64_t num_lines(const fs::path& run) {
  const std::string text = slurp(run / "metrics.jsonl");
  return std::count(text.begin(), text.end(), '\n');
}

bool writing_checkpoint(const fs::path& run) {
  std::error_code ec;
  for (fs::directory_iterator it(run / "checkpoints", ec), end; !ec && it != end; it.increment(ec))
    if (it->path().filename().string().starts_with(".tmp-")) return true;
  return false;
}

class Resume : public testing::Test {
 protected:
  void SetUp() override {
    spill(folder_ / "text", sample_text(6000));
    const CommandResult result = run_command(flags("whole"));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    whole_ = column(metrics_of(folder_ / "whole"), "loss");
    ASSERT_EQ(whole_.size(), static_cast<std::size_t>(kSteps));
  }
  Words flags(const std::string& name, const Words& more = {}) const {
    return tiny_run(folder_ / "text", folder_ / name) +
           Words{"--steps", std::to_string(kSteps), "--checkpoint-every", "4", "--keep", "3"} + more;
  }
  void expect_whole(const std::string& name) const {
    EXPECT_EQ(column(metrics_of(folder_ / name), "loss"), whole_);
    const std::string last = "checkpoints/step-0000" + std::to_string(kSteps);
    for (const char* file : {"model.safetensors", "optimizer.safetensors"})
      EXPECT_EQ(slurp(folder_ / name / last / file), slurp(folder_ / "whole" / last / file)) << file;
    EXPECT_FALSE(writing_checkpoint(folder_ / name));
  }
  const TestFolder folder_;
  std::vector<double> whole_;
};

TEST_F(Resume, KilledInTheMiddleOfAStep) {
  const fs::path run = folder_ / "killed";
  const CommandResult killed = run_command(flags("killed"), kill_when([&] { return num_lines(run) >= 10; }, SIGKILL));
  ASSERT_EQ(killed.exit_code, 128 + SIGKILL) << killed.err;
  ASSERT_LT(num_lines(run), kSteps);
  const CommandResult resumed = run_command(flags("killed", {"--resume"}));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("resuming behind step"));
  expect_whole("killed");
}

// Three times in one run, each time while a checkpoint is under its temporary name.
TEST_F(Resume, KilledInTheMiddleOfACheckpoint) {
  const fs::path run = folder_ / "killed";
  CommandResult result = run_command(flags("killed"), kill_when([&] { return writing_checkpoint(run); }, SIGKILL));
  int kills = 0;
  while (result.exit_code == 128 + SIGKILL && kills < 3) {
    ++kills;
    // Far enough to write at least one whole checkpoint in between.
    const std::int64_t lines = num_lines(run);
    result = run_command(flags("killed", {"--resume"}),
                         kill_when([&] { return num_lines(run) > lines + 4 && writing_checkpoint(run); }, SIGKILL));
  }
  ASSERT_GE(kills, 1);
  if (result.exit_code != 0) result = run_command(flags("killed", {"--resume"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  expect_whole("killed");
}

TEST_F(Resume, CtrlCWritesACheckpointAndEnds) {
  const fs::path run = folder_ / "stopped";
  const CommandResult stopped = run_command(flags("stopped", {"--checkpoint-every", "0"}),
                                            kill_when([&] { return num_lines(run) >= 3; }, SIGINT));
  ASSERT_EQ(stopped.exit_code, 3) << stopped.err;
  EXPECT_THAT(stopped.out, HasSubstr("interrupted after step"));
  const std::int64_t done = num_lines(run);
  ASSERT_LT(done, kSteps);
  EXPECT_TRUE(fs::exists(run / "trace.json"));
  EXPECT_TRUE(fs::exists(run / "checkpoints" /
                         ("step-" + std::string(6 - std::to_string(done).size(), '0') + std::to_string(done))));
  const CommandResult resumed = run_command(flags("stopped", {"--resume"}));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  expect_whole("stopped");
}

/// A run that ended after half of the steps, with the learning rates of the whole.
class ResumeElsewhere : public Resume {
 protected:
  void stop_halfway(const std::string& name) const {
    const fs::path run = folder_ / name;
    const CommandResult stopped =
        run_command(flags(name), kill_when([&] { return num_lines(run) >= kSteps / 2; }, SIGINT));
    ASSERT_EQ(stopped.exit_code, 3) << stopped.err;
  }
};

TEST_F(ResumeElsewhere, UnderAnotherScheduleAndNumberOfRanks) {
  for (const Words& layout :
       {Words{"--schedule", "gpipe"}, Words{"--ranks", "1"}, Words{"--ranks", "4", "--schedule", "gpipe"}}) {
    stop_halfway("moved");
    const CommandResult resumed = run_command(flags("moved", Words{"--resume"} + layout));
    ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
    const auto losses = column(metrics_of(folder_ / "moved"), "loss");
    ASSERT_EQ(losses.size(), whole_.size());
    for (std::size_t i = 0; i < losses.size(); ++i)
      EXPECT_NEAR(losses[i], whole_[i], 1e-5 * whole_[i]) << "step " << i + 1;
    fs::remove_all(folder_ / "moved");
  }
}

// The data position counts samples: half as many micro-batches of twice the rows are the same steps.
TEST_F(ResumeElsewhere, WithOtherMicrobatches) {
  stop_halfway("regrouped");
  const CommandResult resumed =
      run_command(flags("regrouped", {"--resume", "--microbatches", "2", "--microbatch-size", "4"}));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  const auto losses = column(metrics_of(folder_ / "regrouped"), "loss");
  ASSERT_EQ(losses.size(), whole_.size());
  for (std::size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(losses[i], whole_[i], 1e-5 * whole_[i]) << "step " << i + 1;
}

TEST_F(ResumeElsewhere, ADamagedNewestCheckpointIsPassedOverAndSaid) {
  const fs::path run = folder_ / "damaged";
  fs::copy(folder_ / "whole", run, fs::copy_options::recursive);
  const fs::path file = run / "checkpoints/step-000040/model.safetensors";
  const auto flip = [](const fs::path& path) {
    std::string bytes = slurp(path);
    bytes[bytes.size() - 3] = static_cast<char>(bytes[bytes.size() - 3] ^ 1);
    spill(path, bytes);
  };
  flip(file);
  const CommandResult resumed = run_command(flags("damaged", {"--resume"}));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("a checkpoint is damaged and passed over: " + file.string()));
  EXPECT_THAT(resumed.err, HasSubstr("going on from " + (run / "checkpoints/step-000036").string() + " instead"));
  EXPECT_THAT(resumed.err, HasSubstr("resuming behind step 36"));
  expect_whole("damaged");
  for (const auto& checkpoint : fs::directory_iterator(run / "checkpoints")) flip(checkpoint.path() / "state.json");
  const CommandResult refused = run_command(flags("damaged", {"--resume"}));
  EXPECT_EQ(refused.exit_code, 3);
  EXPECT_THAT(refused.err, HasSubstr("no checkpoint is intact"));
  EXPECT_THAT(refused.err, HasSubstr("checkpoint.damaged"));
}

TEST_F(ResumeElsewhere, AnotherRunsFlagsAreRefused) {
  for (const Words& change : {Words{"--seed", "9"}, Words{"--optimizer", "sgd"}, Words{"--dtype", "fp64"},
                              Words{"--seq", "8"}, Words{"--hidden", "32"}, Words{"--no-shuffle"}}) {
    const CommandResult resumed = run_command(flags("whole", Words{"--resume"} + change));
    EXPECT_EQ(resumed.exit_code, 2) << change[0];
    EXPECT_THAT(resumed.err, HasSubstr("train.resume")) << change[0];
  }
  const CommandResult again = run_command(flags("whole"));
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.err, HasSubstr("already holds a run"));
}

}  // namespace
}  // namespace plait::test
