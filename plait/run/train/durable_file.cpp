#include "plait/run/train/durable_file.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

namespace plait {
namespace {

namespace fs = std::filesystem;

/// tables[0] steps one byte; tables[k] steps a byte that k more follow ("slicing by 8").
using CrcTables = std::array<std::array<std::uint64_t, 256>, 8>;

constexpr std::uint64_t kPolynomial = 0xc96c5795d7870f42ULL;  // 0x42f0e1eba9ea3693 with its bits reversed

constexpr CrcTables make_crc_tables() {
  CrcTables tables{};
  for (std::uint64_t byte = 0; byte < 256; ++byte) {
    std::uint64_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1U) != 0 ? (crc >> 1U) ^ kPolynomial : crc >> 1U;
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint64_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8U) ^ tables[0][before & 0xffU];
    }
  return tables;
}
constexpr CrcTables kCrcTables = make_crc_tables();

/// Product of two polynomials modulo that of the checksum. The highest bit is x^0.
std::uint64_t multiplied(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  for (int bit = 63; bit >= 0; --bit) {
    if ((a >> static_cast<unsigned>(bit) & 1U) != 0) product ^= b;
    b = (b & 1U) != 0 ? (b >> 1U) ^ kPolynomial : b >> 1U;
  }
  return product;
}

/// An open file that closes itself.
class Descriptor {
 public:
  Descriptor(const fs::path& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

Error io_error(std::string_view rule, const fs::path& path, std::string_view verb) {
  return make_error(ErrorCode::kIo, rule, "{}: {}: {}", path.string(), verb, std::strerror(errno));
}

template <class Consume>
Result<> read_chunks(const fs::path& file, const Consume& consume) {
  const Descriptor in(file, O_RDONLY);
  if (in.get() < 0) return io_error("io.read", file, "cannot be opened");
  std::string chunk(1U << 20U, '\0');
  while (true) {
    const ssize_t count = ::read(in.get(), chunk.data(), chunk.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return io_error("io.read", file, "reading failed");
    if (count == 0) return {};
    consume(std::string_view(chunk).substr(0, static_cast<std::size_t>(count)));
  }
}

}  // namespace

std::uint64_t crc64(std::string_view bytes, std::uint64_t crc) {
  crc = ~crc;
  while (bytes.size() >= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), 8);
    crc ^= word;
    std::uint64_t next = 0;
    for (std::size_t k = 0; k < 8; ++k) next ^= kCrcTables[7 - k][(crc >> (8 * k)) & 0xffU];
    crc = next;
    bytes.remove_prefix(8);
  }
  for (const char c : bytes) crc = (crc >> 8U) ^ kCrcTables[0][(crc ^ static_cast<unsigned char>(c)) & 0xffU];
  return ~crc;
}

std::uint64_t crc64_joined(std::uint64_t first, std::uint64_t second, std::uint64_t bytes) {
  // The second piece moves the first up by x^(8 bytes); what inverts the register at both ends cancels out.
  std::uint64_t power = std::uint64_t{1} << (63U - 8U);  // x^8
  for (; bytes > 0; bytes >>= 1U) {
    if ((bytes & 1U) != 0) first = multiplied(first, power);
    power = multiplied(power, power);
  }
  return first ^ second;
}

Result<FileDigest> digest_file(const fs::path& file) {
  FileDigest digest;
  PLAIT_TRY_VOID(read_chunks(file, [&](std::string_view chunk) {
    digest.bytes += chunk.size();
    digest.crc = crc64(chunk, digest.crc);
  }));
  return digest;
}

Result<> sync_path(const fs::path& path) {
  const Descriptor fd(path, O_RDONLY);
  if (fd.get() < 0) return io_error("io.write", path, "cannot be opened for fsync");
  if (::fsync(fd.get()) != 0) return io_error("io.write", path, "fsync failed");
  return {};
}

Result<SharedFile> SharedFile::open(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return io_error("io.write", path, "cannot be opened");
  return SharedFile(path, fd);
}

SharedFile::SharedFile(SharedFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

SharedFile::~SharedFile() {
  if (fd_ >= 0) ::close(fd_);
}

Result<> SharedFile::write(std::string_view bytes, std::uint64_t begin) const {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(begin));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return io_error("io.write", path_, "writing failed");
    bytes.remove_prefix(static_cast<std::size_t>(count));
    begin += static_cast<std::uint64_t>(count);
  }
  return {};
}

Result<> SharedFile::sync() const {
  if (::fsync(fd_) != 0) return io_error("io.write", path_, "fsync failed");
  return {};
}

Result<> make_file(const fs::path& path, std::uint64_t bytes) {
  const Descriptor fd(path, O_WRONLY | O_CREAT | O_TRUNC);
  if (fd.get() < 0) return io_error("io.write", path, "cannot be made");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return io_error("io.write", path, "writing failed");
  return {};
}

Result<> make_folder(const fs::path& folder) {
  std::error_code ec;
  fs::create_directories(folder, ec);
  if (ec)
    return make_error(ErrorCode::kIo, "io.write", "{}: the folder cannot be made: {}", folder.string(), ec.message());
  return {};
}

Result<std::uint64_t> free_bytes(const fs::path& path) {
  std::error_code ec;
  fs::path existing = fs::absolute(path, ec);
  while (!fs::exists(existing, ec) && existing.has_relative_path()) existing = existing.parent_path();
  struct statvfs info {};
  if (::statvfs(existing.c_str(), &info) != 0) return io_error("io.read", existing, "free space is unknown");
  return std::uint64_t{info.f_bavail} * info.f_frsize;
}

}  // namespace plait
