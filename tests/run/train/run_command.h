#pragma once

#include <nlohmann/json.hpp>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace plait::test {

struct CommandResult {
  int exit_code = -1;  ///< 128 + signal where one ended it
  std::string out;
  std::string err;
};

/// All that comes from the descriptor until its end; closes it.
std::string drain(int fd);

/// Runs plait-run with these words, in an environment without a terminal.
/// \param meanwhile  called with the process's id once it runs; it may kill it
CommandResult run_command(const std::vector<std::string>& words, const std::function<void(pid_t)>& meanwhile = {});

/// The same where no file can grow beyond `bytes`: a write then fails as it does on a full disk.
CommandResult run_command_on_small_disk(const std::vector<std::string>& words, std::uint64_t bytes);

/// A folder for one test, empty, removed at its end.
class TestFolder {
 public:
  TestFolder();
  ~TestFolder();
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  [[nodiscard]] std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::string slurp(const std::filesystem::path& file);
void spill(const std::filesystem::path& file, const std::string& bytes);

/// The lines of a run's metrics.jsonl.
std::vector<nlohmann::json> metrics_of(const std::filesystem::path& run);
/// One number of each line.
std::vector<double> column(const std::vector<nlohmann::json>& lines, const std::string& key);

/// Some English-like text of about `bytes` bytes, the same every time.
std::string sample_text(std::size_t bytes);

/// Flags of a tiny model on FILE that trains in a second.
std::vector<std::string> tiny_run(const std::filesystem::path& text, const std::filesystem::path& out);
std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b);

}  // namespace plait::test
