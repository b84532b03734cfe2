#pragma once

#include "plait/base/result.h"
#include "plait/run/engine/engine.h"
#include "plait/run/engine/process_group.h"
#include "plait/run/train/checkpoint.h"

#include <c10/core/ScalarType.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace plait {

/// Writes the checkpoints of a run: every process its own share of the weights and moments, at their places in files that
/// all have in common, on a thread of its own while steps go on. The folder grows under a temporary name; when all shares
/// are on the disk, process 0 writes the manifest over all of them and renames.
///
///     engine.copy_shares(writer.shares());
///     PLAIT_TRY_VOID(writer.begin(state));
///     ...steps, until writer.is_written() on all processes, or until the next one is due...
///     PLAIT_TRY(const fs::path checkpoint, writer.finish());
///
/// `begin` and `finish` are calls of all processes.
class CheckpointWriter {
 public:
  struct Target {
    std::filesystem::path run;
    ModelConfig config;
    at::ScalarType type = at::kFloat;  ///< of weights and moments
    CheckpointOptions options;
    ProcessGroup* processes = nullptr;  ///< null: this process has everything
  };
  explicit CheckpointWriter(Target target);
  /// Waits for the thread; what is not finished is removed.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// To be filled before `begin`, and left alone until `finish` is through.
  StateShares& shares() { return shares_; }

  /// \errors kIo "checkpoint.write"
  Result<> begin(const RunState& state);
  /// Is one under way?
  [[nodiscard]] bool is_busy() const { return step_.has_value(); }
  /// Has this process written its share, or failed to?
  [[nodiscard]] bool is_written() const { return written_.load(std::memory_order_acquire); }
  /// Waits for all shares, and gives the checkpoint its name.
  /// \returns its path
  /// \errors  kIo "checkpoint.write": disk full and the like, nothing is left behind; "checkpoint.not_finite" names the tensor
  Result<std::filesystem::path> finish();

 private:
  /// What was written of a file.
  struct Segment {
    std::uint32_t file = 0;  ///< index into files_
    std::uint64_t begin = 0;
    std::uint64_t bytes = 0;
    std::uint64_t crc = 0;
  };
  struct File {
    std::string name;
    std::string head;                              ///< first bytes, from process 0
    std::map<std::string, std::uint64_t> offsets;  ///< of tensors, by name
    std::uint64_t bytes = 0;
  };
  [[nodiscard]] bool leads() const;
  void plan(const RunState& state);
  Result<> make_files(const RunState& state);
  Result<> write_share();
  Result<> seal(std::vector<Segment> segments);
  [[nodiscard]] Error failed(const Error& error) const;
  void abandon();

  Target target_;
  StateShares shares_;
  std::filesystem::path temporary_;
  std::optional<std::int64_t> step_;  ///< of the one under way
  std::vector<File> files_;
  std::vector<Segment> segments_;  ///< of this process
  std::optional<Error> error_;     ///< of the thread
  std::thread thread_;
  std::atomic<bool> written_ = false;
};

}  // namespace plait
