#include "plait/run/engine/blame.h"

#include "plait/run/engine/describe.h"

#include <fmt/format.h>

#include <algorithm>
#include <variant>

namespace plait {
namespace {

/// Of the instruction of a row that sends something on its way.
std::optional<std::size_t> position_of_send(const BoundRow& row, TransferId id) {
  for (std::size_t at = 0; at < row.instrs.size(); ++at) {
    const auto* send = std::get_if<BoundSend>(&row.instrs[at]);
    if (send != nullptr && send->transfer == id) return at;
  }
  return std::nullopt;
}

bool enters(const BoundInstr& instr, CollectiveId id) {
  const auto* gather = std::get_if<BoundGather>(&instr);
  const auto* grad = std::get_if<BoundReduceGrad>(&instr);
  const auto* norm = std::get_if<BoundReduceNorm>(&instr);
  return (gather != nullptr && gather->collective == id) || (grad != nullptr && grad->collective == id) ||
         (norm != nullptr && norm->collective == id);
}

std::optional<std::size_t> position_of_entry(const BoundRow& row, CollectiveId id) {
  for (std::size_t at = 0; at < row.instrs.size(); ++at)
    if (enters(row.instrs[at], id)) return at;
  return std::nullopt;
}

bool waits_itself(const StepView& view, RankId rank) {
  const bool is_here = (*view.waits)[rank.index()].step.load(std::memory_order_acquire) == view.step;
  return is_here && (*view.waits)[rank.index()].peer.load(std::memory_order_acquire) != kAbsent;
}

/// Sets the peer to a member that has not entered, if there is one.
void find_missing(const StepView& view, CollectiveId id, Wait& wait) {
  std::optional<int> best;  // the less the better
  for (const RankId member : view.bound->routes.collectives[static_cast<std::size_t>(id)].members) {
    if (member == wait.rank) continue;
    const auto entry = position_of_entry(view.bound->rows[member.index()], id);
    const auto position = view.position_of(member);
    if (!entry || (position && *position > *entry)) continue;
    const int order = view.is_silent(member) ? 0 : waits_itself(view, member) ? 2 : 1;
    if (best && *best <= order) continue;
    best = order;
    wait.peer = member;
    wait.awaited = entry;
  }
  wait.is_met = !best;
}

double seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

std::optional<std::size_t> StepView::position_of(RankId rank) const {
  const WaitState& state = (*waits)[rank.index()];
  const std::int64_t its_step = state.step.load(std::memory_order_acquire);
  if (its_step > step) return program->rows[rank.index()].size();  // through with this one
  if (its_step < step) return std::nullopt;
  return static_cast<std::size_t>(state.position.load(std::memory_order_relaxed));
}

std::optional<Wait> wait_of(const StepView& view, RankId rank) {
  const WaitState& state = (*view.waits)[rank.index()];
  const auto position = view.position_of(rank);
  const std::int32_t peer = state.peer.load(std::memory_order_acquire);
  // A silent rank may have gone on since.
  if (!position || *position >= view.program->rows[rank.index()].size() || peer == kAbsent || view.is_silent(rank))
    return std::nullopt;
  Wait wait{.rank = rank,
            .position = *position,
            .peer = RankId{peer},
            .waited = Clock::now().time_since_epoch() - Clock::duration(state.since.load(std::memory_order_relaxed))};
  if (const TransferId id = state.transfer.load(std::memory_order_relaxed); id != kAbsent) {
    wait.awaited = position_of_send(view.bound->rows[wait.peer.index()], id);
    wait.is_met = wait.awaited && view.position_of(wait.peer).value_or(0) > *wait.awaited;
  }
  if (const CollectiveId id = state.collective.load(std::memory_order_relaxed); id != kAbsent)
    find_missing(view, id, wait);
  return wait;
}

Wait last_wait(const StepView& view, Wait wait) {
  for (std::size_t hops = 0; hops < view.waits->size(); ++hops) {
    // What a silent process did may still wait for it to go on its way.
    if (wait.is_met && !view.is_silent(wait.peer)) break;
    const auto next = wait_of(view, wait.peer);
    if (!next) break;
    wait = *next;
  }
  return wait;
}

std::string place_in_row(const Program& program, RankId rank, std::size_t position) {
  const Row& row = program.rows[rank.index()];
  if (position >= row.size()) return fmt::format("rank {}, behind its last instruction", rank.value());
  return fmt::format("rank {}, position {}, {}", rank.value(), position, describe(row[position]));
}

std::string place_of(const StepView& view, RankId rank) {
  const auto position = view.position_of(rank);
  if (!position) return fmt::format("rank {}, not seen in this step", rank.value());
  return place_in_row(*view.program, rank, *position);
}

std::string describe(const StepView& view, const Wait& wait) {
  return fmt::format(
      "{} has waited {:.3f} s for {}", place_in_row(*view.program, wait.rank, wait.position), seconds(wait.waited),
      wait.awaited ? place_in_row(*view.program, wait.peer, *wait.awaited) : fmt::format("rank {}", wait.peer.value()));
}

}  // namespace plait
