#include "plait/cli/run/job.h"

#include "plait/base/files.h"
#include "plait/ir/text.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <variant>
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

bool is_flag(std::string_view word, std::string_view flag) {
  return word == flag || (word.starts_with(flag) && word.substr(flag.size()).starts_with("="));
}

/// The words without some flags, each with its value.
std::vector<std::string> without(const std::vector<std::string>& words, const std::vector<std::string>& flags) {
  std::vector<std::string> left;
  for (std::size_t at = 0; at < words.size(); ++at) {
    const auto flag =
        std::find_if(flags.begin(), flags.end(), [&](const std::string& one) { return is_flag(words[at], one); });
    if (flag == flags.end())
      left.push_back(words[at]);
    else if (*flag == words[at])
      ++at;
  }
  return left;
}

bool has(const std::vector<std::string>& words, std::string_view flag) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) { return is_flag(word, flag); });
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

/// Starts of one job, which may get smaller.
class Starts {
 public:
  Starts(const JobFlags& flags, std::vector<std::string> words, std::filesystem::path run)
      : flags_(flags), words_(std::move(words)), run_(std::move(run)), processes_(flags.processes) {}

  int start() {
    std::error_code ec;
    const std::string self = std::filesystem::read_symlink("/proc/self/exe", ec).string();
    std::vector<std::string> command = {"mpirun", "-np", std::to_string(processes_), self};
    command.insert(command.end(), words_.begin(), words_.end());
    const std::string before = log_version();
    const int code = run_to_end(command);
    got_going_ = log_version() != before;
    return code;
  }
  void resume() {
    if (!has(words_, "--resume")) words_.emplace_back("--resume");
  }
  /// Did the processes of the last start find each other, and begin with the steps?
  [[nodiscard]] bool got_going() const { return got_going_; }
  [[nodiscard]] bool is_smaller() const { return processes_ < flags_.processes; }

  /// One process less and its share of the ranks, if that leaves enough; the batches stay what they were.
  bool shrink() {
    const auto text = read_file((run_ / "program.plait").string());
    if (!text || processes_ < 2) return false;
    const auto parsed = parse_text(*text, "program.plait");
    const Program* program = parsed ? std::get_if<Program>(&*parsed) : nullptr;
    if (program == nullptr) return false;
    if (!whole_) whole_ = program->layout;
    const int ranks = whole_->num_ranks * (processes_ - 1) / flags_.processes;
    if (ranks < flags_.min_ranks) return false;
    --processes_;
    words_ = without(words_, {"--ranks", "--microbatches"});
    const auto add = [&](const char* flag, int value) { words_.insert(words_.end(), {flag, std::to_string(value)}); };
    add("--ranks", ranks);
    add("--microbatches", whole_->num_microbatches);
    if (!has(words_, "--layers") && !has(words_, "--init-from")) add("--layers", whole_->num_layers);
    std::fputs(
        fmt::format("not all of {} processes start; trying {} with {} ranks\n", processes_ + 1, processes_, ranks)
            .c_str(),
        stderr);
    return true;
  }

 private:
  /// Changes when a run opens its log.
  [[nodiscard]] std::string log_version() const {
    struct stat info {};
    if (run_.empty() || ::stat((run_ / "metrics.jsonl").c_str(), &info) != 0) return {};
    return fmt::format("{} {} {}.{:09}", info.st_ino, info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
  }
  const JobFlags& flags_;
  std::vector<std::string> words_;
  std::filesystem::path run_;
  int processes_;
  bool got_going_ = false;
  std::optional<Layout> whole_;
};

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
  flags.add("Processes", "--min-ranks", min_ranks, "COUNT",
            "with --restarts: go on with fewer processes, and this many ranks at least, where not all start; 0: never");
}

bool is_to_launch(const JobFlags& flags) {
  return flags.processes > 0 && !started_by_mpi();
}

Result<int> launch_job(const JobFlags& flags, int argc, const char* const* argv, const std::filesystem::path& run) {
  PLAIT_TRY_VOID(check_mpi_is_built_in());
  const std::vector<std::string> own = {"--processes", "--restarts", "--min-ranks"};
  Starts starts(flags, without({argv, argv + argc}, own), run);
  set_environment();
  std::signal(SIGINT, &on_signal);
  std::signal(SIGTERM, &on_signal);
  int code = starts.start();
  for (int restart = 1; restart <= flags.restarts && is_worth_a_restart(code) && signals_caught == 0; ++restart) {
    std::fputs(fmt::format("the job ended with {}; restart {} of {} from the newest checkpoint\n", code, restart,
                           flags.restarts)
                   .c_str(),
               stderr);
    starts.resume();
    code = starts.start();
    // A smaller shape may be refused: then one that is smaller still.
    const auto may_shrink = [&] {
      return flags.min_ranks > 0 && code != 0 && !starts.got_going() && signals_caught == 0 &&
             (starts.is_smaller() || code != exit_code(ErrorCode::kInvalidArgument));
    };
    while (may_shrink() && starts.shrink()) code = starts.start();
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
