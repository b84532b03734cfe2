#pragma once

#include "plait/run/engine/transport.h"

#include <cstdint>
#include <memory>

namespace plait {

/// A link between two ranks.
struct EmulatedLink {
  Nanos latency;                ///< from the last byte sent to its arrival
  double bytes_per_second = 0;  ///< 0 = unlimited
};

/// Groups of neighbouring ranks of equal size, with a fast link between each two of a group and one slow port in each
/// direction between a group and the others, which its ranks share.
struct EmulatedCluster {
  int ranks_per_group = 1;
  EmulatedLink inner;
  EmulatedLink outer;
};

/// Gives ranks links, whether they are threads of one process or of several on one machine, so that a slow interconnect can be tried on one machine: what arrives is delayed, without burning
/// time of the processor. Messages on a link follow each other; a send's wait ends when its last byte has left. A message
/// between groups takes the ports of both one after the other where they are busy, and both at once where they are free.
///
/// A collective of N members begins when the last of them has entered and those before it over the same ranks have ended, and
/// lasts as a ring over its slowest link (latency a, S bytes in b seconds): all_reduce 2 (N - 1) (a + b / N), reduce_scatter and all_gather half of that, broadcast and
/// reduce (N - 1) a + b.
/// \source the simulator's cluster (sim/cluster.h) with one card per node and the ring
TransportWrapper emulate_cluster(const EmulatedCluster& cluster);

/// One kind of link between all ranks, each pair's its own.
TransportWrapper emulate_links(EmulatedLink link);

/// Every message arrives late by a random time up to `most`, whatever was sent before or after it: messages of a pair
/// and of different pairs overtake each other. Collectives end late too, for each member at another time. Drawn from (seed,
/// step, transfer or collective). For tests.
TransportWrapper delay_at_random(std::uint64_t seed, Nanos most);

}  // namespace plait
