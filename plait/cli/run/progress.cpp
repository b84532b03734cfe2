#include "plait/cli/run/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace plait::cli {
namespace {

std::string clock_time(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace

void print_note(const std::string& note) {
  if (!note.empty()) std::fprintf(stderr, "%s\n", note.c_str());
}

Progress::Progress(std::int64_t log_every) : terminal_(::isatty(STDERR_FILENO) != 0), log_every_(log_every) {}

void Progress::on_start(std::int64_t first_step, std::int64_t last_step) {
  first_step_ = first_step;
  last_step_ = last_step;
  constexpr std::int64_t kPlainLines = 20;
  if (log_every_ <= 0) log_every_ = std::max<std::int64_t>(1, (last_step - first_step + 1) / kPlainLines);
  start_ = std::chrono::steady_clock::now();
}

std::string Progress::step_line(const StepMetrics& metrics) const {
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const auto done = static_cast<double>(metrics.step - first_step_ + 1);
  const double left = elapsed / done * static_cast<double>(last_step_ - metrics.step);
  std::string line =
      fmt::format("step {:>5}/{}  loss {:.4f}  grad norm {:.3f}  lr {:.2e}  {:.0f} tokens/s  {} left", metrics.step,
                  last_step_, metrics.loss, metrics.grad_norm, metrics.lr, metrics.tokens_per_s, clock_time(left));
  if (metrics.val_loss) line += fmt::format("  validation loss {:.4f}", *metrics.val_loss);
  return line;
}

void Progress::on_step(const StepMetrics& metrics) {
  const bool landmark = metrics.step == first_step_ || metrics.step == last_step_ || metrics.step % log_every_ == 0 ||
                        metrics.val_loss.has_value();
  if (terminal_) {
    // Landmarks stay on the screen, so that the falling loss can be seen.
    std::fprintf(stderr, "\r\033[K%s%s", step_line(metrics).c_str(), landmark ? "\n" : "");
    line_open_ = !landmark;
    std::fflush(stderr);
  } else if (landmark) {
    plain(step_line(metrics));
  }
}

void Progress::on_checkpoint(const std::filesystem::path& checkpoint) {
  plain("checkpoint " + checkpoint.string());
}
void Progress::on_note(const std::string& note) {
  plain(note);
}

void Progress::finish() {
  if (line_open_) std::fputc('\n', stderr);
  line_open_ = false;
}

void Progress::plain(const std::string& line) {
  finish();
  std::fprintf(stderr, "%s\n", line.c_str());
}

}  // namespace plait::cli
