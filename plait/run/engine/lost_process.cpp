#include "plait/run/engine/lost_process.h"

#include "plait/run/engine/describe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>

namespace plait {
namespace {

double seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

struct Waiting {
  RankId rank;
  RankId peer;
  std::size_t position = 0;
  Clock::duration waited{};
};

/// The rank of `here` that has waited longest.
std::optional<Waiting> longest_wait(const std::vector<WaitState>& waits, RankRange here) {
  std::optional<Waiting> longest;
  for (std::int32_t rank = here.begin; rank < here.end; ++rank) {
    const WaitState& state = waits[static_cast<std::size_t>(rank)];
    const std::int32_t peer = state.peer.load(std::memory_order_acquire);
    if (peer == kAbsent) continue;
    const Waiting waiting{
        .rank = RankId{rank},
        .peer = RankId{peer},
        .position = static_cast<std::size_t>(state.position.load(std::memory_order_relaxed)),
        .waited = Clock::now().time_since_epoch() - Clock::duration(state.since.load(std::memory_order_relaxed))};
    if (!longest || waiting.waited > longest->waited) longest = waiting;
  }
  return longest;
}

std::size_t position_of(const std::vector<WaitState>& waits, std::int32_t rank) {
  return static_cast<std::size_t>(waits[static_cast<std::size_t>(rank)].position.load(std::memory_order_relaxed));
}

}  // namespace

std::string place_in_row(const Program& program, RankId rank, std::size_t position) {
  const Row& row = program.rows[rank.index()];
  if (position >= row.size()) return fmt::format("rank {}, behind its last instruction", rank.value());
  return fmt::format("rank {}, position {}, {}", rank.value(), position, describe(row[position]));
}

Error explain_loss(const Program& program, const std::vector<WaitState>& waits, const LostProcess& process,
                   RankRange lost, RankRange here) {
  const bool gone = process.how == LostProcess::How::kGone;
  std::vector<std::string> places;
  for (std::int32_t rank = lost.begin; rank < lost.end; ++rank)
    places.push_back(place_in_row(program, RankId{rank}, position_of(waits, rank)));
  std::string mine;
  if (const auto waiting = longest_wait(waits, here))
    mine = fmt::format("{} has waited {:.3f} s for rank {}", place_in_row(program, waiting->rank, waiting->position),
                       seconds(waiting->waited), waiting->peer.value());
  else
    mine = fmt::format("{} was not waiting", place_in_row(program, RankId{here.begin}, position_of(waits, here.begin)));
  return make_error(gone ? ErrorCode::kTransport : ErrorCode::kTimeout,
                    gone ? "engine.peer_gone" : "engine.peer_silent", "{} {} {:.3f} s ago; last seen: {}. Here: {}",
                    process.where, gone ? "is gone: its connection ended, last heard of" : "is silent: last heard of",
                    seconds(process.silence), fmt::join(places, "; "), mine);
}

}  // namespace plait
