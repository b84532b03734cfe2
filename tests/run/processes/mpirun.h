#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

/// Programs under mpirun, on this machine, whatever user runs them and however few cores there are.
namespace plait::test {

struct JobResult {
  int exit_code = -1;  ///< 128 + signal where one ended mpirun
  std::string out;
  std::string err;
  /// When what was written on standard error had come, at which length of `err`.
  std::vector<std::pair<std::chrono::steady_clock::time_point, std::size_t>> err_times;
  std::chrono::duration<double> seconds{};
};

/// Is there an mpirun?
bool has_mpirun();

/// \param meanwhile  called with mpirun's id once it runs
JobResult run_job(int num_processes, const std::vector<std::string>& command,
                  const std::function<void(pid_t)>& meanwhile = {});

/// Without mpirun: a command in a process group of its own, with the environment of a job that may be oversubscribed.
JobResult run_alone(const std::vector<std::string>& command, const std::function<void(pid_t)>& meanwhile = {});

/// All processes below `ancestor`, by name ("plait-run") where one is given.
std::vector<pid_t> descendants(pid_t ancestor, const std::string& name = {});

bool is_alive(pid_t process);
/// A variable of the environment that a process started with.
std::string variable_of(pid_t process, const std::string& name);

}  // namespace plait::test
