#include "plait/verify/structure.h"

#include <algorithm>
#include <limits>

namespace plait::verifying {
namespace {

template <class Tag>
bool inside(Id<Tag> id, std::size_t bound) {
  return id.value() >= 0 && id.index() < bound;
}

template <class Tag>
bool all_inside(const std::vector<Id<Tag>>& ids, std::size_t bound) {
  return std::all_of(ids.begin(), ids.end(), [&](Id<Tag> id) { return inside(id, bound); });
}

template <class T>
bool strictly_ascends(const std::vector<T>& items) {
  return std::adjacent_find(items.begin(), items.end(), [](const T& a, const T& b) { return !(a < b); }) == items.end();
}

template <class T>
bool contains(const std::vector<T>& items, const T& item) {
  return std::find(items.begin(), items.end(), item) != items.end();
}

}  // namespace

bool check_layout(const Layout& layout, const std::vector<Row>& rows, Report& report) {
  const auto fail = [&](Rule rule, const std::string& what) {
    report.overall(rule, std::nullopt, [&] { return what; });
  };
  if (layout.num_ranks < 1 || layout.num_microbatches < 1 || layout.num_slices < 1 || layout.stages.empty()) {
    fail(Rule::kLayout,
         fmt::format("{} ranks, {} micro-batches, {} slices, {} stages; at least 1 of each is needed", layout.num_ranks,
                     layout.num_microbatches, layout.num_slices, layout.stages.size()));
    return false;
  }
  if (rows.size() != static_cast<std::size_t>(layout.num_ranks)) {
    fail(Rule::kRanks, fmt::format("{} rows for {} ranks; one row per rank is needed", rows.size(), layout.num_ranks));
    return false;
  }
  const std::size_t num_stages = layout.stages.size();
  const std::size_t num_groups = layout.groups.size();
  const auto num_ranks = rows.size();
  for (std::size_t s = 0; s < num_stages; ++s) {
    const Stage& stage = layout.stages[s];
    const StageId id{static_cast<std::int32_t>(s)};
    bool sound = all_inside(stage.homes, num_ranks) && all_inside(stage.groups, num_groups);
    for (std::size_t g = 0; sound && g < stage.groups.size(); ++g)
      sound = contains(layout.groups[stage.groups[g].index()].users, id);
    if (!sound)
      fail(Rule::kLayout,
           fmt::format("stage {} names a rank or group that is not there, or a group that does not name it as a user",
                       s));
  }
  for (std::size_t e = 0; e < layout.edges.size(); ++e) {
    const Edge& edge = layout.edges[e];
    if (!inside(edge.producer, num_stages) || !inside(edge.consumer, num_stages) || edge.producer == edge.consumer)
      fail(Rule::kLayout, fmt::format("edge {} runs from stage {} to stage {}; there are stages 0..{}", e,
                                      edge.producer.value(), edge.consumer.value(), num_stages - 1));
  }
  for (const ParamGroup& group : layout.groups) {
    bool sound = !group.users.empty() && !group.homes.empty() && all_inside(group.users, num_stages) &&
                 all_inside(group.homes, num_ranks) && strictly_ascends(group.users) && strictly_ascends(group.homes);
    const std::ptrdiff_t index = &group - layout.groups.data();
    for (std::size_t u = 0; sound && u < group.users.size(); ++u)
      sound = contains(layout.stages[group.users[u].index()].groups, GroupId{static_cast<std::int32_t>(index)});
    if (!sound)
      fail(Rule::kLayout,
           fmt::format("group {} has no users or homes, or names ones that are not there, or that do not name it",
                       group.name));
  }
  for (std::size_t set = 0; set < layout.rank_sets.size(); ++set) {
    const std::vector<RankId>& ranks = layout.rank_sets[set];
    if (ranks.empty() || !all_inside(ranks, num_ranks) || !strictly_ascends(ranks))
      fail(Rule::kLayout, fmt::format("rank set {} is empty, not ascending, or names a rank that is not there", set));
  }

  // Tables are as large as the ops that must be there; a header may not ask for more than the rows can hold.
  std::size_t num_instrs = 0;
  for (const Row& row : rows) num_instrs += row.size();
  const double wanted = static_cast<double>(num_stages) * layout.num_microbatches * layout.num_slices;
  if (wanted > static_cast<double>(num_instrs))
    fail(Rule::kMissingForward,
         fmt::format(
             "{} stages, {} micro-batches and {} slices need as many forwards as their product, but the rows hold {} "
             "instructions in all; add what is missing, or correct the sizes",
             num_stages, layout.num_microbatches, layout.num_slices, num_instrs));
  else if (wanted * 4 + 2 * wanted * static_cast<double>(layout.edges.size()) / static_cast<double>(num_stages) >
           std::numeric_limits<std::uint32_t>::max() / 4.0)
    fail(Rule::kLayout, fmt::format("{} stages x {} micro-batches x {} slices are more values than can be followed",
                                    num_stages, layout.num_microbatches, layout.num_slices));
  return report.empty();
}

}  // namespace plait::verifying
