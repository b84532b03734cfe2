#include "plait/run/engine/crossing.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace plait {
namespace {

class Crossing {
 public:
  Crossing(const Layout& layout, int ranks_per_group) : layout_(layout), ranks_per_group_(ranks_per_group) {}

  [[nodiscard]] bool between(RankId a, RankId b) const {
    return a.value() / ranks_per_group_ != b.value() / ranks_per_group_;
  }

  /// What one member's entry of a collective adds, so that the sum over the members is the collective's.
  [[nodiscard]] std::int64_t of(const Collective& collective, RankId member, std::int64_t moved) const {
    const std::vector<RankId>& ring = layout_.rank_sets[collective.ranks.index()];
    const auto n = static_cast<std::int64_t>(ring.size());
    const auto place = std::find(ring.begin(), ring.end(), member) - ring.begin();
    const RankId next = ring[static_cast<std::size_t>((place + 1) % n)];
    const auto links = [&] {
      std::int64_t count = 0;
      for (std::size_t i = 0; i < ring.size(); ++i) count += between(ring[i], ring[(i + 1) % ring.size()]) ? 1 : 0;
      return count;
    };
    switch (collective.kind) {
      // A member brings its shard, which goes over all links but the one into the member.
      case CollectiveKind::kAllGather: {
        const RankId before = ring[static_cast<std::size_t>((place + n - 1) % n)];
        return moved * (links() - (between(before, member) ? 1 : 0));
      }
      // A member brings the whole; its own link carries all but one part of it.
      case CollectiveKind::kReduceScatter: return between(member, next) ? moved * (n - 1) / n : 0;
      case CollectiveKind::kAllReduce: return between(member, next) ? 2 * moved * (n - 1) / n : 0;
      case CollectiveKind::kBroadcast: {
        if (member != collective.root) return 0;
        const RankId last = ring[static_cast<std::size_t>((place + n - 1) % n)];
        return moved * (links() - (between(last, member) ? 1 : 0));
      }
      case CollectiveKind::kReduce: return member != collective.root && between(member, next) ? moved : 0;
      case CollectiveKind::kAllToAll: break;
    }
    return 0;
  }

 private:
  const Layout& layout_;
  int ranks_per_group_;
};

}  // namespace

Bytes bytes_between_groups(const Program& program, const StepResult& step, int ranks_per_group) {
  const Crossing crossing(program.layout, ranks_per_group);
  std::int64_t bytes = 0;
  for (std::size_t rank = 0; rank < step.trace.size(); ++rank) {
    const RankId here{static_cast<std::int32_t>(rank)};
    for (const TraceEvent& event : step.trace[rank]) {
      if (event.moved == Bytes{0}) continue;
      const Instr& instr = program.rows[rank][static_cast<std::size_t>(event.position)];
      if (const Send* send = std::get_if<Send>(&instr)) {
        if (crossing.between(here, send->peer)) bytes += event.moved.value();
      } else if (const Collective* collective = std::get_if<Collective>(&instr)) {
        bytes += crossing.of(*collective, here, event.moved.value());
      }
    }
  }
  return Bytes{bytes};
}

}  // namespace plait
