#include "plait/cli/run/job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

namespace plait::cli {
namespace {

constexpr int kNotStarted = 127;  // as shells have it

volatile std::sig_atomic_t signals_caught = 0;
volatile std::sig_atomic_t mpirun_pid = 0;

/// The first asks, which mpirun hands on; the second ends.
void on_signal(int) {
  signals_caught = signals_caught + 1;
  if (mpirun_pid > 0) ::kill(mpirun_pid, signals_caught == 1 ? SIGUSR1 : SIGTERM);
}

/// Settings of OpenMPI that a person's own go before.
void set_environment() {
  constexpr int kKeep = 0;
  if (::geteuid() == 0) {
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", kKeep);
    ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", kKeep);
  }
  ::setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", kKeep);
  // A process has several threads; bound to one core they would wait for each other.
  ::setenv("OMPI_MCA_hwloc_base_binding_policy", "none", kKeep);
}

/// The words without the flags that are the launcher's, each with its value.
std::vector<std::string> words_for_processes(int argc, const char* const* argv) {
  std::vector<std::string> words;
  for (int at = 1; at < argc; ++at) {
    const std::string_view word = argv[at];
    bool is_mine = false;
    for (const std::string_view flag : {"--processes", "--restarts"}) {
      if (word == flag) ++at;
      is_mine |= word == flag || (word.starts_with(flag) && word.substr(flag.size()).starts_with("="));
    }
    if (!is_mine) words.emplace_back(word);
  }
  return words;
}

std::vector<pid_t> own_children() {
  std::ifstream in(fmt::format("/proc/self/task/{}/children", ::getpid()));
  std::vector<pid_t> children;
  for (pid_t child = 0; in >> child;) children.push_back(child);
  return children;
}

/// What mpirun left behind has become ours: gives it a moment, then ends it.
void end_orphans() {
  constexpr std::chrono::seconds kMoment{3};
  const auto deadline = std::chrono::steady_clock::now() + kMoment;
  for (;;) {
    const pid_t ended = ::waitpid(-1, nullptr, WNOHANG);
    if (ended < 0 && errno != EINTR) return;
    if (ended > 0) continue;
    if (std::chrono::steady_clock::now() >= deadline)
      for (const pid_t child : own_children()) ::kill(child, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

/// Runs a command to its end; its exit code, or 128 + the signal that ended it.
int run_to_end(std::vector<std::string> words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    // A terminal's Ctrl-C is for the launcher, which asks first; its own death ends the job.
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(kNotStarted);
    const int nothing = ::open("/dev/null", O_RDONLY);
    ::dup2(nothing, STDIN_FILENO);
    std::signal(SIGINT, SIG_DFL);
    std::signal(SIGTERM, SIG_DFL);
    ::execvp(argv.front(), argv.data());
    ::_exit(kNotStarted);
  }
  mpirun_pid = child;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  mpirun_pid = 0;
  end_orphans();
  constexpr int kBySignal = 128;
  return WIFEXITED(status) ? WEXITSTATUS(status) : kBySignal + WTERMSIG(status);
}

/// Failures at run time are; refused flags and schedules would be refused again.
bool is_worth_a_restart(int exit_code) {
  return exit_code >= ::plait::exit_code(ErrorCode::kTransport) && exit_code != kNotStarted;
}

std::atomic<bool> was_said = false;

/// Once: what stands at the end of a failure's line is all that this process has to say about it.
void say(const Error& error, int process) {
  if (was_said.exchange(true)) return;
  std::fputs(fmt::format("error: process {}: {} [{}]\n", process, error.message, error.rule).c_str(), stderr);
  std::fflush(nullptr);
}

}  // namespace

void JobFlags::add_to(FlagSet& flags) {
  flags.add("Processes", "--processes", processes, "COUNT",
            "start this many processes with mpirun and share the ranks among them; 0: all ranks in this one");
  flags.add("Processes", "--restarts", restarts, "COUNT",
            "with --processes: times to go on from the newest checkpoint after a failure");
}

bool is_to_launch(const JobFlags& flags) {
  return flags.processes > 0 && !started_by_mpi();
}

Result<int> launch_job(const JobFlags& flags, int argc, const char* const* argv) {
  PLAIT_TRY_VOID(check_mpi_is_built_in());
  std::error_code ec;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", ec).string();
  std::vector<std::string> command = {"mpirun", "-np", std::to_string(flags.processes), self, argv[0]};
  for (std::string& word : words_for_processes(argc, argv)) command.push_back(std::move(word));
  set_environment();
  std::signal(SIGINT, &on_signal);
  std::signal(SIGTERM, &on_signal);
  int code = run_to_end(command);
  for (int restart = 1; restart <= flags.restarts && is_worth_a_restart(code) && signals_caught == 0; ++restart) {
    std::fputs(fmt::format("the job ended with {}; restart {} of {} from the newest checkpoint\n", code, restart,
                           flags.restarts)
                   .c_str(),
               stderr);
    if (restart == 1) command.emplace_back("--resume");
    code = run_to_end(command);
  }
  if (code == kNotStarted)
    return make_error(ErrorCode::kIo, "job.mpirun",
                      "mpirun does not start; scripts/setup installs it (Debian: openmpi-bin)");
  return code;
}

Result<std::shared_ptr<JobProcesses>> join_if_started(const JobFlags& flags, double timeout_seconds) {
  if (!started_by_mpi()) return std::shared_ptr<JobProcesses>();
  PLAIT_TRY(std::shared_ptr<JobProcesses> job, join_job({.timeout_seconds = timeout_seconds}));
  if (flags.processes > 0 && flags.processes != job->size())
    return make_error(ErrorCode::kInvalidArgument, "train.flags",
                      "--processes {}, but mpirun started {}; leave --processes out under mpirun", flags.processes,
                      job->size());
  const auto say_here = [process = job->index()](const Error& error) { say(error, process); };
  job->on_failure(say_here, [say_here](const Error& error) {
    say_here(error);
    ::_exit(exit_code(error.code));
  });
  return job;
}

void fail_job(JobProcesses& job, const Error& error) {
  job.report(error);
  say(error, job.index());
  job.leave_failed();
  ::_exit(exit_code(error.code));
}

}  // namespace plait::cli
