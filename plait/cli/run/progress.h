#pragma once

#include "plait/run/train/trainer.h"

#include <chrono>
#include <cstdint>
#include <string>

namespace plait::cli {

/// A line on stderr, unless it is empty.
void print_note(const std::string& note);

/// Shows a run on stderr: one line that renews itself on a terminal, plain lines elsewhere.
class Progress final : public TrainObserver {
 public:
  /// \param log_every  steps between plain lines; 0: twenty lines in all
  explicit Progress(std::int64_t log_every);
  void on_start(std::int64_t first_step, std::int64_t last_step) override;
  void on_step(const StepMetrics& metrics) override;
  void on_checkpoint(const std::filesystem::path& checkpoint) override;
  void on_note(const std::string& note) override;
  /// Ends the renewing line.
  void finish();

 private:
  [[nodiscard]] std::string step_line(const StepMetrics& metrics) const;
  void plain(const std::string& line);

  bool terminal_;
  std::int64_t log_every_;
  std::int64_t first_step_ = 1;
  std::int64_t last_step_ = 1;
  std::chrono::steady_clock::time_point start_;
  bool line_open_ = false;
};

}  // namespace plait::cli
