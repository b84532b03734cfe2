#include "run_command.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

namespace plait::test {

std::string drain(int fd) {
  std::string text;
  std::vector<char> chunk(1U << 16U);
  for (ssize_t count = 0; (count = ::read(fd, chunk.data(), chunk.size())) > 0;)
    text.append(chunk.data(), static_cast<std::size_t>(count));
  ::close(fd);
  return text;
}

namespace {

namespace fs = std::filesystem;

CommandResult run(const std::vector<std::string>& words, const std::function<void()>& before_exec,
                  const std::function<void(pid_t)>& meanwhile) {
  int out_pipe[2];
  int err_pipe[2];
  if (::pipe2(out_pipe, O_CLOEXEC) != 0 || ::pipe2(err_pipe, O_CLOEXEC) != 0) return {};
  std::vector<char*> argv;
  std::string binary = PLAIT_RUN_BINARY;
  argv.push_back(binary.data());
  std::vector<std::string> copies = words;
  for (std::string& word : copies) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(out_pipe[1], STDOUT_FILENO);
    ::dup2(err_pipe[1], STDERR_FILENO);
    if (before_exec) before_exec();
    ::execv(binary.c_str(), argv.data());
    ::_exit(127);
  }
  ::close(out_pipe[1]);
  ::close(err_pipe[1]);
  CommandResult result;
  std::thread out_reader([&] { result.out = drain(out_pipe[0]); });
  std::thread err_reader([&] { result.err = drain(err_pipe[0]); });
  if (meanwhile) meanwhile(child);
  int status = 0;
  ::waitpid(child, &status, 0);
  out_reader.join();
  err_reader.join();
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace

CommandResult run_command(const std::vector<std::string>& words, const std::function<void(pid_t)>& meanwhile) {
  return run(words, {}, meanwhile);
}

CommandResult run_command_on_small_disk(const std::vector<std::string>& words, std::uint64_t bytes) {
  const auto limit = [&] {
    const rlimit sizes{.rlim_cur = bytes, .rlim_max = bytes};
    ::setrlimit(RLIMIT_FSIZE, &sizes);
    ::signal(SIGXFSZ, SIG_IGN);  // The write fails instead.
  };
  return run(words, limit, {});
}

TestFolder::TestFolder() {
  const auto* info = testing::UnitTest::GetInstance()->current_test_info();
  std::string name =
      std::string("plait_") + info->test_suite_name() + "_" + info->name() + "_" + std::to_string(::getpid());
  for (char& c : name)
    if (c == '/') c = '_';
  path_ = fs::path(testing::TempDir()) / name;
  fs::remove_all(path_);
  fs::create_directories(path_);
}

TestFolder::~TestFolder() {
  std::error_code ec;
  fs::remove_all(path_, ec);
}

std::string slurp(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void spill(const fs::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary) << bytes;
}

std::vector<nlohmann::json> metrics_of(const fs::path& run) {
  std::vector<nlohmann::json> lines;
  std::ifstream in(run / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

std::vector<double> column(const std::vector<nlohmann::json>& lines, const std::string& key) {
  std::vector<double> values;
  for (const auto& line : lines) values.push_back(line.at(key).get<double>());
  return values;
}

std::string sample_text(std::size_t bytes) {
  const std::vector<std::string> words = {"the ", "lord ", "said ", "unto ",  "them ",
                                          "and ", "he ",   "went ", "forth. "};
  std::string text;
  for (std::size_t i = 1; text.size() < bytes; ++i) text += words[(i * i + i / 3) % words.size()];
  return text;
}

std::vector<std::string> tiny_run(const fs::path& text, const fs::path& out) {
  return {"train",
          "--text",
          text.string(),
          "--out",
          out.string(),
          "--seq",
          "16",
          "--layers",
          "4",
          "--hidden",
          "16",
          "--heads",
          "2",
          "--microbatch-size",
          "2",
          "--warmup",
          "2",
          "--lr",
          "1e-2",
          "--val-fraction",
          "0.1",
          "--sample-tokens",
          "0"};
}

std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace plait::test
