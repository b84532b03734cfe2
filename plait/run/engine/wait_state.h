#pragma once

#include "plait/run/engine/binding.h"
#include "plait/run/engine/transport.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace plait {

/// Where a rank is and what it waits for right now, readable from other ranks: who is silent is found by following these.
struct alignas(64) WaitState {
  std::atomic<std::int64_t> step = 0;              ///< that the rest belongs to, counted by the job; 0: between steps
  std::atomic<std::int32_t> position = 0;          ///< of the instruction that runs
  std::atomic<std::int32_t> peer = kAbsent;        ///< that it waits for
  std::atomic<TransferId> transfer = kAbsent;      ///< that should arrive; none where it waits for something else
  std::atomic<CollectiveId> collective = kAbsent;  ///< that not all have entered; none likewise
  std::atomic<std::int64_t> since = 0;             ///< Clock ticks, of this machine

  void begin(std::int64_t number) {
    step.store(0, std::memory_order_release);
    position.store(0, std::memory_order_relaxed);
    peer.store(kAbsent, std::memory_order_relaxed);
    step.store(number, std::memory_order_release);
  }
};

/// The states of all ranks. Each lies here, unless it is laid where other processes of this machine see it at once.
class WaitTable {
 public:
  explicit WaitTable(std::size_t num_ranks) : own_(num_ranks) {
    for (WaitState& state : own_) places_.push_back(&state);
  }
  WaitTable(const WaitTable&) = delete;
  WaitTable& operator=(const WaitTable&) = delete;
  ~WaitTable() = default;

  [[nodiscard]] std::size_t size() const { return own_.size(); }
  [[nodiscard]] WaitState& operator[](std::size_t rank) { return *places_[rank]; }
  [[nodiscard]] const WaitState& operator[](std::size_t rank) const { return *places_[rank]; }

  /// While no step runs. The place must outlive the table.
  void lay(std::size_t rank, WaitState& place) { places_[rank] = &place; }
  [[nodiscard]] bool is_laid(std::size_t rank) const { return places_[rank] != &own_[rank]; }

 private:
  std::vector<WaitState> own_;
  std::vector<WaitState*> places_;
};

}  // namespace plait
