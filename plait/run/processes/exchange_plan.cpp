#include "plait/run/processes/exchange_plan.h"

#include "plait/base/check.h"
#include "plait/run/engine/segments.h"

#include <utility>

namespace plait {
namespace {

/// Members that take part in tensor `t`, ascending.
std::vector<std::size_t> holders_of(const std::vector<MemberTensorList>& members, std::size_t t) {
  std::vector<std::size_t> holders;
  for (std::size_t member = 0; member < members.size(); ++member) {
    PLAIT_CHECK(t < members[member].size(), "member {} brought {} tensors", member, members[member].size());
    const MemberTensor& tensor = members[member][t];
    if (tensor.num_elements < 0) continue;
    PLAIT_CHECK(holders.empty() || tensor == members[holders.front()][t],
                "tensor {} differs in size or type between members {} and {}", t, holders.front(), member);
    holders.push_back(member);
  }
  return holders;
}

class Planner {
 public:
  Planner(const std::vector<MemberTensorList>& members, const std::vector<int>& processes)
      : members_(members), processes_(processes) {}

  void plan(CollectiveKind kind, std::size_t root, std::size_t t) {
    const std::vector<std::size_t> holders = holders_of(members_, t);
    if (holders.empty()) return;
    const std::int64_t size = members_[holders.front()][t].num_elements;
    const auto segment = [&](std::size_t i, std::size_t count) {
      return std::pair(segment_begin(size, i, count), segment_begin(size, i + 1, count));
    };
    switch (kind) {
      case CollectiveKind::kAllReduce:
        if (holders.size() == 1) return;
        for (std::size_t i = 0; i < holders.size(); ++i)
          add(t, segment(i, holders.size()), holders, holders, holders[i]);
        return;
      case CollectiveKind::kReduce: add(t, {0, size}, holders, {root}, root); return;
      case CollectiveKind::kReduceScatter:
        for (std::size_t i = 0; i < members_.size(); ++i) add(t, segment(i, members_.size()), holders, {i}, i);
        return;
      case CollectiveKind::kAllGather:
        for (std::size_t i = 0; i < members_.size(); ++i)
          if (holds(i, t)) add(t, segment(i, members_.size()), {i}, without(holders, i), i);
        return;
      case CollectiveKind::kBroadcast:
        if (holds(root, t)) add(t, {0, size}, {root}, without(holders, root), root);
        return;
      case CollectiveKind::kAllToAll: PLAIT_CHECK(false, "all_to_all is refused at binding");
    }
  }

  std::vector<ExchangeBlock> take() { return std::move(blocks_); }

 private:
  [[nodiscard]] bool holds(std::size_t member, std::size_t t) const { return members_[member][t].num_elements >= 0; }

  static std::vector<std::size_t> without(std::vector<std::size_t> members, std::size_t one) {
    std::erase(members, one);
    return members;
  }

  void add(std::size_t t, std::pair<std::int64_t, std::int64_t> range, const std::vector<std::size_t>& sources,
           const std::vector<std::size_t>& outs, std::size_t worker) {
    for (const std::size_t out : outs) PLAIT_CHECK(holds(out, t), "member {} has no tensor {} for the result", out, t);
    const bool stays = outs.empty() || (outs.size() == 1 && sources == outs);
    if (range.first == range.second || stays) return;
    blocks_.push_back({.tensor = t,
                       .begin = range.first,
                       .end = range.second,
                       .sources = sources,
                       .outs = outs,
                       .worker = processes_[worker]});
  }

  const std::vector<MemberTensorList>& members_;
  const std::vector<int>& processes_;
  std::vector<ExchangeBlock> blocks_;
};

}  // namespace

std::vector<ExchangeBlock> plan_exchange(CollectiveKind kind, const std::vector<MemberTensorList>& members,
                                         std::size_t root, const std::vector<int>& processes) {
  Planner planner(members, processes);
  for (std::size_t t = 0; t < members.front().size(); ++t) planner.plan(kind, root, t);
  return planner.take();
}

}  // namespace plait
