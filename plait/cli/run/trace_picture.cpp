#include "plait/cli/run/trace_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <variant>

namespace plait::cli {
namespace {

char cell(const Op& op) {
  const int digit = op.microbatch.value() % 10;
  switch (op.kind) {
    case OpKind::kForward: return static_cast<char>('0' + digit);
    case OpKind::kBackward:
    case OpKind::kBackwardInput: return static_cast<char>('a' + digit);
    case OpKind::kBackwardWeight: return static_cast<char>('A' + digit);
    case OpKind::kRecompute: return '~';
  }
  return '?';
}

const Op* op_of(const Program& program, std::size_t rank, const TraceEvent& event) {
  return std::get_if<Op>(&program.rows[rank][static_cast<std::size_t>(event.position)]);
}

}  // namespace

std::string draw_trace(const Program& program, const StepResult& step, int columns) {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  std::int64_t last = 0;
  for (std::size_t rank = 0; rank < step.trace.size(); ++rank)
    for (const TraceEvent& event : step.trace[rank])
      if (op_of(program, rank, event) != nullptr) {
        first = std::min(first, event.start.value());
        last = std::max(last, event.end.value());
      }
  if (last <= first) return {};
  const double scale = static_cast<double>(columns) / static_cast<double>(last - first);
  const auto column = [&](Nanos time) {
    return std::clamp(static_cast<int>(static_cast<double>(time.value() - first) * scale), 0, columns - 1);
  };
  std::string picture;
  for (std::size_t rank = 0; rank < step.trace.size(); ++rank) {
    std::string line(static_cast<std::size_t>(columns), '.');
    for (const TraceEvent& event : step.trace[rank])
      if (const Op* op = op_of(program, rank, event))
        for (int c = column(event.start); c <= column(event.end - Nanos{1}); ++c)
          line[static_cast<std::size_t>(c)] = cell(*op);
    picture += fmt::format("  rank {:<2} {}\n", rank, line);
  }
  return picture;
}

}  // namespace plait::cli
