#include "plait/run/processes/node_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace plait {

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) ::munmap(data_, address_.size);
  close_file();
}

void SharedMemory::close_file() {
  if (address_.file >= 0) ::close(std::exchange(address_.file, -1));
}

std::optional<SharedMemory> SharedMemory::make(std::size_t size) {
  SharedMemory made;
  const int file = ::memfd_create("plait-node", MFD_CLOEXEC);
  if (file < 0) return std::nullopt;
  made.address_ = {.process = ::getpid(), .file = file, .size = size};
  if (::ftruncate(file, static_cast<off_t>(size)) != 0) return std::nullopt;
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) return std::nullopt;
  made.data_ = static_cast<std::byte*>(data);
  return made;
}

std::optional<SharedMemory> SharedMemory::map(const Address& address) {
  const int file = ::open(fmt::format("/proc/{}/fd/{}", address.process, address.file).c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  void* data = ::mmap(nullptr, address.size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (data == MAP_FAILED) return std::nullopt;
  SharedMemory mapped;
  mapped.data_ = static_cast<std::byte*>(data);
  mapped.address_ = {.process = address.process, .file = -1, .size = address.size};
  return mapped;
}

bool read_process(pid_t process, std::span<const RemotePiece> pieces) {
  constexpr std::size_t kBatch = 64;  // pieces of one call; the system takes 1024
  std::array<iovec, kBatch> into{};
  std::array<iovec, kBatch> from{};
  std::size_t at = 0;    // piece
  std::size_t done = 0;  // bytes of it
  while (at < pieces.size()) {
    std::size_t count = 0;
    for (std::size_t i = at; i < pieces.size() && count < kBatch; ++i) {
      const std::size_t skipped = i == at ? done : 0;
      if (pieces[i].size == skipped) continue;
      into[count] = {.iov_base = static_cast<std::byte*>(pieces[i].into) + skipped,
                     .iov_len = pieces[i].size - skipped};
      // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of another process
      from[count] = {.iov_base = reinterpret_cast<void*>(pieces[i].from + skipped),
                     .iov_len = pieces[i].size - skipped};
      ++count;
    }
    if (count == 0) return true;
    const ssize_t read = ::process_vm_readv(process, into.data(), count, from.data(), count, 0);
    if (read <= 0) return false;
    // A call may end early, in the middle of a piece.
    for (auto left = static_cast<std::size_t>(read); at < pieces.size();) {
      const std::size_t taken = std::min(left, pieces[at].size - done);
      left -= taken;
      done += taken;
      if (done < pieces[at].size) break;
      ++at;
      done = 0;
    }
  }
  return true;
}

}  // namespace plait
