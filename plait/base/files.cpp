#include "plait/base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

namespace plait {
namespace {

std::string describe_errno(int number) {
  return std::generic_category().message(number);
}

/// Closes on the way out.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  [[nodiscard]] int get() const { return value_; }

 private:
  int value_;
};

std::string folder_of(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace

Result<std::string> read_file(const std::string& path) {
  const auto failed = [&](int number) {
    return make_error(ErrorCode::kIo, "io.read", "{}: cannot be read: {}", path, describe_errno(number));
  };
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return failed(errno);
  std::string text;
  std::array<char, 1 << 16> buffer{};
  for (;;) {
    const ssize_t count = ::read(file.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return failed(errno);
    if (count == 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

AtomicFile::AtomicFile(std::string path, std::string temporary, int descriptor)
    : path_(std::move(path)), temporary_(std::move(temporary)), descriptor_(descriptor) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Error AtomicFile::failed(std::string_view what) const {
  return make_error(ErrorCode::kIo, "io.write", "{}: {}: {}", path_, what, describe_errno(errno));
}

Result<AtomicFile> AtomicFile::create(const std::string& path) {
  std::string temporary = path + ".partial.XXXXXX";
  const int descriptor = ::mkostemp(temporary.data(), O_CLOEXEC);
  if (descriptor < 0)
    return make_error(ErrorCode::kIo, "io.write", "{}: cannot be created: {}", path, describe_errno(errno));
  AtomicFile file(path, std::move(temporary), descriptor);
  // mkostemp gives the owner alone access; a result is readable like any other new file.
  const mode_t mask = ::umask(0);
  ::umask(mask);
  constexpr mode_t kReadableByAll = 0666;
  if (::fchmod(descriptor, kReadableByAll & ~mask) != 0) return file.failed("cannot be created");
  return file;
}

Result<> AtomicFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return failed("cannot be written");
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return {};
}

Result<> AtomicFile::commit() {
  PLAIT_CHECK(descriptor_ >= 0, "committed twice");
  if (::fsync(descriptor_) != 0) return failed("cannot be written");
  if (::close(std::exchange(descriptor_, -1)) != 0) return failed("cannot be written");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return failed("cannot be given its name");
  temporary_.clear();
  // The name is durable once its folder is; a file system that cannot sync folders has done what it can.
  const Descriptor folder(::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() >= 0) ::fsync(folder.get());
  return {};
}

Result<> write_file(const std::string& path, std::string_view bytes) {
  PLAIT_TRY(AtomicFile file, AtomicFile::create(path));
  PLAIT_TRY_VOID(file.write(bytes));
  return file.commit();
}

}  // namespace plait
