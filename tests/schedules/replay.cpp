#include "replay.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

namespace plait {
namespace {

using Key = std::tuple<OpKind, int, int, int>;
struct Done {
  Ticks end = 0;
  std::size_t rank = 0;
};

}  // namespace

Ticks Replay::max_idle() const {
  return *std::max_element(idle.begin(), idle.end());
}

Ticks Replay::max_span() const {
  Ticks longest = 0;
  for (std::size_t rank = 0; rank < start.size(); ++rank) longest = std::max(longest, end[rank] - start[rank]);
  return longest;
}

int chunks_of(const Schedule& schedule) {
  return std::max(1, schedule.layout.num_stages() / schedule.layout.num_ranks);
}

std::optional<Replay> replay(const Schedule& schedule, const OpTimes& times, const std::vector<Ticks>& slice_weights) {
  const Layout& layout = schedule.layout;
  const int parts = chunks_of(schedule) * layout.num_slices;
  const Ticks all_weights = std::accumulate(slice_weights.begin(), slice_weights.end(), Ticks{0});
  const std::size_t num_ranks = schedule.rows.size();
  std::vector<std::vector<Op>> rows(num_ranks);
  for (std::size_t rank = 0; rank < num_ranks; ++rank)
    for (const Instr& instr : schedule.rows[rank])
      if (const Op* op = std::get_if<Op>(&instr)) rows[rank].push_back(*op);

  std::map<Key, Done> done;
  const auto find = [&](OpKind kind, int stage, int microbatch, int slice) -> const Done* {
    const auto at = done.find({kind, stage, microbatch, slice});
    return at == done.end() ? nullptr : &at->second;
  };
  const auto find_backward = [&](int stage, int microbatch, int slice) {
    const Done* split = find(OpKind::kBackwardInput, stage, microbatch, slice);
    return split != nullptr ? split : find(OpKind::kBackward, stage, microbatch, slice);
  };

  Replay result;
  result.begin.resize(num_ranks);
  std::vector<Ticks> clock(num_ranks, 0);
  std::vector<Ticks> busy(num_ranks, 0);
  std::vector<int> live(num_ranks, 0);
  result.start.assign(num_ranks, 0);
  result.end.assign(num_ranks, 0);
  result.peak.assign(num_ranks, 0);

  const auto try_op = [&](std::size_t rank, const Op& op) {
    const int stage = op.stage.value();
    const int microbatch = op.microbatch.value();
    const int slice = op.slice.value();
    Ticks ready = clock[rank];
    bool there = true;
    const auto needs = [&](const Done* input) {
      there = there && input != nullptr;
      if (input != nullptr) ready = std::max(ready, input->end + (input->rank == rank ? 0 : times.transfer));
    };
    Ticks duration = 0;
    switch (op.kind) {
      case OpKind::kForward:
        if (stage > 0) needs(find(OpKind::kForward, stage - 1, microbatch, slice));
        if (slice > 0) needs(find(OpKind::kForward, stage, microbatch, slice - 1));
        duration = times.forward;
        break;
      case OpKind::kBackward:
      case OpKind::kBackwardInput:
        needs(find(OpKind::kForward, stage, microbatch, slice));
        if (stage + 1 < layout.num_stages()) needs(find_backward(stage + 1, microbatch, slice));
        if (slice + 1 < layout.num_slices) needs(find_backward(stage, microbatch, slice + 1));
        duration = times.backward + (op.kind == OpKind::kBackward ? times.weight : 0);
        break;
      case OpKind::kBackwardWeight:
        needs(find(OpKind::kBackwardInput, stage, microbatch, slice));
        duration = times.weight;
        break;
      case OpKind::kRecompute: there = false; break;
    }
    if (!there) return false;
    if (slice_weights.empty())
      duration /= parts;
    else
      duration = duration * slice_weights[op.slice.index()] / all_weights / chunks_of(schedule);
    if (result.begin[rank].empty()) result.start[rank] = ready;
    result.begin[rank].push_back(ready);
    clock[rank] = ready + duration;
    busy[rank] += duration;
    if (op.kind == OpKind::kForward) result.peak[rank] = std::max(result.peak[rank], ++live[rank]);
    if (op.kind == OpKind::kBackward || op.kind == OpKind::kBackwardWeight) --live[rank];
    done[{op.kind, stage, microbatch, slice}] = Done{.end = clock[rank], .rank = rank};
    return true;
  };

  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t rank = 0; rank < num_ranks; ++rank)
      while (result.begin[rank].size() < rows[rank].size() && try_op(rank, rows[rank][result.begin[rank].size()]))
        progress = true;
  }
  Ticks first = clock.empty() ? 0 : *std::max_element(clock.begin(), clock.end());
  Ticks last = 0;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    if (result.begin[rank].size() < rows[rank].size()) return std::nullopt;
    result.end[rank] = clock[rank];
    result.idle.push_back(result.end[rank] - result.start[rank] - busy[rank]);
    first = std::min(first, result.start[rank]);
    last = std::max(last, result.end[rank]);
  }
  result.makespan = last - first;
  return result;
}

}  // namespace plait
