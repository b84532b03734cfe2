// plait train over processes: the run folder of threads, how it ends, and what is refused.

#include "job_test.h"
#include <gmock/gmock.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>

namespace plait::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

class ProcessRun : public Job {
 protected:
  void expect_same_run(const std::string& a, const std::string& b, int steps) {
    for (const char* key : {"loss", "grad_norm", "lr", "tokens"})
      EXPECT_EQ(column(metrics_of(folder_ / a), key), column(metrics_of(folder_ / b), key)) << key;
    const std::string last = "checkpoints/step-0000" + std::string(steps < 10 ? "0" : "") + std::to_string(steps);
    for (const char* file : {"model.safetensors", "optimizer.safetensors", "state.json", "config.json"})
      EXPECT_EQ(slurp(folder_ / a / last / file), slurp(folder_ / b / last / file)) << file;
    EXPECT_EQ(slurp(folder_ / a / "program.plait"), slurp(folder_ / b / "program.plait"));
  }
  static std::vector<std::string> names_in(const fs::path& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      names.push_back(fs::relative(entry.path(), folder).string());
    std::sort(names.begin(), names.end());
    return names;
  }
};

TEST_F(ProcessRun, LeavesWhatThreadsLeaveAndSaysItOnce) {
  const Words more = {"--checkpoint-every", "3", "--eval-every", "2"};
  const JobResult threads = run_alone(flags("threads", 7, more));
  ASSERT_EQ(threads.exit_code, 0) << threads.err;
  for (const std::string processes : {"2", "4"}) {
    const JobResult result = run_alone(flags(processes, 7, more + Words{"--processes", processes}));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    expect_same_run(processes, "threads", 7);
    EXPECT_EQ(column(metrics_of(folder_ / processes), "samples"), column(metrics_of(folder_ / "threads"), "samples"));
    EXPECT_EQ(metrics_of(folder_ / processes)[1].at("val_loss"), metrics_of(folder_ / "threads")[1].at("val_loss"));
    EXPECT_EQ(names_in(folder_ / processes), names_in(folder_ / "threads"));
    const auto trace = nlohmann::json::parse(slurp(folder_ / processes / "trace.json"));
    EXPECT_EQ(trace.at("ops").size(), nlohmann::json::parse(slurp(folder_ / "threads/trace.json")).at("ops").size());
    EXPECT_EQ(result.out.find("done after step 7 of 7"), result.out.rfind("done after step 7 of 7"));
  }
  // As a person types it.
  const Words command = flags("typed", 7, more);
  const JobResult typed = run_job(4, command);
  ASSERT_EQ(typed.exit_code, 0) << typed.err;
  expect_same_run("typed", "threads", 7);
}

TEST_F(ProcessRun, GoesOnFromWhatThreadsLeftAndBack) {
  ASSERT_EQ(run_alone(flags("whole", 9)).exit_code, 0);
  const Words lr = {"--lr-schedule", "constant"};
  ASSERT_EQ(run_alone(flags("whole_lr", 9, lr)).exit_code, 0);
  ASSERT_EQ(run_alone(flags("mixed", 3, lr)).exit_code, 0);
  ASSERT_EQ(run_alone(flags("mixed", 6, lr + Words{"--processes", "4", "--resume"})).exit_code, 0);
  ASSERT_EQ(run_alone(flags("mixed", 9, lr + Words{"--resume"})).exit_code, 0);
  expect_same_run("mixed", "whole_lr", 9);
}

TEST_F(ProcessRun, StopsBehindAStepWhenAsked) {
  const JobResult result =
      run_alone(flags("run", 1000000, {"--processes", "4", "--checkpoint-every", "0"}), [&](pid_t launcher) {
        EXPECT_TRUE(wait_until([&] { return num_lines(folder_ / "run") >= 3; }));
        ::kill(launcher, SIGINT);
      });
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_THAT(result.out, HasSubstr("interrupted after step"));
  EXPECT_FALSE(fs::is_empty(folder_ / "run" / "checkpoints"));
}

TEST_F(ProcessRun, RestartsFromTheNewestCheckpointWithTheSameBits) {
  const Words more = {"--checkpoint-every", "4"};
  ASSERT_EQ(run_alone(flags("whole", 60, more)).exit_code, 0);
  const JobResult result = run_alone(
      flags("run", 60, more + Words{"--processes", "4", "--timeout", "5", "--restarts", "1"}), [&](pid_t launcher) {
        EXPECT_TRUE(wait_until([&] { return num_lines(folder_ / "run") >= 10; }));
        ::kill(process_of(launcher, 2), SIGKILL);
      });
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("restart 1 of 1"));
  EXPECT_THAT(result.err, HasSubstr("resuming behind step"));
  expect_same_run("run", "whole", 60);
}

// mpirun that cannot reach a machine, once there is a file: it starts no more than two processes then.
TEST_F(ProcessRun, RestartsSmallerWhereAProcessStaysAway) {
  const fs::path gone = folder_ / "gone";
  fs::create_directories(folder_ / "bin");
  spill(folder_ / "bin/mpirun",
        "#!/bin/sh\n[ -e " + gone.string() + " ] && [ $2 -gt 2 ] && exit 1\nexec " PLAIT_MPIRUN " \"$@\"\n");
  fs::permissions(folder_ / "bin/mpirun", fs::perms::owner_all);
  const Words more = {"--checkpoint-every", "4", "--microbatches", "8"};
  ASSERT_EQ(run_alone(flags("whole", 60, more)).exit_code, 0);
  const std::string path = (folder_ / "bin").string() + ":" + std::getenv("PATH");
  const Words command = Words{"/usr/bin/env", "PATH=" + path} +
                        flags("run", 60, more + Words{"--processes", "4", "--timeout", "5", "--restarts", "1"});
  const auto lose_one = [&](pid_t launcher) {
    EXPECT_TRUE(wait_until([&] { return num_lines(folder_ / "run") >= 10; }));
    spill(gone, "");
    ::kill(process_of(launcher, 2), SIGKILL);
  };
  const JobResult result = run_alone(command + Words{"--min-ranks", "2"}, lose_one);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("not all of 4 processes start; trying 3 with 3 ranks"));
  EXPECT_THAT(result.err, HasSubstr("not all of 3 processes start; trying 2 with 2 ranks"));
  EXPECT_THAT(slurp(folder_ / "run" / "program.plait"), HasSubstr("ranks 2"));
  const auto losses = column(metrics_of(folder_ / "run"), "loss");
  const auto expected = column(metrics_of(folder_ / "whole"), "loss");
  ASSERT_EQ(losses.size(), expected.size());
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-4 * expected[i]) << i;

  fs::remove_all(folder_ / "run");
  fs::remove(gone);
  const JobResult refused = run_alone(command + Words{"--min-ranks", "3"}, lose_one);
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.err, Not(HasSubstr("trying 2")));
}

double least(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

TEST_F(ProcessRun, EmulatedLinksDelayAsBetweenThreads) {
  // Forward and back over three links; and a gather and a reduction of a ring of four ranks at least.
  constexpr double kLatency = 0.02;
  constexpr double kLeast = 6 * kLatency;
  for (const std::string schedule : {"1f1b", "fsdp"}) {
    SCOPED_TRACE(schedule);
    const Words more = {"--schedule", schedule, "--microbatches", "4"};
    ASSERT_EQ(run_alone(flags(schedule, 3, more)).exit_code, 0);
    EXPECT_LT(least(column(metrics_of(folder_ / schedule), "step_s")), kLeast);
    for (const std::string processes : {"0", "2", "4"}) {
      const std::string out = schedule + processes;
      const JobResult result =
          run_alone(flags(out, 3, more + Words{"--link-latency", "20ms", "--link", "1GB/s", "--processes", processes}));
      ASSERT_EQ(result.exit_code, 0) << result.err;
      expect_same_run(out, schedule, 3);
      EXPECT_GE(least(column(metrics_of(folder_ / out), "step_s")), kLeast) << processes;
    }
  }
}

TEST_F(ProcessRun, ComparesWithAnotherScheduleAsThreadsDo) {
  const Words more = {"--microbatches", "4", "--format", "json", "--compare", "gpipe"};
  const auto report = [&](const std::string& processes) {
    const JobResult result = run_alone(flags("run" + processes, 3, more + Words{"--processes", processes}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out);
  };
  const nlohmann::json threads = report("0");
  for (const std::string processes : {"2", "4"}) {
    const nlohmann::json result = report(processes);
    ASSERT_EQ(result.at("comparison").size(), 2U);
    for (std::size_t i = 0; i < 2; ++i)
      for (const char* key : {"schedule", "bytes_moved"})
        EXPECT_EQ(result.at("comparison")[i].at(key), threads.at("comparison")[i].at(key)) << key;
    expect_same_run("run" + processes, "run0", 3);
  }
  EXPECT_EQ(run_alone(flags("none", 2, {"--processes", "2", "--compare", "none"})).exit_code, 0);
}

TEST_F(ProcessRun, GoesOnFromTheCheckpointBeforeADamagedOne) {
  const Words more = {"--checkpoint-every", "3", "--lr-schedule", "constant"};
  ASSERT_EQ(run_alone(flags("whole", 9, more)).exit_code, 0);
  ASSERT_EQ(run_alone(flags("run", 6, more)).exit_code, 0);
  const fs::path damaged = folder_ / "run" / "checkpoints/step-000006/optimizer.safetensors";
  fs::resize_file(damaged, fs::file_size(damaged) - 1);
  const JobResult result = run_alone(flags("run", 9, more + Words{"--processes", "2", "--resume"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr(damaged.string()));
  EXPECT_THAT(result.err, HasSubstr("resuming behind step 3 from"));
  expect_same_run("run", "whole", 9);
  for (const std::string step : {"06", "09"})
    fs::resize_file(folder_ / "run" / ("checkpoints/step-0000" + step) / "MANIFEST.json", 9);
  const JobResult refused = run_alone(flags("run", 12, more + Words{"--processes", "2", "--resume"}));
  EXPECT_EQ(refused.exit_code, 3) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("no checkpoint is intact"));
}

TEST_F(ProcessRun, RefusesProcessesThatWereGivenDifferentThings) {
  const auto start = [&](const Words& first, const Words& second) {
    Words words = first;
    words.insert(words.end(), {":", "-np", "1"});
    return run_job(1, words + second);
  };
  const auto expect_refused = [&](const Words& more, const std::string& what) {
    SCOPED_TRACE(what);
    const Words two = {"--ranks", "2"};
    const JobResult result = start(flags("run", 3, two), flags("run", 3, two + more));
    EXPECT_EQ(result.exit_code, 2) << result.err;
    for (const char* process : {"error: process 0: ", "error: process 1: "})
      EXPECT_THAT(result.err, HasSubstr(process));
    EXPECT_THAT(result.err, HasSubstr("process 1 was given something else than process 0: "));
    EXPECT_THAT(result.err, HasSubstr(what));
    EXPECT_THAT(result.err, HasSubstr("[train.processes_differ]"));
    EXPECT_FALSE(fs::exists(folder_ / "run"));
  };
  expect_refused({"--lr", "2e-2"}, "--lr is 0.02, not 0.01");
  expect_refused({"--schedule", "gpipe"}, "the program, line ");
  expect_refused({"--hidden", "32"}, "the model's config, line ");
  expect_refused({"--compare", "gpipe"}, "the program to compare with, line ");
  expect_refused({"--link", "1GB/s"}, "the emulated link is ");
  spill(folder_ / "other", sample_text(6000) + "x");
  std::string text = sample_text(6000);
  text[100] = 'x';
  spill(folder_ / "other", text);
  expect_refused({"--text", (folder_ / "other").string()}, "the data is ");
}

TEST_F(ProcessRun, RefusesMoreProcessesThanRanksAndWhatDoesNotGoTogether) {
  const auto refused = [&](const Words& more, const std::string& what) {
    const JobResult result = run_alone(flags("run", 3, more));
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr(what));
  };
  refused({"--processes", "5"}, "5 processes for 4 ranks");
  refused({"--processes", "2", "--link", "fast"}, "fast");
  refused({"--restarts", "2"}, "--restarts goes with --processes");
  refused({"--processes", "2", "--min-ranks", "2"}, "--min-ranks goes with --restarts");
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

}  // namespace
}  // namespace plait::test
