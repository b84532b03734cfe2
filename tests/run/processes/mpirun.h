#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

/// Programs under mpirun, on this machine, whatever user runs them and however few cores there are.
namespace plait::test {

struct JobResult {
  int exit_code = -1;  ///< 128 + signal where one ended mpirun
  std::string out;
  std::string err;
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

}  // namespace plait::test
