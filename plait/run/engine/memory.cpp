#include "plait/run/engine/memory.h"

#include "plait/base/check.h"
#include "plait/run/engine/sanitizer.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/clone.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <sys/mman.h>

#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace plait {
namespace {

constexpr std::size_t kAlignment = 64;                   // bytes: a cache line, and what the widest vector load wants
constexpr std::size_t kHugePage = std::size_t{2} << 20;  // bytes: x86-64 transparent huge page
constexpr std::size_t kChunk = 4 * kHugePage;            // bytes: smaller blocks are cut from chunks of so many
constexpr std::size_t kLargestCut = kChunk / 2;
constexpr std::size_t kPage = 4096;             // bytes
constexpr std::size_t kShift = 9 * kAlignment;  // bytes: odd in cache lines, so all places of a page come in turn
constexpr std::size_t kStepsPerDoubling = 8;    // size classes per power of two: at most 1/8 of a block is slack
constexpr std::size_t kNumClasses = 64 * kStepsPerDoubling;

struct ThreadCache;

/// Stands in front of every block; the tensor's data follows.
struct alignas(kAlignment) Header {
  ThreadCache* home = nullptr;     ///< where the block goes when it is freed
  MemoryAccount* owner = nullptr;  ///< who is charged for it; none while it is shared
  Header* next = nullptr;          ///< in a free list
  std::size_t bytes = 0;           ///< charged
  std::uint32_t size_class = 0;
};
static_assert(sizeof(Header) == kAlignment);

/// Smallest class whose blocks hold `bytes` (a positive multiple of kAlignment), counted in units of kAlignment.
std::uint32_t size_class_of(std::size_t bytes) {
  const std::size_t units = bytes / kAlignment;
  if (units <= kStepsPerDoubling) return static_cast<std::uint32_t>(units);
  const auto doubling = static_cast<std::size_t>(std::bit_width(units - 1)) - 4;  // units - 1 is in [8, 16) << doubling
  const std::size_t step = ((units - 1) >> doubling) - kStepsPerDoubling + 1;     // rounded up: 1..8
  return static_cast<std::uint32_t>(kStepsPerDoubling * (doubling + 1) + step);
}

std::size_t class_bytes(std::uint32_t size_class) {
  if (size_class <= kStepsPerDoubling) return size_class * kAlignment;
  const std::size_t doubling = (size_class - 1) / kStepsPerDoubling - 1;
  const std::size_t step = (size_class - 1) % kStepsPerDoubling + 1;
  return ((kStepsPerDoubling + step) << doubling) * kAlignment;
}

std::atomic<std::int64_t> reserved_bytes = 0;
std::atomic<FreedMemory> freed_memory = FreedMemory::kLeaveAsIs;

/// Memory on huge pages where the system has them: with 4 KiB pages a product of cold operands waits for translations.
void* fresh_memory(std::size_t bytes) {
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : kAlignment;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  if (alignment == kHugePage) (void)madvise(memory, rounded, MADV_HUGEPAGE);  // advice only: it works without
  reserved_bytes.fetch_add(static_cast<std::int64_t>(rounded), std::memory_order_relaxed);
  return memory;
}

/// Free blocks of one thread. Only that thread takes from it; others give back through `returned`.
struct ThreadCache {
  std::array<Header*, kNumClasses> free = {};
  void* chunk = nullptr;  ///< what is left of the last chunk
  std::size_t chunk_bytes = 0;
  std::size_t shift = 0;  ///< of the next block that has memory of its own, from the start of a page
  std::atomic<Header*> returned = nullptr;

  Header* take(std::uint32_t size_class) {
    if (free[size_class] == nullptr) {
      for (Header* block = returned.exchange(nullptr, std::memory_order_acquire); block != nullptr;) {
        Header* next = block->next;
        put(block);
        block = next;
      }
    }
    Header* block = free[size_class];
    if (block != nullptr) free[size_class] = block->next;
    return block;
  }
  void* more(std::size_t bytes) {
    if (bytes > kLargestCut) {
      // If all began at the same place of a page, rows of two of them would share a few sets of the first cache: with that,
      // a gradient of norm weights takes twice the time and a step of AdamW a tenth more.
      void* memory = static_cast<std::byte*>(fresh_memory(bytes + kPage)) + shift;
      shift = (shift + kShift) % kPage;
      return memory;
    }
    if (chunk_bytes < bytes) {
      chunk = fresh_memory(kChunk);
      chunk_bytes = kChunk;
    }
    void* memory = std::exchange(chunk, static_cast<std::byte*>(chunk) + bytes);
    chunk_bytes -= bytes;
    return memory;
  }
  void put(Header* block) {
    block->next = free[block->size_class];
    free[block->size_class] = block;
  }
  void give_back(Header* block) {
    block->next = returned.load(std::memory_order_relaxed);
    while (!returned.compare_exchange_weak(block->next, block, std::memory_order_release, std::memory_order_relaxed)) {
    }
  }
};

/// Caches of ended threads wait here for the next thread: blocks of theirs may still come back, so none is destroyed.
struct CachePool {
  std::mutex mutex;
  std::vector<ThreadCache*> idle;
};
CachePool& cache_pool() {
  static auto* pool = new CachePool;  // never destroyed: tensors in static storage may be freed after it
  return *pool;
}

struct CacheLease {
  ThreadCache* cache;
  CacheLease() {
    CachePool& pool = cache_pool();
    const std::lock_guard lock(pool.mutex);
    if (pool.idle.empty()) {
      cache = new ThreadCache;
    } else {
      cache = pool.idle.back();
      pool.idle.pop_back();
    }
  }
  ~CacheLease();
  CacheLease(const CacheLease&) = delete;
  CacheLease& operator=(const CacheLease&) = delete;
};

// Plain pointer beside the lease: once the thread's destructors run, it is null and blocks go home as from a stranger.
thread_local ThreadCache* this_cache = nullptr;
thread_local bool this_thread_ends = false;
thread_local MemoryAccount* this_account = nullptr;

CacheLease::~CacheLease() {
  this_cache = nullptr;
  this_thread_ends = true;
  CachePool& pool = cache_pool();
  const std::lock_guard lock(pool.mutex);
  pool.idle.push_back(cache);
}

ThreadCache* current_cache() {
  if (this_cache == nullptr && !this_thread_ends) {
    thread_local const CacheLease kLease;
    this_cache = kLease.cache;
  }
  return this_cache;
}

[[gnu::cold, gnu::noinline]] Header* fresh_block(std::uint32_t size_class, ThreadCache* home) {
  const std::size_t bytes = sizeof(Header) + class_bytes(size_class);
  // Blocks without a home are freed one by one, so they are never cut from a chunk.
  void* memory = home == nullptr ? fresh_memory(bytes) : home->more(bytes);
  auto* block = new (memory) Header;
  block->home = home;
  block->size_class = size_class;
  return block;
}

void free_block(void* data) {
  if (data == nullptr) return;
  observe_drops(data);
  Header* block = static_cast<Header*>(data) - 1;
  if (block->owner != nullptr) block->owner->release(static_cast<std::int64_t>(block->bytes));
  if (freed_memory.load(std::memory_order_relaxed) == FreedMemory::kFillWithNaN) std::memset(data, 0xff, block->bytes);
  if (block->home == nullptr) {
    std::free(block);
  } else if (block->home == this_cache) {
    block->home->put(block);
  } else {
    block->home->give_back(block);
  }
}

/// A block that several holders read.
struct SharedBlock {
  c10::DataPtr data;
  std::atomic<int> holders;
};

/// One holder's part in a shared block: what stands behind the DataPtr of its storage.
struct Lease {
  SharedBlock* block;
  MemoryAccount* owner;
  std::int64_t bytes;
};

void end_lease(void* context) {
  auto* lease = static_cast<Lease*>(context);
  lease->owner->release(lease->bytes);
  if (lease->block->holders.fetch_sub(1, std::memory_order_acq_rel) == 1) delete lease->block;
  delete lease;
}

c10::DataPtr as_data_ptr(Lease* lease) {
  return {lease->block->data.get(), lease, &end_lease, lease->block->data.device()};
}

/// The storage's lease; made here where it still holds its block alone. None for storages of other allocators.
Lease* lease_of(c10::StorageImpl& storage) {
  const c10::DataPtr& data = storage.data_ptr();
  if (data.get() == nullptr) return nullptr;
  if (data.get_deleter() == &end_lease) return static_cast<Lease*>(data.get_context());
  if (data.get_deleter() != &free_block) return nullptr;
  Header* header = static_cast<Header*>(data.get_context()) - 1;
  auto* lease = new Lease{.block = new SharedBlock{.data = {}, .holders = 1},
                          .owner = std::exchange(header->owner, nullptr),
                          .bytes = static_cast<std::int64_t>(header->bytes)};
  lease->block->data = c10::DataPtr(data.get(), data.get_context(), &free_block, data.device());
  c10::DataPtr old = storage.set_data_ptr(as_data_ptr(lease));
  (void)old.release_context();  // the shared block's from here on
  storage.set_resizable(false);
  return lease;
}

/// A handle of its own for `account` on what the lease holds.
at::Storage lease_to(const Lease& lease, std::size_t bytes, MemoryAccount& account) {
  lease.block->holders.fetch_add(1, std::memory_order_relaxed);
  account.charge(lease.bytes);
  auto* other = new Lease{.block = lease.block, .owner = &account, .bytes = lease.bytes};
  return {at::Storage::use_byte_size_t(), bytes, as_data_ptr(other), /*allocator=*/nullptr, /*resizable=*/false};
}

class AccountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &free_block, cpu};
    const std::size_t charged = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    PLAIT_CHECK(charged >= bytes, "{} bytes", bytes);
    const std::uint32_t size_class = size_class_of(charged);
    ThreadCache* cache = current_cache();
    Header* block = cache == nullptr ? nullptr : cache->take(size_class);
    if (block == nullptr) block = fresh_block(size_class, cache);
    block->bytes = charged;
    block->owner = this_account == nullptr ? &common_memory_account() : this_account;
    block->owner->charge(static_cast<std::int64_t>(charged));
    return {block + 1, block + 1, &free_block, cpu};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace

void install_accounting_allocator() {
  static const bool kInstalled = [] {
    constexpr std::uint8_t kPriority = 1;  // above the default allocator's 0
    c10::SetAllocator(c10::DeviceType::CPU, new AccountingAllocator, kPriority);
    return true;
  }();
  (void)kInstalled;
}

MemoryAccount& make_memory_account() {
  static auto* mutex = new std::mutex;
  static auto* accounts = new std::deque<MemoryAccount>;
  const std::lock_guard lock(*mutex);
  return accounts->emplace_back();
}

MemoryAccount& common_memory_account() {
  static auto* account = new MemoryAccount;
  return *account;
}

AccountScope::AccountScope(MemoryAccount& account) : outer_(this_account) {
  this_account = &account;
}
AccountScope::~AccountScope() {
  this_account = outer_;
}

void charge_to(const at::Tensor& tensor, MemoryAccount& account) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  const c10::DataPtr& data = tensor.storage().data_ptr();
  if (data.get() == nullptr) return;
  const auto move_charge = [&account](MemoryAccount*& owner, std::int64_t bytes) {
    if (owner == &account) return;
    owner->release(bytes);
    account.charge(bytes);
    owner = &account;
  };
  if (data.get_deleter() == &free_block) {
    Header* block = static_cast<Header*>(data.get_context()) - 1;
    move_charge(block->owner, static_cast<std::int64_t>(block->bytes));
  } else if (data.get_deleter() == &end_lease) {
    auto* lease = static_cast<Lease*>(data.get_context());
    move_charge(lease->owner, lease->bytes);
  }
}

std::vector<at::Tensor> share(const std::vector<at::Tensor>& tensors, MemoryAccount& account) {
  std::map<const c10::StorageImpl*, at::Storage> shared;
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) {
    c10::StorageImpl* storage = tensor.defined() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
    const Lease* lease = storage == nullptr ? nullptr : lease_of(*storage);
    if (lease == nullptr) {
      result.push_back(tensor.defined() ? at::clone(tensor, at::MemoryFormat::Contiguous) : tensor);
      continue;
    }
    const auto [at, is_new] = shared.try_emplace(storage);
    if (is_new) at->second = lease_to(*lease, storage->nbytes(), account);
    at::Tensor view =
        at::detail::make_tensor<c10::TensorImpl>(c10::Storage(at->second), tensor.key_set(), tensor.dtype());
    view.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    result.push_back(std::move(view));
  }
  return result;
}

void set_freed_memory(FreedMemory rule) {
  freed_memory.store(rule, std::memory_order_relaxed);
}

Bytes reserved_memory() {
  return Bytes{reserved_bytes.load(std::memory_order_relaxed)};
}

}  // namespace plait
