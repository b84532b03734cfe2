#include "tests/cli/run_plait.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace plait {

TemporaryFolder::TemporaryFolder() {
  path_ = (std::filesystem::temp_directory_path() / "plait-cli-XXXXXX").string();
  if (::mkdtemp(path_.data()) == nullptr) std::abort();
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string read_text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

Outcome run_plait(const std::vector<std::string>& arguments, const std::string& folder) {
  return run_program(PLAIT_BIN, arguments, folder);
}

Outcome run_program(const std::string& program, const std::vector<std::string>& arguments, const std::string& folder) {
  const TemporaryFolder streams;
  std::vector<char*> argv;
  std::string name = program;
  std::vector<std::string> copies = arguments;
  argv.push_back(name.data());
  for (std::string& argument : copies) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    constexpr int kMode = 0600;
    const int in = ::open("/dev/null", O_RDONLY);
    const int out = ::open(streams.file("out").c_str(), O_WRONLY | O_CREAT, kMode);
    const int err = ::open(streams.file("err").c_str(), O_WRONLY | O_CREAT, kMode);
    constexpr int kNotStarted = 126;
    if (in < 0 || out < 0 || err < 0 || ::dup2(in, STDIN_FILENO) < 0 || ::dup2(out, STDOUT_FILENO) < 0 ||
        ::dup2(err, STDERR_FILENO) < 0)
      ::_exit(kNotStarted);
    if (!folder.empty() && ::chdir(folder.c_str()) != 0) ::_exit(kNotStarted);
    ::execv(program.c_str(), argv.data());
    ::_exit(kNotStarted);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1,
          .out = read_text(streams.file("out")),
          .err = read_text(streams.file("err"))};
}

}  // namespace plait
