#include "plait/sim/cluster.h"

#include "plait/sim/wide.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cmath>

namespace plait {

Cluster make_cluster(int num_ranks, int ranks_per_node, Link inner, Link outer, std::int64_t ticks_per_second) {
  Cluster cluster{.ticks_per_second = ticks_per_second, .inner = inner, .outer = outer, .outer_ports = ranks_per_node};
  for (int rank = 0; rank < num_ranks; ++rank) cluster.node_of.push_back(rank / std::max(1, ranks_per_node));
  return cluster;
}

Result<ClusterSpec> parse_cluster(std::string_view text) {
  const auto refuse = [](std::string_view key, std::string_view why) {
    return make_error(ErrorCode::kInvalidArgument, "cluster.json", "cluster description: \"{}\" {}", key, why);
  };
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    return make_error(ErrorCode::kInvalidArgument, "cluster.json", "cluster description: no JSON object");
  ClusterSpec spec;
  if (!json.contains("name") || !json["name"].is_string()) return refuse("name", "is missing");
  spec.name = json["name"].get<std::string>();
  double devices = 0;
  double ports = 0;
  const std::pair<const char*, double*> numbers[] = {{"devices_per_node", &devices},
                                                     {"inner_bytes_per_second", &spec.inner_bytes_per_second},
                                                     {"inner_latency_seconds", &spec.inner_latency_seconds},
                                                     {"outer_bytes_per_second", &spec.outer_bytes_per_second},
                                                     {"outer_latency_seconds", &spec.outer_latency_seconds},
                                                     {"outer_ports", &ports}};
  const auto source_of = [](const nlohmann::json& entry) {
    return entry.contains("source") && entry["source"].is_string() ? entry["source"].get<std::string>() : "";
  };
  for (const auto& [key, number] : numbers) {
    const auto entry = json.find(key);
    if (entry == json.end() || !entry->is_object() || !entry->contains("value") || !(*entry)["value"].is_number())
      return refuse(key, "has no number \"value\"");
    if (source_of(*entry).empty()) return refuse(key, "has no \"source\"");
    *number = (*entry)["value"].get<double>();
    if (!(*number > 0) || !std::isfinite(*number)) return refuse(key, "must be positive");
  }
  constexpr double kMost = 1 << 20;
  if (devices != std::floor(devices) || devices > kMost) return refuse("devices_per_node", "is no whole number");
  if (ports != std::floor(ports) || ports > kMost) return refuse("outer_ports", "is no whole number");
  spec.devices_per_node = static_cast<int>(devices);
  spec.outer_ports = static_cast<int>(ports);
  const auto algorithm = json.find("algorithm");
  if (algorithm == json.end() || !algorithm->is_object() || source_of(*algorithm).empty())
    return refuse("algorithm", "has no \"source\"");
  const std::string name = algorithm->value("value", "");
  if (name == "tree") {
    spec.algorithm = CollectiveAlgorithm::kTree;
  } else if (name == "pairwise") {
    spec.algorithm = CollectiveAlgorithm::kPairwise;
  } else if (name != "ring") {
    return refuse("algorithm", "must be ring, tree or pairwise");
  }
  return spec;
}

Cluster place_ranks(const ClusterSpec& spec, int num_ranks, int devices_per_rank, double efficiency,
                    std::int64_t ticks_per_second) {
  const auto link = [&](double latency, double bandwidth) {
    return Link{.latency_ticks = std::llround(latency * static_cast<double>(ticks_per_second)),
                .bytes_per_second = std::max<std::int64_t>(1, std::llround(bandwidth * efficiency))};
  };
  const int devices = std::max(1, devices_per_rank);
  Cluster cluster{.ticks_per_second = ticks_per_second,
                  .inner = link(spec.inner_latency_seconds, spec.inner_bytes_per_second),
                  .outer = link(spec.outer_latency_seconds, spec.outer_bytes_per_second),
                  .outer_ports = spec.outer_ports,
                  .algorithm = spec.algorithm};
  // Ranks of several devices share the cards of the node among as many ranks as stand on it.
  if (devices > 1) cluster.outer_ports = std::max(1, std::min(spec.outer_ports, spec.devices_per_node / devices));
  const int cards_per_port = std::max(1, spec.outer_ports / cluster.outer_ports);
  cluster.outer.bytes_per_second *= cards_per_port;
  std::int64_t node = 0;  // where the rank's first device is
  int id = 0;             // nodes in between, full of one rank's devices, do not count
  for (int rank = 0; rank < num_ranks; ++rank) {
    const std::int64_t here = std::int64_t{rank} * devices / spec.devices_per_node;
    if (here != node) ++id;
    node = here;
    cluster.node_of.push_back(id);
  }
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
