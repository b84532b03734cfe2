#include "plait/run/processes/node_states.h"

#include "plait/run/engine/byte_stream.h"
#include "plait/run/engine/process_group.h"

#include <new>
#include <random>
#include <utility>

namespace plait {

struct NodeStates::Memory {
  static constexpr std::int32_t kRoom = 256;  // ranks of a process; of more, beats tell

  std::uint64_t probe = 0;
  WaitState states[kRoom];

  static Memory* of(const SharedMemory& memory) { return reinterpret_cast<Memory*>(memory.data()); }
};

namespace {

struct Card {
  SharedMemory::Address memory;
  std::uint64_t probe = 0;
};

}  // namespace

NodeStates::NodeStates(int process, int num_processes)
    : process_(process), memories_(static_cast<std::size_t>(num_processes)) {
  std::random_device device;
  probe_ = (std::uint64_t{device()} << 32U) | device();
  auto made = SharedMemory::make(sizeof(Memory));
  if (!made) return;
  (new (made->data()) Memory)->probe = probe_;
  memories_[static_cast<std::size_t>(process)] = std::move(*made);
}

std::string NodeStates::card() const {
  const SharedMemory& own = memories_[static_cast<std::size_t>(process_)];
  if (own.data() == nullptr) return {};
  return ByteWriter().put(Card{.memory = own.address(), .probe = probe_}).take();
}

void NodeStates::reach(const std::vector<std::string>& cards) {
  for (std::size_t process = 0; process < memories_.size(); ++process) {
    if (static_cast<int>(process) == process_ || cards[process].empty()) continue;
    const auto card = ByteReader(cards[process]).get<Card>();
    auto memory = card.memory.size == sizeof(Memory) ? SharedMemory::map(card.memory) : std::nullopt;
    if (memory && Memory::of(*memory)->probe == card.probe) memories_[process] = std::move(*memory);
  }
}

void NodeStates::close() {
  memories_[static_cast<std::size_t>(process_)].close_file();
}

void NodeStates::lay_out(WaitTable& waits) const {
  const auto num_ranks = static_cast<int>(waits.size());
  for (std::size_t process = 0; process < memories_.size(); ++process) {
    const RankRange ranks = ranks_of_process(static_cast<int>(process), static_cast<int>(memories_.size()), num_ranks);
    if (memories_[process].data() == nullptr || ranks.size() > Memory::kRoom) continue;
    for (std::int32_t rank = ranks.begin; rank < ranks.end; ++rank)
      waits.lay(static_cast<std::size_t>(rank), Memory::of(memories_[process])->states[rank - ranks.begin]);
  }
}

}  // namespace plait
