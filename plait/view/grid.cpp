#include "plait/view/grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace plait {
namespace {

/// 256-colour background of a kind, nearest to bar_color; the text on it is black.
int ansi_color(OpKind kind) {
  switch (kind) {
    case OpKind::kForward: return 74;
    case OpKind::kBackwardInput: return 178;
    case OpKind::kBackwardWeight: return 36;
    case OpKind::kBackward: return 166;
    case OpKind::kRecompute: return 175;
  }
  return 250;
}

struct Scale {
  double columns_per_tick = 1;
  int idle_every = 1;  ///< a dot each so many columns
};

/// Exact columns if they fit: every time is a whole number of steps (their greatest common divisor), and a step is so wide
/// that each label and a blank fit into its op.
Scale choose_scale(const Timeline& timeline, const GridOptions& options) {
  std::int64_t step = timeline.makespan;
  for (const Bar& bar : timeline.bars) step = std::gcd(step, std::gcd(bar.start, bar.end));
  if (step < 1) return {};
  double wanted = 1;
  for (const Bar& bar : timeline.bars) {
    if (bar.end == bar.start) continue;
    const double steps = static_cast<double>(bar.end - bar.start) / static_cast<double>(step);
    wanted = std::max(wanted, std::ceil((static_cast<double>(bar_label(timeline, bar).size()) + 1) / steps));
  }
  const double steps = static_cast<double>(timeline.makespan) / static_cast<double>(step);
  if (wanted * steps <= options.most_columns)
    return {.columns_per_tick = wanted / static_cast<double>(step), .idle_every = static_cast<int>(wanted)};
  return {.columns_per_tick = static_cast<double>(options.most_columns) / static_cast<double>(timeline.makespan),
          .idle_every = 3};
}

std::string cell_text(std::string label, std::size_t width) {
  if (width == 0) return "";
  if (width == 1) return label.substr(0, 1);
  const std::size_t room = width - 1;  // a blank ends each op
  if (label.size() > room) label.resize(room);
  label.resize(room, '-');
  return label + ' ';
}

}  // namespace

std::string draw_grid(const Timeline& timeline, const GridOptions& options) {
  const Scale scale = choose_scale(timeline, options);
  const auto column = [&](std::int64_t ticks) {
    return static_cast<std::size_t>(std::llround(static_cast<double>(ticks) * scale.columns_per_tick));
  };
  const std::size_t num_columns = column(timeline.makespan);
  const std::size_t rank_width = std::to_string(std::max(0, timeline.num_ranks - 1)).size();
  std::string text;
  auto bar = timeline.bars.begin();
  for (int rank = 0; rank < timeline.num_ranks; ++rank) {
    std::string line = fmt::format("rank {:>{}}  ", rank, rank_width);
    std::size_t at = 0;
    const auto stand_still = [&](std::size_t until) {
      for (const std::size_t first = at; at < until; ++at)
        line += (at - first) % static_cast<std::size_t>(scale.idle_every) == 0 ? '.' : ' ';
    };
    for (; bar != timeline.bars.end() && bar->rank == rank; ++bar) {
      stand_still(column(bar->start));
      const std::size_t end = std::max(at, column(bar->end));
      const std::string cell = cell_text(bar_label(timeline, *bar), end - at);
      at = end;
      if (options.colors == Colors::kNone || cell.empty()) {
        line += cell;
      } else {
        const bool blank = cell.size() > 1;
        line += fmt::format("\x1b[30;48;5;{}m{}\x1b[0m{}", ansi_color(bar->kind),
                            cell.substr(0, cell.size() - (blank ? 1 : 0)), blank ? " " : "");
      }
    }
    stand_still(num_columns);
    while (!line.empty() && line.back() == ' ') line.pop_back();
    text += line + '\n';
  }
  return text;
}

}  // namespace plait
