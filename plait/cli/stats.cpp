#include "plait/cli/stats.h"

#include <string_view>

namespace plait {
namespace {

/// What an instruction carries; empty if it is not counted.
struct Carries {
  std::string_view operator()(const Op& op) const { return to_string(op.kind); }
  std::string_view operator()(const Pair&) const { return "none"; }
  std::string_view operator()(const Idle&) const { return {}; }
  std::string_view operator()(const Turn&) const { return "none"; }
  std::string_view operator()(const Batch&) const { return "none"; }
  std::string_view operator()(const Send& send) const { return to_string(send.value.kind()); }
  std::string_view operator()(const Recv&) const { return {}; }
  std::string_view operator()(const WaitSend& wait) const { return to_string(wait.value.kind()); }
  std::string_view operator()(const Collective& collective) const { return to_string(collective.value.kind()); }
  std::string_view operator()(const WaitCollective& wait) const { return to_string(wait.value.kind()); }
  std::string_view operator()(const Free& freed) const { return to_string(freed.value.kind()); }
  std::string_view operator()(const Add&) const { return to_string(ValueKind::kWeightGrad); }
  std::string_view operator()(const Step&) const { return to_string(ValueKind::kWeight); }
  std::string_view operator()(const Validate&) const { return to_string(ValueKind::kNorm); }
};

}  // namespace

ProgramStats count_instructions(const Program& program) {
  ProgramStats stats{.total = {}, .ranks = std::vector<Counts>(program.rows.size())};
  for (std::size_t rank = 0; rank < program.rows.size(); ++rank) {
    for (const Instr& instr : program.rows[rank]) {
      const std::string_view carried = std::visit(Carries{}, instr);
      if (carried.empty()) continue;
      ++stats.ranks[rank][std::string(kind_name(instr))][std::string(carried)];
      // Each member enters a collective; its first member stands for it.
      const auto* collective = std::get_if<Collective>(&instr);
      const bool counted_elsewhere =
          collective != nullptr && program.layout.rank_sets[collective->ranks.index()].front().index() != rank;
      if (!counted_elsewhere) ++stats.total[std::string(kind_name(instr))][std::string(carried)];
    }
  }
  return stats;
}

}  // namespace plait
