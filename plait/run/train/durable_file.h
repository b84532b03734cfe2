#pragma once

#include "plait/base/result.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

namespace plait {

/// CRC-64/XZ: reflected polynomial 0x42f0e1eba9ea3693. \test "123456789" gives 995dc9bbdf1939fa
std::uint64_t crc64(std::string_view bytes, std::uint64_t crc = 0);

/// The checksum of two pieces behind each other, from theirs. \param bytes  of the second
std::uint64_t crc64_joined(std::uint64_t first, std::uint64_t second, std::uint64_t bytes);

/// Size and checksum of a file.
struct FileDigest {
  std::uint64_t bytes = 0;
  std::uint64_t crc = 0;
  friend bool operator==(const FileDigest&, const FileDigest&) = default;
};
/// \errors kIo "io.read"
Result<FileDigest> digest_file(const std::filesystem::path& file);

/// Makes what was written to a file, or the names in a folder, outlive a power cut.
Result<> sync_path(const std::filesystem::path& path);

/// A file that several processes write, each at its own places.
class SharedFile {
 public:
  /// One that is there. \errors kIo "io.write"
  static Result<SharedFile> open(const std::filesystem::path& path);
  SharedFile(SharedFile&& other) noexcept;
  SharedFile& operator=(SharedFile&&) = delete;
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;
  ~SharedFile();
  Result<> write(std::string_view bytes, std::uint64_t begin) const;
  /// What this process wrote outlives a power cut.
  [[nodiscard]] Result<> sync() const;

 private:
  SharedFile(std::filesystem::path path, int fd) : path_(std::move(path)), fd_(fd) {}
  std::filesystem::path path_;
  int fd_;
};
/// An empty one of this size, of zeros. \errors kIo "io.write"
Result<> make_file(const std::filesystem::path& path, std::uint64_t bytes);

/// mkdir -p. \errors kIo "io.write"
Result<> make_folder(const std::filesystem::path& folder);

/// Free bytes of the file system that holds `path` (or will: its nearest existing ancestor).
Result<std::uint64_t> free_bytes(const std::filesystem::path& path);

}  // namespace plait
