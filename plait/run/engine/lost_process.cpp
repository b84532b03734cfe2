#include "plait/run/engine/lost_process.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace plait {
namespace {

/// Of the ranks of this process.
std::optional<Wait> longest_wait(const StepView& view, RankRange here) {
  std::optional<Wait> longest;
  for (std::int32_t rank = here.begin; rank < here.end; ++rank) {
    const auto wait = wait_of(view, RankId{rank});
    if (wait && (!longest || wait->waited > longest->waited)) longest = wait;
  }
  return longest;
}

/// For what the lost ranks would have done first, so that all processes name the same.
std::optional<Wait> first_missed(const StepView& view, RankRange lost) {
  std::optional<Wait> first;
  for (std::size_t rank = 0; rank < view.waits->size(); ++rank) {
    const auto wait = wait_of(view, RankId{static_cast<std::int32_t>(rank)});
    if (!wait || !wait->awaited || !lost.contains(wait->peer)) continue;
    if (!first || std::pair(*wait->awaited, wait->peer) < std::pair(*first->awaited, first->peer)) first = wait;
  }
  return first;
}

}  // namespace

Error explain_loss(StepView view, const LostProcess& process, RankRange lost, RankRange here) {
  const bool gone = process.how == LostProcess::How::kGone;
  view.silent.assign(view.waits->size(), false);
  std::vector<std::string> places;
  for (std::int32_t rank = lost.begin; rank < lost.end; ++rank) {
    places.push_back(place_of(view, RankId{rank}));
    view.silent[static_cast<std::size_t>(rank)] = true;
  }
  const auto mine = longest_wait(view, here);
  std::string waits = mine ? describe(view, *mine) : place_of(view, RankId{here.begin}) + " was not waiting";
  const auto missed = first_missed(view, lost);
  if (missed && !(mine && mine->peer == missed->peer && mine->awaited == missed->awaited))
    waits += "; " + describe(view, *missed);
  return make_error(gone ? ErrorCode::kTransport : ErrorCode::kTimeout,
                    gone ? "engine.peer_gone" : "engine.peer_silent", "{} {} {:.3f} s ago; last seen: {}. Here: {}",
                    process.where, gone ? "is gone: its connection ended, last heard of" : "is silent: last heard of",
                    std::chrono::duration<double>(process.silence).count(), fmt::join(places, "; "), waits);
}

}  // namespace plait
