#include "plait/sim/cluster.h"

#include "plait/sim/wide.h"

#include <algorithm>
#include <bit>

namespace plait {

Cluster make_cluster(int num_ranks, int ranks_per_node, Link inner, Link outer, std::int64_t ticks_per_second) {
  Cluster cluster{.ticks_per_second = ticks_per_second, .inner = inner, .outer = outer, .outer_ports = ranks_per_node};
  for (int rank = 0; rank < num_ranks; ++rank) cluster.node_of.push_back(rank / std::max(1, ranks_per_node));
  return cluster;
}

Result<> check_cluster(const Cluster& cluster, int num_ranks) {
  if (static_cast<int>(cluster.node_of.size()) != num_ranks)
    return make_error(ErrorCode::kInvalidArgument, "sim.cluster", "the cluster places {} ranks, the program has {}",
                      cluster.node_of.size(), num_ranks);
  if (cluster.outer_ports < 1 || cluster.ticks_per_second < 1)
    return make_error(ErrorCode::kInvalidArgument, "sim.cluster",
                      "outer ports {} and ticks per second {} must be positive", cluster.outer_ports,
                      cluster.ticks_per_second);
  for (const Link* link : {&cluster.inner, &cluster.outer}) {
    if (link->bytes_per_second < 1 || link->latency_ticks < 0)
      return make_error(
          ErrorCode::kInvalidArgument, "sim.cluster",
          "a link of {} bytes/s and a latency of {} ticks; the first must be positive, the second not negative",
          link->bytes_per_second, link->latency_ticks);
  }
  for (const int node : cluster.node_of) {
    if (node < 0 || node >= num_ranks)
      return make_error(ErrorCode::kInvalidArgument, "sim.cluster", "node {} is out of range 0..{}", node,
                        num_ranks - 1);
  }
  return {};
}

std::int64_t wire_ticks(const Cluster& cluster, const Link& link, Bytes bytes) {
  const auto work = static_cast<Int128>(bytes.value()) * cluster.ticks_per_second;
  return static_cast<std::int64_t>((work + link.bytes_per_second - 1) / link.bytes_per_second);
}

std::int64_t collective_ticks(const Cluster& cluster, CollectiveKind kind, const std::vector<RankId>& ranks,
                              Bytes bytes) {
  const auto n = static_cast<std::int64_t>(ranks.size());
  if (n < 2) return 0;
  const int first_node = cluster.node_of[ranks.front().index()];
  const bool one_node =
      std::all_of(ranks.begin(), ranks.end(), [&](RankId r) { return cluster.node_of[r.index()] == first_node; });
  const Link& link = one_node ? cluster.inner : cluster.outer;
  const std::int64_t share = link.latency_ticks + wire_ticks(cluster, link, Bytes{(bytes.value() + n - 1) / n});
  const std::int64_t whole = link.latency_ticks + wire_ticks(cluster, link, bytes);
  const std::int64_t scatter = (n - 1) * share;
  const auto depth = static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(n - 1)));
  const bool rooted = kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce;
  if (cluster.algorithm == CollectiveAlgorithm::kTree) {
    if (kind == CollectiveKind::kAllReduce) return 2 * depth * whole;
    if (rooted) return depth * whole;
  }
  if (rooted) {
    if (cluster.algorithm == CollectiveAlgorithm::kPairwise) return (n - 1) * whole;
    return (n - 1) * link.latency_ticks + wire_ticks(cluster, link, bytes);
  }
  return kind == CollectiveKind::kAllReduce ? 2 * scatter : scatter;
}

}  // namespace plait
