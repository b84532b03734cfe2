// What lies on a rank before its first instruction, and what is known of its bytes beforehand.

#include "plait/sim/replay.h"

namespace plait::sim_detail {

/// Per group and rank: the gradient is sent on, so no accumulator stands there all the time.
std::vector<bool> Replay::gradients_that_leave() const {
  std::vector<bool> leave(layout_.groups.size() * num_ranks_);
  for (std::size_t rank = 0; rank < num_ranks_; ++rank) {
    for (const Instr& instr : program_.rows[rank]) {
      const Send* send = std::get_if<Send>(&instr);
      if (send != nullptr && send->value.kind() == ValueKind::kWeightGrad && valid(send->value))
        leave[send->value.group().index() * num_ranks_ + rank] = true;
    }
  }
  return leave;
}

void Replay::place_static_bytes() {
  const bool train = layout_.mode == Mode::kTrain;
  const std::vector<bool> leaves = gradients_that_leave();
  for (Lane& lane : lanes_) lane.bytes = costs_.fixed_bytes.value();
  for (std::size_t g = 0; g < layout_.groups.size(); ++g) {
    const ParamGroup& group = layout_.groups[g];
    const GroupCost& cost = costs_.groups[g];
    const auto shards = static_cast<std::int64_t>(group.residency == Residency::kSharded ? group.homes.size() : 1);
    for (const RankId home : group.homes) {
      GroupCell& cell = groups_[g * num_ranks_ + home.index()];
      const bool stays = !leaves[g * num_ranks_ + home.index()];
      const std::int64_t trained = (stays ? cost.gradient.value() : 0) + cost.optimizer.value();
      const std::int64_t whole = cost.weight.value() + (train ? trained : 0);
      lanes_[home.index()].bytes += (whole + shards - 1) / shards;
      cell.present = group.residency == Residency::kResident;
      // Of a sharded group only the shard's gradient stands; a backward makes the whole one.
      cell.partial = cell.kept = cell.present && stays;
    }
  }
  for (Lane& lane : lanes_) lane.peak_bytes = lane.bytes;
}

void Replay::take_known_memory(SimResult& result) const {
  for (std::size_t rank = 0; rank < costs_.known_memory.size(); ++rank) {
    const RankMemory& memory = costs_.known_memory[rank];
    RankFigures& figures = result.ranks[rank];
    figures.peak_bytes = 0;
    for (std::size_t at = 0; at < memory.during.size(); ++at) {
      const std::int64_t bytes = memory.during[at].total();
      if (bytes > figures.peak_bytes) {
        figures.peak_bytes = bytes;
        figures.peak_position = static_cast<int>(at);
      }
      if (!result.held.empty()) result.held[rank][at].bytes = memory.behind[at];
    }
  }
}

}  // namespace plait::sim_detail
