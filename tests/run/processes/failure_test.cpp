// Processes that are killed, stopped or hang: all others say so in time, the job ends with a failure, and nothing stays.

#include "job_test.h"
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <algorithm>
#include <fstream>
#include <optional>

namespace plait::test {
namespace {

using testing::HasSubstr;
using Time = std::chrono::steady_clock::time_point;

constexpr double kTimeout = 2;  // s
constexpr double kAllowed = kTimeout + 1;
constexpr int kEndless = 1000000;

/// Seconds behind `fault` at which a process's line on standard error had come; none if it never did.
std::optional<double> said_after(const JobResult& result, int process, Time fault) {
  const std::size_t at = result.err.find("error: process " + std::to_string(process) + ": ");
  if (at == std::string::npos) return std::nullopt;
  for (const auto& [time, length] : result.err_times)
    if (length > at) return std::chrono::duration<double>(time - fault).count();
  return std::nullopt;
}

std::string line_of(const JobResult& result, int process) {
  const std::size_t at = result.err.find("error: process " + std::to_string(process) + ": ");
  return at == std::string::npos ? std::string() : result.err.substr(at, result.err.find('\n', at) - at);
}

class Failure : public Job {
 protected:
  /// Starts four processes, lets them take some steps, then does harm to one.
  JobResult disturb(int victim, const std::function<void(pid_t)>& harm) {
    return run_alone(
        flags("run", kEndless, {"--processes", "4", "--timeout", std::to_string(kTimeout), "--checkpoint-every", "0"}),
        [&](pid_t launcher) {
          EXPECT_TRUE(wait_until([&] { return num_lines(folder_ / "run") >= 5; }));
          processes_ = descendants(launcher);
          const pid_t process = process_of(launcher, victim);
          ASSERT_NE(process, 0);
          fault_ = std::chrono::steady_clock::now();
          harm(process);
        });
  }
  void expect_reported(const JobResult& result, int victim, const std::string& what) {
    EXPECT_NE(result.exit_code, 0);
    for (int process = 0; process < 4; ++process) {
      if (process == victim) continue;
      const auto seconds = said_after(result, process, fault_);
      ASSERT_TRUE(seconds) << "process " << process << " said nothing\n" << result.err;
      EXPECT_LE(*seconds, kAllowed) << process;
      EXPECT_THAT(line_of(result, process), HasSubstr(what));
    }
    EXPECT_EQ(alive(processes_), std::vector<pid_t>());
  }
  void expect_named(const JobResult& result, int victim) {
    expect_reported(result, victim, "process " + std::to_string(victim) + " (");
    const std::string seen = "last seen: rank " + std::to_string(victim) + ", ";
    for (int process = 0; process < 4; ++process)
      if (process != victim && line_of(result, process).find("no step was running") == std::string::npos) {
        EXPECT_THAT(line_of(result, process), HasSubstr(seen));
        EXPECT_THAT(line_of(result, process), HasSubstr("Here: rank " + std::to_string(process)));
      }
  }
  std::vector<pid_t> processes_;
  Time fault_;
};

class Killed : public Failure, public testing::WithParamInterface<int> {};

TEST_P(Killed, IsReportedByAllOthers) {
  const int victim = GetParam();
  const JobResult result = disturb(victim, [](pid_t process) { ::kill(process, SIGKILL); });
  expect_named(result, victim);
}

INSTANTIATE_TEST_SUITE_P(Process, Killed, testing::Values(0, 1, 3));

class Stopped : public Failure, public testing::WithParamInterface<int> {};

TEST_P(Stopped, IsReportedByAllOthers) {
  const int victim = GetParam();
  const JobResult result = disturb(victim, [](pid_t process) { ::kill(process, SIGSTOP); });
  expect_named(result, victim);
}

INSTANTIATE_TEST_SUITE_P(Process, Stopped, testing::Values(0, 2));

/// The thread of a process by its name.
pid_t thread_of(pid_t process, const std::string& name) {
  const std::filesystem::path tasks = "/proc/" + std::to_string(process) + "/task";
  std::error_code ec;
  for (const auto& task : std::filesystem::directory_iterator(tasks, ec)) {
    std::string its_name;
    std::getline(std::ifstream(task.path() / "comm") >> std::ws, its_name);
    if (its_name == name) return std::stoi(task.path().filename().string());
  }
  return 0;
}

// The process itself gives signs of life, so the ranks that wait for it have to notice, and it cannot end by itself.
TEST_F(Failure, ARankThatHangsIsReportedByAll) {
  std::thread reaper;  // a traced thread stays until its tracer has seen it end
  const JobResult result = disturb(2, [&](pid_t process) {
    const pid_t rank = thread_of(process, "plait-rank-2");
    ASSERT_NE(rank, 0);
    ASSERT_EQ(::ptrace(PTRACE_SEIZE, rank, nullptr, nullptr), 0) << "threads may not be traced here";
    ASSERT_EQ(::ptrace(PTRACE_INTERRUPT, rank, nullptr, nullptr), 0);
    reaper = std::thread([rank] {
      int status = 0;
      while (::waitpid(rank, &status, __WALL) == rank && WIFSTOPPED(status)) {
      }
    });
  });
  reaper.join();
  // It may hang while it waits itself; then it is the one that waits in vain.
  expect_reported(result, -1, "rank 2");
}

TEST_F(Failure, APauseWithinTheTimeoutIsNone) {
  bool went_on = false;
  const JobResult result = disturb(1, [&](pid_t process) {
    ::kill(process, SIGSTOP);
    std::this_thread::sleep_for(std::chrono::duration<double>(kTimeout / 3));
    ::kill(process, SIGCONT);
    const std::int64_t lines = num_lines(folder_ / "run");
    went_on = wait_until([&] { return num_lines(folder_ / "run") > lines + 5; });
    ::kill(process, SIGKILL);
  });
  EXPECT_TRUE(went_on) << result.err;
  EXPECT_THAT(line_of(result, 0), HasSubstr("process 1 ("));
}

TEST_F(Failure, WithoutItsLauncherNothingGoesOn) {
  std::vector<pid_t> processes;
  const JobResult result =
      run_alone(flags("run", kEndless, {"--processes", "4", "--checkpoint-every", "0"}), [&](pid_t launcher) {
        EXPECT_TRUE(wait_until([&] { return num_lines(folder_ / "run") >= 5; }));
        processes = descendants(launcher);
        ::kill(launcher, SIGKILL);
      });
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_GE(processes.size(), 5U);
  EXPECT_TRUE(wait_until([&] { return alive(processes).empty(); }));
}

TEST_F(Failure, WithoutMpirunNothingGoesOn) {
  std::vector<pid_t> processes;
  const JobResult result =
      run_alone(flags("run", kEndless, {"--processes", "4", "--checkpoint-every", "0"}), [&](pid_t launcher) {
        EXPECT_TRUE(wait_until([&] { return num_lines(folder_ / "run") >= 5; }));
        processes = descendants(launcher);
        for (const pid_t mpirun : descendants(launcher, "mpirun")) ::kill(mpirun, SIGKILL);
      });
  EXPECT_NE(result.exit_code, 0);
  EXPECT_TRUE(wait_until([&] { return alive(processes).empty(); }));
}

}  // namespace
}  // namespace plait::test
