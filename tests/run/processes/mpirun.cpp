#include "mpirun.h"

#include "run_command.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

namespace plait::test {
namespace {

namespace fs = std::filesystem;

void set_environment() {
  for (const char* name :
       {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe"})
    ::setenv(name, "1", 1);
  ::setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 1);
}

}  // namespace

bool has_mpirun() {
  return !std::string(PLAIT_MPIRUN).empty() && fs::exists(PLAIT_MPIRUN);
}

JobResult run_alone(const std::vector<std::string>& command, const std::function<void(pid_t)>& meanwhile) {
  int out_pipe[2];
  int err_pipe[2];
  if (::pipe2(out_pipe, O_CLOEXEC) != 0 || ::pipe2(err_pipe, O_CLOEXEC) != 0) return {};
  std::vector<std::string> words = command;
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const auto start = std::chrono::steady_clock::now();
  const pid_t child = ::fork();
  if (child == 0) {
    ::setpgid(0, 0);
    ::dup2(out_pipe[1], STDOUT_FILENO);
    ::dup2(err_pipe[1], STDERR_FILENO);
    set_environment();
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ::close(out_pipe[1]);
  ::close(err_pipe[1]);
  JobResult result;
  std::thread out_reader([&] { result.out = drain(out_pipe[0]); });
  std::thread err_reader([&] {
    std::vector<char> chunk(1U << 16U);
    for (ssize_t count = 0; (count = ::read(err_pipe[0], chunk.data(), chunk.size())) > 0;) {
      result.err.append(chunk.data(), static_cast<std::size_t>(count));
      result.err_times.emplace_back(std::chrono::steady_clock::now(), result.err.size());
    }
    ::close(err_pipe[0]);
  });
  if (meanwhile) meanwhile(child);
  int status = 0;
  ::waitpid(child, &status, 0);
  result.seconds = std::chrono::steady_clock::now() - start;
  out_reader.join();
  err_reader.join();
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

JobResult run_job(int num_processes, const std::vector<std::string>& command,
                  const std::function<void(pid_t)>& meanwhile) {
  std::vector<std::string> words = {PLAIT_MPIRUN, "-np", std::to_string(num_processes)};
  words.insert(words.end(), command.begin(), command.end());
  return run_alone(words, meanwhile);
}

std::vector<pid_t> descendants(pid_t ancestor, const std::string& name) {
  std::vector<std::pair<pid_t, pid_t>> parents;
  std::vector<std::pair<pid_t, std::string>> names;
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator("/proc", ec)) {
    const std::string id = entry.path().filename().string();
    if (id.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream in(entry.path() / "stat");
    std::string text{std::istreambuf_iterator<char>(in), {}};
    const std::size_t open = text.find('(');
    const std::size_t close = text.rfind(')');
    if (open == std::string::npos || close == std::string::npos) continue;
    std::istringstream rest(text.substr(close + 1));
    char state = 0;
    pid_t parent = 0;
    rest >> state >> parent;
    if (state == 'Z') continue;
    parents.emplace_back(std::stoi(id), parent);
    names.emplace_back(std::stoi(id), text.substr(open + 1, close - open - 1));
  }
  std::vector<pid_t> found = {ancestor};
  for (std::size_t i = 0; i < found.size(); ++i)
    for (const auto& [process, parent] : parents)
      if (parent == found[i]) found.push_back(process);
  std::vector<pid_t> result;
  for (std::size_t i = 1; i < found.size(); ++i)
    for (const auto& [process, its_name] : names)
      if (process == found[i] && (name.empty() || its_name == name)) result.push_back(process);
  return result;
}

bool is_alive(pid_t process) {
  std::ifstream in("/proc/" + std::to_string(process) + "/stat");
  std::string text{std::istreambuf_iterator<char>(in), {}};
  const std::size_t close = text.rfind(')');
  return close != std::string::npos && close + 2 < text.size() && text[close + 2] != 'Z';
}

std::string variable_of(pid_t process, const std::string& name) {
  std::ifstream in("/proc/" + std::to_string(process) + "/environ");
  for (std::string entry; std::getline(in, entry, '\0');)
    if (entry.starts_with(name + "=")) return entry.substr(name.size() + 1);
  return {};
}

}  // namespace plait::test
