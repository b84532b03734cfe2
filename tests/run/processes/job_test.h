#pragma once

#include "mpirun.h"
#include "tests/run/train/run_command.h"
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

/// Whole runs over several processes, disturbed while they go.
namespace plait::test {

using Words = std::vector<std::string>;

inline std::int64_t num_lines(const std::filesystem::path& run) {
  const std::string text = slurp(run / "metrics.jsonl");
  return std::count(text.begin(), text.end(), '\n');
}

/// Waits until it holds, a minute at most.
inline bool wait_until(const std::function<bool()>& holds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

class Job : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(has_mpirun()) << "there is no mpirun; scripts/setup installs it";
    spill(folder_ / "text", sample_text(6000));
  }
  /// A tiny run over four ranks.
  [[nodiscard]] Words flags(const std::string& out, int steps, const Words& more = {}) const {
    return Words{PLAIT_RUN_BINARY} + tiny_run(folder_ / "text", folder_ / out) +
           Words{"--schedule", "1f1b", "--ranks", "4", "--steps", std::to_string(steps)} + more;
  }
  /// By number in the job, of a launcher.
  static pid_t process_of(pid_t launcher, int index) {
    for (const pid_t process : descendants(launcher, "plait-run"))
      if (variable_of(process, "OMPI_COMM_WORLD_RANK") == std::to_string(index)) return process;
    return 0;
  }
  static std::vector<pid_t> alive(const std::vector<pid_t>& processes) {
    std::vector<pid_t> left;
    for (const pid_t process : processes)
      if (is_alive(process)) left.push_back(process);
    return left;
  }
  const TestFolder folder_;
};

}  // namespace plait::test
