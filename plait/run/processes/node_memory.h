#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace plait {

/// Zeroed memory that processes of one machine have in common: one makes it, the others map it. It has no name in any file
/// system, so nothing stays of it when they end, however they do.
class SharedMemory {
 public:
  /// Where others find it, as long as the maker keeps it open.
  struct Address {
    pid_t process = 0;
    int file = -1;
    std::size_t size = 0;
  };
  SharedMemory() = default;
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), address_(std::exchange(other.address_, {})) {}
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(address_, other.address_);
    return *this;
  }

  /// None where the system refuses.
  static std::optional<SharedMemory> make(std::size_t size);
  static std::optional<SharedMemory> map(const Address& address);

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] const Address& address() const { return address_; }
  /// Nobody else will map it.
  void close_file();

 private:
  std::byte* data_ = nullptr;
  Address address_;  ///< its file is -1 where another process made it
};

/// Bytes in the memory of another process, and where they should go.
struct RemotePiece {
  void* into = nullptr;
  std::uint64_t from = 0;
  std::size_t size = 0;
};

/// Copies from the memory of another process. False where the system refuses, or the process is gone.
/// \cost  one copy, by the kernel
bool read_process(pid_t process, std::span<const RemotePiece> pieces);

}  // namespace plait
