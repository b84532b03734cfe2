#include "plait/verify/report.h"

#include "plait/verify/notation.h"

#include <algorithm>

namespace plait::verifying {

std::string Report::name(std::size_t rank, std::size_t position) const {
  return describe(layout_, rows_[rank][position]);
}

std::string Report::where(std::size_t rank, std::size_t position) const {
  return fmt::format("rank {}, position {}, op {}: ", rank, position, name(rank, position));
}

std::vector<Finding> Report::take() {
  for (std::size_t rule = 0; rule < counts_.size(); ++rule) {
    const auto listed = static_cast<std::size_t>(most_listed_);
    if (counts_[rule] <= listed) continue;
    const std::string_view id = rule_id(static_cast<Rule>(rule));
    const auto last =
        std::find_if(findings_.rbegin(), findings_.rend(), [&](const Finding& f) { return f.rule == id; });
    if (last != findings_.rend()) last->message += fmt::format(" (and {} more like this)", counts_[rule] - listed);
  }
  return std::move(findings_);
}

}  // namespace plait::verifying
