#pragma once

#include "plait/base/ids.h"
#include "plait/base/result.h"
#include "plait/ir/instr.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace plait {

/// A link: fixed time per message and a bandwidth per direction.
struct Link {
  std::int64_t latency_ticks = 0;
  std::int64_t bytes_per_second = 1;
  friend bool operator==(const Link&, const Link&) = default;
};

enum class CollectiveAlgorithm : std::uint8_t {
  kRing,      ///< n-1 steps of 1/n of the bytes for each of reduce-scatter and all-gather; best for large messages
  kTree,      ///< binary tree: ceil(log2 n) steps of the whole message up and again down; best for small ones
  kPairwise,  ///< every member exchanges with every other directly, one partner after the other
};

/// Nodes of equal size with fast inner and slow outer links. A message inside a node occupies the sender's and the
/// receiver's inner port; one between nodes occupies both nodes' outer ports, which the node's ranks share.
/// A port serves messages first come, first served; directions are independent.
struct Cluster {
  std::int64_t ticks_per_second = 1;
  Link inner;
  Link outer;
  int outer_ports = 1;       ///< network cards of a node; rank r of a node uses card r mod outer_ports
  std::vector<int> node_of;  ///< per rank
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kRing;
  friend bool operator==(const Cluster&, const Cluster&) = default;
};

/// Ranks 0..ranks_per_node-1 on node 0, and so on.
Cluster make_cluster(int num_ranks, int ranks_per_node, Link inner, Link outer, std::int64_t ticks_per_second);

/// Nodes of one kind, as many as it takes; data/clusters/NAME.json, where every number stands with its source.
struct ClusterSpec {
  std::string name;
  int devices_per_node = 1;
  double inner_bytes_per_second = 0;  ///< of one device to the others of its node, one direction
  double inner_latency_seconds = 0;
  double outer_bytes_per_second = 0;  ///< of one network port, one direction
  double outer_latency_seconds = 0;
  int outer_ports = 1;  ///< of a node
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kRing;
  friend bool operator==(const ClusterSpec&, const ClusterSpec&) = default;
};

/// \errors kInvalidArgument "cluster.json": no such thing, a number that is missing, not positive or without a source
Result<ClusterSpec> parse_cluster(std::string_view json);

/// A program's ranks on such nodes, each rank a row of `devices_per_rank` devices (tensor, context and data parallelism
/// inside it), in the order of the ranks. Links reach `efficiency` of their bandwidth.
Cluster place_ranks(const ClusterSpec& spec, int num_ranks, int devices_per_rank, double efficiency,
                    std::int64_t ticks_per_second);

/// \errors kInvalidArgument "sim.cluster": no rank for a node, a bandwidth that is not positive, a negative latency
Result<> check_cluster(const Cluster& cluster, int num_ranks);

/// Ticks that `bytes` need on a link, without its latency; rounded up.
std::int64_t wire_ticks(const Cluster& cluster, const Link& link, Bytes bytes);

/// Ticks from the moment the last member has entered until all are done.
///
/// Ring, n members, S bytes, slowest link on the ring (alpha, beta = ticks per byte):
///   all_reduce 2 (n-1) (alpha + S/n beta); reduce_scatter, all_gather (n-1) (alpha + S/n beta); broadcast, reduce
///   (n-1) alpha + S beta (pipelined); all_to_all (n-1) (alpha + S/n beta).
/// Tree: all_reduce 2 ceil(log2 n) (alpha + S beta), broadcast and reduce half of that; the others as the ring.
/// Pairwise: reduce_scatter, all_gather, all_to_all (n-1) (alpha + S/n beta), all_reduce both; broadcast and reduce
/// (n-1) (alpha + S beta).
/// Where a ring passes between nodes, its outer links are the slowest and are shared by no other ring.
/// \source Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication operations in MPICH"
std::int64_t collective_ticks(const Cluster& cluster, CollectiveKind kind, const std::vector<RankId>& ranks,
                              Bytes bytes);

}  // namespace plait
