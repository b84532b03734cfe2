#include "plait/cli/run/stop_signal.h"

#include <unistd.h>

#include <csignal>
#include <string_view>

namespace plait::cli {
namespace {

volatile std::sig_atomic_t stop_flag = 0;

void on_signal(int signal) {
  stop_flag = 1;
  std::signal(signal, SIG_DFL);
  constexpr std::string_view kWords = "\nstopping behind this step and writing a checkpoint; once more ends at once\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kWords.data(), kWords.size());
}

void on_job_signal(int) {
  stop_flag = 1;
}

}  // namespace

void catch_job_signals() {
  std::signal(SIGUSR1, &on_job_signal);
  std::signal(SIGTERM, &on_job_signal);
}

void catch_stop_signals() {
  std::signal(SIGINT, &on_signal);
  std::signal(SIGTERM, &on_signal);
}

bool stop_requested() {
  return stop_flag != 0;
}

}  // namespace plait::cli
