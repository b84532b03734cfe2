#pragma once

#include "plait/base/ids.h"
#include "plait/base/result.h"
#include "plait/ir/value.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace plait {

/// One line of metrics.jsonl.
struct StepMetrics {
  std::int64_t step = 0;  ///< 1 for the first update
  double loss = 0;        ///< mean over the step's valid tokens, before the update
  double grad_norm = 0;   ///< global norm before clipping
  double lr = 0;
  std::int64_t tokens = 0;                   ///< valid tokens of this step
  double tokens_per_s = 0;                   ///< tokens / step_s
  double step_s = 0;                         ///< time of the step, without evaluation and checkpoints
  std::vector<Bytes> peak_bytes;             ///< per rank, highest so far
  std::vector<Bytes> bytes_moved;            ///< per rank, sent in this step
  std::map<ValueKind, Bytes> moved_by_kind;  ///< the same over all ranks, for each kind of value that moved
  std::int64_t samples = 0;                  ///< rows consumed so far
  std::int64_t epoch = 0;
  std::int64_t skipped = 0;        ///< batches passed over since the update before, as something was not finite
  std::optional<double> val_loss;  ///< where this step was followed by an evaluation
};

/// The line, without line end. Numbers have the digits that read back to the same value.
std::string metrics_line(const StepMetrics& metrics);

/// RUN/metrics.jsonl, one line per step, each written at once: a killed run leaves whole lines, or a torn last one that
/// open() removes.
class MetricsLog {
 public:
  /// Opens or makes the file and keeps an earlier run's lines of steps up to `steps_done`: the steps after it are done anew.
  static Result<MetricsLog> open(const std::filesystem::path& file, std::int64_t steps_done);
  MetricsLog(MetricsLog&& other) noexcept;
  MetricsLog& operator=(MetricsLog&&) = delete;
  ~MetricsLog();

  /// \errors kIo "io.write"; the file then ends with the line before
  Result<> append(const StepMetrics& metrics);
  /// fsync, so that no checkpoint is newer than its lines.
  Result<> sync();

 private:
  MetricsLog(std::filesystem::path file, int fd, std::int64_t size);
  std::filesystem::path file_;
  int fd_ = -1;
  std::int64_t size_ = 0;  ///< end of the last whole line
};

}  // namespace plait
