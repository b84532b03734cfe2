#pragma once

#include "plait/verify/rules.h"
#include "plait/verify/space.h"
#include "plait/verify/verify.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

namespace plait::verifying {

/// Collects findings, and remembers which values they are about: a later rule stays silent about a value that already has
/// a finding, because what it sees there is a consequence. A value is only ever silenced by a finding, so nothing that is
/// wrong can end without one.
class Report {
 public:
  Report(const Layout& layout, const std::vector<Row>& rows, int most_listed)
      : layout_(layout), rows_(rows), most_listed_(most_listed) {}

  /// A finding at an instruction. `body` says expected, found and the fix; where and op come first by themselves. Only
  /// the first findings of a rule are put in words, all are counted.
  /// `position` may be a function, for places that have to be searched for.
  template <class Position, class Body>
  void at(Rule rule, std::size_t rank, const Position& position, const Body& body) {
    if (!count(rule)) return;
    std::size_t at = 0;
    if constexpr (std::is_invocable_v<Position>) {
      at = position();
    } else {
      at = position;
    }
    findings_.push_back(Finding{.rule = std::string(rule_id(rule)),
                                .rank = RankId{static_cast<std::int32_t>(rank)},
                                .position = static_cast<int>(at),
                                .message = where(rank, at) + body()});
  }
  /// A finding without a place of its own.
  template <class Body>
  void overall(Rule rule, std::optional<RankId> rank, const Body& body) {
    if (!count(rule)) return;
    findings_.push_back(Finding{.rule = std::string(rule_id(rule)),
                                .rank = rank,
                                .message = (rank ? fmt::format("rank {}: ", rank->value()) : std::string()) + body()});
  }

  void suspect(Cell cell) { suspects_.insert(cell); }
  [[nodiscard]] bool is_suspect(Cell cell) const { return !suspects_.empty() && suspects_.contains(cell); }
  [[nodiscard]] bool any_suspects() const { return !suspects_.empty(); }
  [[nodiscard]] bool empty() const { return findings_.empty(); }

  /// "rank 2, position 14, op 1B3: "
  [[nodiscard]] std::string where(std::size_t rank, std::size_t position) const;
  [[nodiscard]] std::string name(std::size_t rank, std::size_t position) const;

  /// All findings; the last one listed of a rule says how many more there are.
  std::vector<Finding> take();

 private:
  bool count(Rule rule) { return ++counts_[static_cast<std::size_t>(rule)] <= static_cast<std::size_t>(most_listed_); }

  const Layout& layout_;
  const std::vector<Row>& rows_;
  int most_listed_;
  std::array<std::size_t, static_cast<std::size_t>(Rule::kDeadlock) + 1> counts_ = {};
  std::unordered_set<Cell> suspects_;
  std::vector<Finding> findings_;
};

}  // namespace plait::verifying
