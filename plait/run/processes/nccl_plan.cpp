#include "plait/run/processes/nccl_plan.h"

#include "plait/run/engine/binding.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace plait {
namespace {

std::string ranks(const std::vector<RankId>& members) {
  std::vector<std::int32_t> numbers;
  for (const RankId member : members) numbers.push_back(member.value());
  return fmt::format("{}", fmt::join(numbers, ", "));
}

/// NCCL takes a GPU once per communicator.
NcclLineSpec::Way way_of(const std::vector<RankId>& members, const std::vector<std::string>& gpus) {
  std::set<std::string> seen;
  for (const RankId member : members)
    if (!seen.insert(gpus[member.index()]).second) return NcclLineSpec::Way::kHosts;
  return NcclLineSpec::Way::kDevices;
}

bool spans_processes(const std::vector<RankId>& members, const std::vector<int>& process_of) {
  return std::any_of(members.begin(), members.end(),
                     [&](RankId member) { return process_of[member.index()] != process_of[members.front().index()]; });
}

/// A call that waits for its peer keeps its blocks meanwhile; all of them together should leave a GPU room to compute.
int blocks_each(const std::vector<NcclLineSpec>& lines, const std::vector<std::string>& gpus) {
  constexpr int kForMessages = 64;  // blocks, about half of those that a data-centre GPU runs at once
  constexpr int kMost = 16;         // more do not make one message faster
  std::map<std::string, int> lines_of;
  int busiest = 1;
  for (const NcclLineSpec& line : lines)
    if (line.kind == NcclLineSpec::Kind::kMessages && line.way == NcclLineSpec::Way::kDevices)
      for (const RankId member : line.members) busiest = std::max(busiest, ++lines_of[gpus[member.index()]]);
  return std::clamp(kForMessages / busiest, 1, kMost);
}

}  // namespace

std::string describe(const NcclLineSpec& line) {
  if (line.kind == NcclLineSpec::Kind::kCollectives)
    return fmt::format("the collectives of ranks {}", ranks(line.members));
  return fmt::format("the messages ({}) from rank {} to rank {}", to_string(line.value), line.members[0].value(),
                     line.members[1].value());
}

NcclPlan plan_nccl(const Routes& routes, const std::vector<int>& process_of, const std::vector<std::string>& gpus) {
  NcclPlan plan;
  std::map<std::tuple<RankId, RankId, ValueKind>, std::int32_t> lanes;
  for (const Transfer& transfer : routes.transfers)
    if (process_of[transfer.source.index()] != process_of[transfer.destination.index()])
      lanes.emplace(std::tuple(transfer.source, transfer.destination, transfer.value.kind()), 0);
  for (auto& [lane, index] : lanes) {
    const auto& [source, destination, value] = lane;
    index = static_cast<std::int32_t>(plan.lines.size());
    const std::vector<RankId> members = {source, destination};
    plan.lines.push_back({.kind = NcclLineSpec::Kind::kMessages,
                          .members = members,
                          .value = value,
                          .order = 0,
                          .way = way_of(members, gpus)});
  }
  std::map<std::pair<std::vector<RankId>, std::int32_t>, std::int32_t> groups;
  for (const CollectiveRoute& route : routes.collectives)
    if (spans_processes(route.members, process_of)) groups.emplace(std::pair(route.members, route.order), 0);
  for (auto& [group, index] : groups) {
    index = static_cast<std::int32_t>(plan.lines.size());
    plan.lines.push_back({.kind = NcclLineSpec::Kind::kCollectives,
                          .members = group.first,
                          .value = {},
                          .order = group.second,
                          .way = way_of(group.first, gpus)});
  }
  for (const Transfer& transfer : routes.transfers) {
    const auto lane = lanes.find({transfer.source, transfer.destination, transfer.value.kind()});
    plan.of_transfer.push_back(lane == lanes.end() ? kAbsent : lane->second);
  }
  for (const CollectiveRoute& route : routes.collectives) {
    const auto group = groups.find({route.members, route.order});
    plan.of_collective.push_back(group == groups.end() ? kAbsent : group->second);
  }
  plan.most_blocks = blocks_each(plan.lines, gpus);
  std::vector<std::string> by_hosts;
  for (const NcclLineSpec& line : plan.lines)
    if (line.way == NcclLineSpec::Way::kHosts) by_hosts.push_back(describe(line));
  if (!by_hosts.empty())
    plan.note = fmt::format(
        "some processes share a GPU, which NCCL does not allow: {} go by way of the host, slowly; start one "
        "process for each GPU",
        fmt::join(by_hosts, ", "));
  return plan;
}

}  // namespace plait
