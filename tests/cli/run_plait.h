#pragma once

#include <string>
#include <vector>

namespace plait {

/// What a run of the program `plait` left.
struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;
};

/// Runs the built program with these arguments, without standard input, from `folder` ("" = the current one).
Outcome run_plait(const std::vector<std::string>& arguments, const std::string& folder = "");

/// The same program under another path.
Outcome run_program(const std::string& program, const std::vector<std::string>& arguments,
                    const std::string& folder = "");

/// A folder of its own for each test, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

void write_text(const std::string& path, const std::string& text);
std::string read_text(const std::string& path);

}  // namespace plait
