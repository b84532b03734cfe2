#include "plait/run/train/metrics.h"

#include "plait/base/files.h"
#include "plait/run/train/durable_file.h"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

namespace plait {
namespace {

Error write_error(const std::filesystem::path& file) {
  return make_error(ErrorCode::kIo, "io.write", "{}: writing failed: {}", file.string(), std::strerror(errno));
}

nlohmann::ordered_json byte_list(const std::vector<Bytes>& bytes) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Bytes b : bytes) list.push_back(b.value());
  return list;
}

/// The whole lines of steps up to `steps_done`; a torn last line is none.
std::string lines_up_to(std::string_view text, std::int64_t steps_done) {
  std::string kept;
  for (std::size_t line_end = text.find('\n'); line_end != std::string_view::npos; line_end = text.find('\n')) {
    const std::string_view line = text.substr(0, line_end + 1);
    const auto entry = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto step = entry.is_object() ? entry.find("step") : entry.end();
    if (step != entry.end() && step->is_number_integer() && step->get<std::int64_t>() <= steps_done) kept += line;
    text.remove_prefix(line_end + 1);
  }
  return kept;
}

}  // namespace

std::string metrics_line(const StepMetrics& metrics) {
  nlohmann::ordered_json line;
  line["step"] = metrics.step;
  line["loss"] = metrics.loss;
  line["grad_norm"] = metrics.grad_norm;
  line["lr"] = metrics.lr;
  line["tokens"] = metrics.tokens;
  line["tokens_per_s"] = metrics.tokens_per_s;
  line["step_s"] = metrics.step_s;
  line["peak_bytes"] = byte_list(metrics.peak_bytes);
  line["bytes_moved"] = byte_list(metrics.bytes_moved);
  line["moved_by_kind"] = nlohmann::ordered_json::object();
  for (const auto& [kind, bytes] : metrics.moved_by_kind)
    line["moved_by_kind"][std::string(to_string(kind))] = bytes.value();
  line["samples"] = metrics.samples;
  line["epoch"] = metrics.epoch;
  if (metrics.skipped > 0) line["skipped"] = metrics.skipped;
  if (metrics.val_loss) line["val_loss"] = *metrics.val_loss;
  return line.dump();
}

MetricsLog::MetricsLog(std::filesystem::path file, int fd, std::int64_t size)
    : file_(std::move(file)), fd_(fd), size_(size) {}

MetricsLog::MetricsLog(MetricsLog&& other) noexcept
    : file_(std::move(other.file_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

MetricsLog::~MetricsLog() {
  if (fd_ >= 0) ::close(fd_);
}

Result<MetricsLog> MetricsLog::open(const std::filesystem::path& file, std::int64_t steps_done) {
  std::string kept;
  std::error_code ec;
  if (steps_done > 0 && std::filesystem::exists(file, ec)) {
    PLAIT_TRY(const std::string old, read_file(file));
    kept = lines_up_to(old, steps_done);
  }
  PLAIT_TRY_VOID(write_file(file, kept));
  const int fd = ::open(file.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (fd < 0) return write_error(file);
  return MetricsLog(file, fd, static_cast<std::int64_t>(kept.size()));
}

Result<> MetricsLog::append(const StepMetrics& metrics) {
  const std::string line = metrics_line(metrics) + "\n";
  const ssize_t written = ::write(fd_, line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) {
    size_ += written;
    return {};
  }
  if (written >= 0) errno = ENOSPC;  // A short write to a regular file means that the disk is full.
  Error error = write_error(file_);
  if (::ftruncate(fd_, size_) != 0) error.message += "; its last line is torn";
  return error;
}

Result<> MetricsLog::sync() {
  if (::fsync(fd_) != 0) return write_error(file_);
  return {};
}

}  // namespace plait
