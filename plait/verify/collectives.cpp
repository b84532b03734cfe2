#include "plait/verify/collectives.h"

#include "plait/verify/notation.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace plait::verifying {
namespace {

/// One entry of a rank into a collective.
struct Entry {
  std::uint32_t rank = 0;
  std::uint32_t position = 0;
  std::uint32_t ordinal = 0;  ///< among the rank's collectives
  const Collective* what = nullptr;
};

bool agree(const Collective& a, const Collective& b) {
  const bool rooted = a.kind == CollectiveKind::kBroadcast || a.kind == CollectiveKind::kReduce;
  return a.kind == b.kind && a.value == b.value && (!rooted || a.root == b.root);
}

auto name_of(const Collective& c) {
  const bool rooted = c.kind == CollectiveKind::kBroadcast || c.kind == CollectiveKind::kReduce;
  return std::tuple(c.value, c.kind, rooted ? c.root.value() : 0);
}

class SetMatcher {
 public:
  SetMatcher(const Space& space, Report& report, Collectives& out) : space_(space), report_(report), out_(out) {}

  /// `entries[i]` are the entries of member i, in its row order.
  void match(RankSetId set, const std::vector<RankId>& members, const std::vector<std::vector<Entry>>& entries) {
    bool same = true;
    for (std::size_t i = 1; same && i < members.size(); ++i)
      same = std::equal(entries[0].begin(), entries[0].end(), entries[i].begin(), entries[i].end(),
                        [](const Entry& a, const Entry& b) { return agree(*a.what, *b.what); });
    if (same) {
      for (std::size_t k = 0; k < entries[0].size(); ++k) {
        const RunId run = new_run(set);
        for (std::size_t i = 0; i < members.size(); ++i) assign(entries[i][k], run);
      }
      return;
    }
    match_by_name(set, members, entries);
  }

 private:
  RunId new_run(RankSetId set) {
    out_.set_of_run.push_back(set);
    return static_cast<RunId>(out_.set_of_run.size() - 1);
  }
  void assign(const Entry& entry, RunId run) { out_.run_of_entry[entry.rank][entry.ordinal] = run; }

  void match_by_name(RankSetId set, const std::vector<RankId>& members,
                     const std::vector<std::vector<Entry>>& entries) {
    // The n-th collective of a name on one member meets the n-th of that name on the others.
    std::map<decltype(name_of(std::declval<Collective>())), std::vector<std::vector<const Entry*>>> by_name;
    for (std::size_t i = 0; i < members.size(); ++i) {
      for (const Entry& entry : entries[i]) {
        auto& of_members = by_name[name_of(*entry.what)];
        of_members.resize(members.size());
        of_members[i].push_back(&entry);
      }
    }
    bool missing = false;
    for (const auto& [name, of_members] : by_name) {
      std::size_t most = 0;
      for (const auto& list : of_members) most = std::max(most, list.size());
      for (std::size_t k = 0; k < most; ++k) {
        const auto has = [&, &lists = of_members](std::size_t i) { return k < lists[i].size(); };
        bool complete = true;
        for (std::size_t i = 0; i < members.size(); ++i) complete = complete && has(i);
        const RunId run = complete ? new_run(set) : kNoRun;
        const Entry* first = nullptr;
        for (std::size_t i = 0; i < members.size(); ++i) {
          if (!has(i)) continue;
          assign(*of_members[i][k], run);
          if (first == nullptr) first = of_members[i][k];
        }
        if (complete) continue;
        missing = true;
        report_.suspect(space_.cell(first->what->value));
        for (std::size_t i = 0; i < members.size(); ++i) {
          if (has(i)) continue;
          report_.at(Rule::kCollectiveMissing, first->rank, first->position, [&] {
            return fmt::format(
                "rank {} is a member of rank set {} and never enters it; every member must enter every collective of "
                "the set",
                members[i].value(), set.value());
          });
        }
      }
    }
    if (missing) return;
    for (std::size_t i = 1; i < members.size(); ++i) {
      for (std::size_t k = 0; k < entries[i].size(); ++k) {
        if (agree(*entries[0][k].what, *entries[i][k].what)) continue;
        report_.at(Rule::kCollectiveOrder, entries[i][k].rank, entries[i][k].position, [&] {
          return fmt::format(
              "rank {} enters the {} of the {} at this place of the order (position {}); enter them in the same order "
              "on all members",
              members[0].value(), to_string(entries[0][k].what->kind),
              describe(space_.layout(), entries[0][k].what->value), entries[0][k].position);
        });
        break;
      }
    }
  }

  const Space& space_;
  Report& report_;
  Collectives& out_;
};

}  // namespace

Collectives match_collectives(const Space& space, const std::vector<Row>& rows, Report& report) {
  Collectives out;
  out.run_of_entry.resize(rows.size());
  const auto& sets = space.layout().rank_sets;
  // Entries by set, gathered in rank order, so those of one member lie together.
  std::vector<std::vector<Entry>> of_set(sets.size());
  for (std::uint32_t rank = 0; rank < rows.size(); ++rank) {
    for (std::uint32_t at = 0; at < rows[rank].size(); ++at) {
      const Collective* collective = std::get_if<Collective>(&rows[rank][at]);
      if (collective == nullptr) continue;
      auto& runs = out.run_of_entry[rank];
      of_set[collective->ranks.index()].push_back(
          Entry{.rank = rank, .position = at, .ordinal = static_cast<std::uint32_t>(runs.size()), .what = collective});
      runs.push_back(kNoRun);
    }
  }
  SetMatcher matcher(space, report, out);
  for (std::size_t set = 0; set < sets.size(); ++set) {
    if (of_set[set].empty()) continue;
    std::vector<std::vector<Entry>> of_member(sets[set].size());
    for (const Entry& entry : of_set[set]) {
      const RankId rank{static_cast<std::int32_t>(entry.rank)};
      const auto member = std::lower_bound(sets[set].begin(), sets[set].end(), rank) - sets[set].begin();
      of_member[static_cast<std::size_t>(member)].push_back(entry);
    }
    matcher.match(RankSetId{static_cast<std::int32_t>(set)}, sets[set], of_member);
  }
  return out;
}

}  // namespace plait::verifying
