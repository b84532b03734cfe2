#pragma once

#include "plait/base/ids.h"

#include <ATen/core/TensorBody.h>

#include <atomic>
#include <cstdint>
#include <vector>

namespace plait {

/// Live and highest number of bytes that one holder (a rank) has in tensors. Bytes are counted as asked for, rounded up
/// to 64, whatever size class serves them: the figures depend on the program only, not on timing or on the cache.
///
/// \threads  any thread may charge and release; relaxed counters, exact once the holder is at rest
class MemoryAccount {
 public:
  void charge(std::int64_t bytes) {
    const std::int64_t live = live_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    std::int64_t peak = peak_.load(std::memory_order_relaxed);
    while (live > peak && !peak_.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
    }
  }
  void release(std::int64_t bytes) { live_.fetch_sub(bytes, std::memory_order_relaxed); }
  [[nodiscard]] Bytes live() const { return Bytes{live_.load(std::memory_order_relaxed)}; }
  [[nodiscard]] Bytes peak() const { return Bytes{peak_.load(std::memory_order_relaxed)}; }

 private:
  std::atomic<std::int64_t> live_ = 0;
  std::atomic<std::int64_t> peak_ = 0;
};

/// Makes the caching, accounting allocator the one that ATen's CPU tensors come from. Idempotent; tensors made earlier
/// keep their own deleter and are not accounted.
///
/// Freed blocks wait in per-thread free lists of size classes, so a steady step asks the system for nothing and touches no
/// fresh page; a block freed by another thread goes back to the list of the thread that allocated it.
void install_accounting_allocator();

/// A new account. Blocks may outlive every engine, so accounts live as long as the process (128 bytes each).
MemoryAccount& make_memory_account();

/// What no AccountScope covers.
MemoryAccount& common_memory_account();

/// Charges what this thread allocates to an account, until the end of the scope.
class AccountScope {
 public:
  explicit AccountScope(MemoryAccount& account);
  ~AccountScope();
  AccountScope(const AccountScope&) = delete;
  AccountScope& operator=(const AccountScope&) = delete;

 private:
  MemoryAccount* outer_;
};

/// Moves the charge for a tensor's storage to `account`. Tensors of other allocators are left alone.
///
/// \threads  the caller must be the storage's only holder
void charge_to(const at::Tensor& tensor, MemoryAccount& account);

/// Further handles on the bytes of tensors, for another holder: nothing is copied. Each holder is charged for the bytes as
/// long as it holds them, as if it had its own; so the figures do not depend on who lets go first. From now on all holders
/// may only read: the storages are marked as not resizable, which kernels::is_sole_owner respects.
///
/// Views of one storage remain views of one. Undefined tensors stay so; tensors of other allocators are copied.
///
/// \threads  all handles on the storages are the caller's
std::vector<at::Tensor> share(const std::vector<at::Tensor>& tensors, MemoryAccount& account);

enum class FreedMemory : std::uint8_t {
  kLeaveAsIs,
  kFillWithNaN,  ///< every freed byte becomes 0xff, a NaN in each floating type: what is read after its free shows
};
/// A switch for tests and debugging; holds for the whole process.
void set_freed_memory(FreedMemory rule);

/// Bytes that the allocator took from the system so far; constant in a steady step.
Bytes reserved_memory();

}  // namespace plait
