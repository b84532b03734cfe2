#pragma once

#include "plait/run/engine/transport.h"

#include <cstdint>
#include <functional>
#include <memory>

namespace plait {

/// A link between two ranks.
struct Link {
  Nanos latency;                ///< from the last byte sent to its arrival
  double bytes_per_second = 0;  ///< 0 = unlimited
};

/// Gives every ordered pair of ranks a link, so that a slow interconnect can be tried on one machine. Messages of a pair
/// follow each other on their link; a send's wait ends when its last byte has left. A collective of N members lasts as a
/// ring over its slowest link: all_reduce 2 (N - 1) hops of 1/N of the bytes each, the others half of that.
///
/// Not covered: links that several pairs share.
TransportWrapper emulate_links(std::function<Link(RankId from, RankId to)> link);
TransportWrapper emulate_links(Link link);

/// Every message arrives late by a random time up to `most`, whatever was sent before or after it: messages of a pair
/// and of different pairs overtake each other. Drawn from (seed, step, transfer). For tests.
TransportWrapper delay_at_random(std::uint64_t seed, Nanos most);

}  // namespace plait
