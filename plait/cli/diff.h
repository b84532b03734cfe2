#pragma once

#include "plait/cli/schedule_source.h"

#include <cstdint>
#include <string>
#include <vector>

namespace plait {

/// Where two schedules differ, in the words of the text format.
struct ScheduleDiff {
  struct Place {
    int rank = 0;
    int position = 0;
    std::string left;  ///< empty: the row has ended
    std::string right;
    friend bool operator==(const Place&, const Place&) = default;
  };
  struct RankSummary {
    std::int64_t only_left = 0;
    std::int64_t only_right = 0;
    std::int64_t moved = 0;  ///< in both rows, but the order of what they share differs there
    friend bool operator==(const RankSummary&, const RankSummary&) = default;
  };
  std::vector<std::string> header;  ///< lines of sizes and placement that differ: "- ranks 2", "+ ranks 4"
  std::vector<Place> first;         ///< at most one
  std::vector<RankSummary> ranks;
  [[nodiscard]] bool equal() const { return header.empty() && first.empty(); }
  friend bool operator==(const ScheduleDiff&, const ScheduleDiff&) = default;
};

/// Compares row by row, names and line ends aside. Where one side is a program, the other is lowered first.
Result<ScheduleDiff> diff_schedules(const ScheduleOrProgram& left, const ScheduleOrProgram& right);

}  // namespace plait
