#include "plait/view/svg.h"

#include "plait/base/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace plait {
namespace {

constexpr int kLabelWidth = 70;
constexpr int kMargin = 12;
constexpr int kLane = 26;
constexpr int kBar = 20;
constexpr int kHead = 30;
constexpr int kAxis = 26;

/// A round step so that about `wanted` ticks cover the span: 1, 2 or 5 times a power of ten.
double axis_step(double span, int wanted) {
  if (span <= 0) return 1;
  const double raw = span / wanted;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= raw) return factor * power;
  return 10 * power;
}

std::string_view name_of(OpKind kind) {
  switch (kind) {
    case OpKind::kForward: return "F forward";
    case OpKind::kBackwardInput: return "B input gradient";
    case OpKind::kBackwardWeight: return "W weight gradient";
    case OpKind::kBackward: return "BW both";
    case OpKind::kRecompute: return "R recompute";
  }
  return "";
}

}  // namespace

std::string escape_xml(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '"': escaped += "&quot;"; break;
      default: escaped += c;
    }
  }
  return escaped;
}

std::string draw_svg(const std::vector<Timeline>& timelines, const SvgOptions& options) {
  double longest = 0;  // in units, so that panels of different ticks share a scale
  int height = kMargin;
  for (const Timeline& t : timelines) {
    longest = std::max(longest, static_cast<double>(t.makespan) / static_cast<double>(t.ticks_per_unit));
    height += kHead + t.num_ranks * kLane + kAxis;
  }
  height += kLane + kMargin;
  const double scale = longest > 0 ? (options.width - kLabelWidth - 2 * kMargin) / longest : 1;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n",
      options.width, height);
  svg +=
      "<defs><pattern id=\"idle\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
      "patternTransform=\"rotate(45)\">"
      "<rect width=\"6\" height=\"6\" fill=\"#f4f4f4\"/><line x1=\"0\" y1=\"0\" x2=\"0\" y2=\"6\" "
      "stroke=\"#cccccc\"/></pattern></defs>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
  int top = kMargin;
  bool used[5] = {};
  for (const Timeline& t : timelines) {
    const double units = static_cast<double>(t.ticks_per_unit);
    const auto x = [&](std::int64_t ticks) {
      return kMargin + kLabelWidth + static_cast<double>(ticks) / units * scale;
    };
    svg += fmt::format("<text x=\"{}\" y=\"{}\" font-size=\"13\" font-weight=\"bold\">{}</text>\n", kMargin, top + 16,
                       escape_xml(t.title));
    svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">makespan {}{}, bubble {:.1f} %</text>\n",
                       options.width - kMargin, top + 16, print_ticks(t.makespan, t.ticks_per_unit),
                       t.unit.empty() ? "" : " " + t.unit, 100 * t.bubble_ratio);
    top += kHead;
    const auto lane_top = [&](int rank) { return top + rank * kLane; };
    for (int rank = 0; rank < t.num_ranks; ++rank) {
      svg += fmt::format("<text x=\"{}\" y=\"{}\">rank {}</text>\n", kMargin, lane_top(rank) + 14, rank);
      svg += fmt::format("<rect x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" fill=\"url(#idle)\"/>\n", x(0),
                         lane_top(rank), x(t.makespan) - x(0), kBar);
    }
    for (const Bar& bar : t.bars) {
      used[static_cast<std::size_t>(bar.kind)] = true;
      const double left = x(bar.start);
      const double width = x(bar.end) - left;
      const std::string label = bar_label(t, bar);
      constexpr double kCharacter = 6.5;  // width of a digit at this size
      svg += fmt::format(
          "<g><title>{}: rank {}, stage {}, micro-batch {}, {} to {}</title><rect x=\"{:.2f}\" y=\"{}\" "
          "width=\"{:.2f}\" height=\"{}\" fill=\"{}\" stroke=\"#ffffff\" stroke-width=\"0.5\"/>",
          label, bar.rank, bar.stage, bar.microbatch, print_ticks(bar.start, t.ticks_per_unit),
          print_ticks(bar.end, t.ticks_per_unit), left, lane_top(bar.rank), std::max(width, 0.3), kBar,
          bar_color(bar.kind));
      if (width >= kCharacter * static_cast<double>(label.size()))
        svg += fmt::format("<text x=\"{:.2f}\" y=\"{}\" text-anchor=\"middle\">{}</text>", left + width / 2,
                           lane_top(bar.rank) + 14, label);
      svg += "</g>\n";
    }
    if (options.arrows == Arrows::kDrawn) {
      for (const Arrow& arrow : t.arrows) {
        const int down = arrow.to > arrow.from ? 1 : 0;
        svg += fmt::format(
            "<line x1=\"{:.2f}\" y1=\"{}\" x2=\"{:.2f}\" y2=\"{}\" stroke=\"#000000\" stroke-opacity=\"0.35\" "
            "stroke-width=\"0.8\"/>\n",
            x(arrow.sent), lane_top(arrow.from) + (down != 0 ? kBar : 0), x(arrow.arrived),
            lane_top(arrow.to) + (down != 0 ? 0 : kBar));
      }
    }
    const int axis = lane_top(t.num_ranks) + 2;
    const double span = static_cast<double>(t.makespan) / units;
    const double step = axis_step(span, 10);
    svg += fmt::format("<line x1=\"{:.2f}\" y1=\"{}\" x2=\"{:.2f}\" y2=\"{}\" stroke=\"#888888\"/>\n", x(0), axis,
                       x(t.makespan), axis);
    for (double at = 0; span > 0 && at <= span * (1 + 1e-9); at += step)
      svg += fmt::format("<text x=\"{:.2f}\" y=\"{}\" text-anchor=\"middle\" fill=\"#555555\">{:g}</text>\n",
                         kMargin + kLabelWidth + at * scale, axis + 13, at);
    top = lane_top(t.num_ranks) + kAxis;
  }
  double left = kMargin + kLabelWidth;
  for (const OpKind kind :
       {OpKind::kForward, OpKind::kBackwardInput, OpKind::kBackwardWeight, OpKind::kBackward, OpKind::kRecompute}) {
    if (!used[static_cast<std::size_t>(kind)]) continue;
    svg += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{}\" width=\"14\" height=\"14\" fill=\"{}\"/><text x=\"{:.2f}\" y=\"{}\">{}</text>\n",
        left, top + 4, bar_color(kind), left + 18, top + 15, name_of(kind));
    left += 130;
  }
  svg += fmt::format(
      "<rect x=\"{:.2f}\" y=\"{}\" width=\"14\" height=\"14\" fill=\"url(#idle)\"/><text x=\"{:.2f}\" "
      "y=\"{}\">idle</text>\n</svg>\n",
      left, top + 4, left + 18, top + 15);
  return svg;
}

}  // namespace plait
