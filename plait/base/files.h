#pragma once

#include "plait/base/result.h"

#include <string>
#include <string_view>

namespace plait {

/// The whole file.
/// \errors kIo "io.read": missing, a folder, unreadable
Result<std::string> read_file(const std::string& path);

/// A file that appears under its name only when it is whole: written under a temporary name beside it, synchronised to the
/// disk, then renamed. What is not committed is removed.
///
///     PLAIT_TRY(AtomicFile file, AtomicFile::create("out/metrics.json"));
///     PLAIT_TRY_VOID(file.write(text));
///     return file.commit();
class AtomicFile {
 public:
  /// \errors kIo "io.write"
  static Result<AtomicFile> create(const std::string& path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  /// Appends. \errors kIo "io.write", for instance when the disk is full
  Result<> write(std::string_view bytes);
  /// Makes it durable and gives it its name; nothing may be written after.
  Result<> commit();

 private:
  AtomicFile(std::string path, std::string temporary, int descriptor);
  [[nodiscard]] Error failed(std::string_view what) const;

  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
};

/// Writes a whole file in one go, atomically.
Result<> write_file(const std::string& path, std::string_view bytes);

}  // namespace plait
