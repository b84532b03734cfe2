#include "plait/view/chrome_trace.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace plait {
namespace {

/// Microseconds in one unit; bare numbers count as microseconds.
double microseconds_per_unit(const std::string& unit) {
  if (unit == "s") return 1e6;
  if (unit == "ms") return 1e3;
  if (unit == "ns") return 1e-3;
  return 1;
}

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string chrome_trace(const std::vector<Timeline>& timelines) {
  std::string json = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [";
  bool first = true;
  const auto event = [&](const std::string& text) {
    json += first ? "\n" : ",\n";
    first = false;
    json += text;
  };
  int flow = 0;
  for (std::size_t pid = 0; pid < timelines.size(); ++pid) {
    const Timeline& t = timelines[pid];
    const double factor = microseconds_per_unit(t.unit) / static_cast<double>(t.ticks_per_unit);
    const auto us = [&](std::int64_t ticks) { return static_cast<double>(ticks) * factor; };
    event(fmt::format(R"({{"ph": "M", "pid": {}, "name": "process_name", "args": {{"name": {}}}}})", pid,
                      quoted(t.title)));
    for (int rank = 0; rank < t.num_ranks; ++rank)
      event(fmt::format(R"({{"ph": "M", "pid": {}, "tid": {}, "name": "thread_name", "args": {{"name": "rank {}"}}}})",
                        pid, rank, rank));
    for (const Bar& bar : t.bars)
      event(fmt::format(
          R"({{"ph": "X", "pid": {}, "tid": {}, "name": "{}", "cat": "{}", "ts": {}, "dur": {}, "args": {{"stage": {}, "microbatch": {}, "slice": {}}}}})",
          pid, bar.rank, bar_label(t, bar), to_string(bar.kind), us(bar.start), us(bar.end - bar.start), bar.stage,
          bar.microbatch, bar.slice));
    for (const Span& span : t.spans)
      event(fmt::format(R"({{"ph": "X", "pid": {}, "tid": {}, "name": {}, "cat": "{}", "ts": {}, "dur": {}}})", pid,
                        span.rank, quoted(span.name), span.kind == Span::Kind::kPart ? "part" : "kernel",
                        us(span.start), us(span.end - span.start)));
    for (const Arrow& arrow : t.arrows) {
      ++flow;
      event(fmt::format(
          R"({{"ph": "s", "pid": {}, "tid": {}, "id": {}, "name": {}, "cat": "transfer", "ts": {}, "args": {{"bytes": {}}}}})",
          pid, arrow.from, flow, quoted(arrow.value), us(arrow.sent), arrow.bytes));
      event(fmt::format(
          R"({{"ph": "f", "bp": "e", "pid": {}, "tid": {}, "id": {}, "name": {}, "cat": "transfer", "ts": {}}})", pid,
          arrow.to, flow, quoted(arrow.value), us(arrow.arrived)));
    }
    for (std::size_t rank = 0; rank < t.memory.size(); ++rank)
      for (const auto& [time, held] : t.memory[rank])
        event(fmt::format(R"({{"ph": "C", "pid": {}, "name": "rank {} {}", "ts": {}, "args": {{"{}": {}}}}})", pid,
                          rank, t.memory_unit, us(time), t.memory_unit, held));
  }
  json += "\n]}\n";
  return json;
}

}  // namespace plait
