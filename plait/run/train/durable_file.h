#pragma once

#include "plait/base/result.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace plait {

/// CRC-64/XZ: reflected polynomial 0x42f0e1eba9ea3693. \test "123456789" gives 995dc9bbdf1939fa
std::uint64_t crc64(std::string_view bytes, std::uint64_t crc = 0);

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

/// mkdir -p. \errors kIo "io.write"
Result<> make_folder(const std::filesystem::path& folder);

/// Free bytes of the file system that holds `path` (or will: its nearest existing ancestor).
Result<std::uint64_t> free_bytes(const std::filesystem::path& path);

}  // namespace plait
