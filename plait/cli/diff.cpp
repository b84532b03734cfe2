#include "plait/cli/diff.h"

#include "plait/ir/text.h"

#include <algorithm>
#include <map>
#include <sstream>

namespace plait {
namespace {

/// The text format taken apart: one token per instruction.
struct Tokens {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
};

Tokens split(const std::string& text) {
  Tokens tokens;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("rank ")) {
      tokens.rows.emplace_back();
    } else if (!tokens.rows.empty()) {
      std::istringstream words(line);
      for (std::string word; words >> word;) tokens.rows.back().push_back(word);
    } else if (!line.empty() && !line.starts_with("name ") && !line.starts_with("newline ")) {
      tokens.header.push_back(line);
    }
  }
  return tokens;
}

Tokens tokens_of(const ScheduleOrProgram& content) {
  return split(std::visit([](const auto& held) { return print_text(held); }, content));
}

ScheduleDiff::RankSummary summarise(const std::vector<std::string>& left, const std::vector<std::string>& right) {
  std::map<std::string, std::int64_t> surplus;
  for (const std::string& token : left) ++surplus[token];
  for (const std::string& token : right) --surplus[token];
  ScheduleDiff::RankSummary summary;
  for (const auto& [token, count] : surplus) {
    summary.only_left += std::max<std::int64_t>(count, 0);
    summary.only_right += std::max<std::int64_t>(-count, 0);
  }
  // What both rows hold, each in its own order.
  const auto shared = [](const std::vector<std::string>& row, const std::vector<std::string>& other) {
    std::map<std::string, std::int64_t> left_over;
    for (const std::string& token : other) ++left_over[token];
    std::vector<std::string> kept;
    for (const std::string& token : row)
      if (left_over[token]-- > 0) kept.push_back(token);
    return kept;
  };
  const auto in_left = shared(left, right);
  const auto in_right = shared(right, left);
  for (std::size_t at = 0; at < in_left.size(); ++at) summary.moved += in_left[at] == in_right[at] ? 0 : 1;
  return summary;
}

}  // namespace

Result<ScheduleDiff> diff_schedules(const ScheduleOrProgram& left, const ScheduleOrProgram& right) {
  if (left.index() != right.index()) {
    PLAIT_TRY(Program left_program, lowered(left));
    PLAIT_TRY(Program right_program, lowered(right));
    return diff_schedules(ScheduleOrProgram(std::move(left_program)), ScheduleOrProgram(std::move(right_program)));
  }
  const Tokens a = tokens_of(left);
  const Tokens b = tokens_of(right);
  ScheduleDiff diff;
  const auto lines_only_in = [&](const Tokens& here, const Tokens& there, const char* mark) {
    for (const std::string& line : here.header)
      if (std::find(there.header.begin(), there.header.end(), line) == there.header.end())
        diff.header.push_back(mark + line);
  };
  lines_only_in(a, b, "- ");
  lines_only_in(b, a, "+ ");
  static const std::vector<std::string> kNoRow;
  for (std::size_t rank = 0; rank < std::max(a.rows.size(), b.rows.size()); ++rank) {
    const auto& row_a = rank < a.rows.size() ? a.rows[rank] : kNoRow;
    const auto& row_b = rank < b.rows.size() ? b.rows[rank] : kNoRow;
    diff.ranks.push_back(summarise(row_a, row_b));
    if (!diff.first.empty() || row_a == row_b) continue;
    std::size_t at = 0;
    while (at < row_a.size() && at < row_b.size() && row_a[at] == row_b[at]) ++at;
    diff.first.push_back({.rank = static_cast<int>(rank),
                          .position = static_cast<int>(at),
                          .left = at < row_a.size() ? row_a[at] : "",
                          .right = at < row_b.size() ? row_b[at] : ""});
  }
  return diff;
}

}  // namespace plait
