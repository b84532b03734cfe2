#include "plait/run/train/trace.h"

#include "plait/base/check.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace plait {
namespace {

using Json = nlohmann::ordered_json;

const Instr& instr_at(const Program& program, std::size_t rank, const TraceEvent& event) {
  PLAIT_CHECK(rank < program.rows.size(), "rank {} of {}", rank, program.rows.size());
  const Row& row = program.rows[rank];
  PLAIT_CHECK(event.position >= 0 && static_cast<std::size_t>(event.position) < row.size(),
              "rank {}: position {} of {}", rank, event.position, row.size());
  return row[static_cast<std::size_t>(event.position)];
}

bool is_work(const Instr& instr) {
  return std::holds_alternative<Op>(instr) || std::holds_alternative<Step>(instr);
}

std::string op_name(const Op& op, int num_slices) {
  std::string name = fmt::format("{}{}{}", op.stage.value(), to_string(op.kind), op.microbatch.value());
  if (num_slices > 1) name += fmt::format(".{}", op.slice.value());
  return name;
}

Json op_entry(const Op& op, const Layout& layout) {
  return Json{{"op", op_name(op, layout.num_slices)},
              {"kind", to_string(op.kind)},
              {"stage", op.stage.value()},
              {"microbatch", op.microbatch.value()},
              {"slice", op.slice.value()}};
}

/// Value, peer and group of an instruction, whichever it has.
Json other_entry(const Instr& instr, const Layout& layout) {
  Json entry{{"kind", kind_name(instr)}};
  std::visit(
      [&](const auto& i) {
        using T = std::decay_t<decltype(i)>;
        if constexpr (requires { i.value; }) {
          entry["value"] = to_string(i.value.kind());
          if (i.value.is_edge()) {
            entry["edge"] = i.value.edge().value();
            entry["microbatch"] = i.value.microbatch().value();
          } else if (i.value.is_group()) {
            entry["group"] = layout.groups[i.value.group().index()].name;
          }
        }
        if constexpr (requires { i.peer; }) entry["peer"] = i.peer.value();
        if constexpr (std::is_same_v<T, Add> || std::is_same_v<T, Step>)
          entry["group"] = layout.groups[i.group.index()].name;
      },
      instr);
  return entry;
}

/// Appends `,"key": [...]` with one entry a line: programs have thousands.
void append_lines(std::string& text, std::string_view key, const std::vector<Json>& entries) {
  text += fmt::format(",\n\"{}\": [", key);
  for (std::size_t i = 0; i < entries.size(); ++i) text += (i == 0 ? "\n" : ",\n") + entries[i].dump();
  text += "]";
}

/// Passes through parts and kernel calls, where they were recorded.
void append_kernels(std::string& text, const StepResult& step) {
  if (step.kernel_events.empty()) return;
  std::vector<Json> parts;
  std::vector<Json> kernels;
  for (std::size_t rank = 0; rank < step.kernel_events.size(); ++rank)
    for (const KernelEvent& event : step.kernel_events[rank]) {
      Json entry{{"rank", rank}, {"position", event.position}};
      if (event.part) entry["part"] = to_string(*event.part);
      if (event.kernel) entry["kernel"] = to_string(*event.kernel);
      entry["start"] = event.start.value();
      entry["end"] = event.end.value();
      (event.kernel ? kernels : parts).push_back(std::move(entry));
    }
  append_lines(text, "parts", parts);
  append_lines(text, "kernels", kernels);
}

}  // namespace

TraceFigures trace_figures(const Program& program, const StepResult& step) {
  Nanos first{std::numeric_limits<std::int64_t>::max()};
  Nanos last{std::numeric_limits<std::int64_t>::min()};
  Nanos busy{0};
  for (std::size_t rank = 0; rank < step.trace.size(); ++rank)
    for (const TraceEvent& event : step.trace[rank])
      if (is_work(instr_at(program, rank, event))) {
        first = std::min(first, event.start);
        last = std::max(last, event.end);
        busy += event.end - event.start;
      }
  TraceFigures figures;
  for (const Bytes bytes : step.bytes_moved) figures.moved += bytes;
  if (last <= first) return figures;
  figures.makespan = last - first;
  const double mean_busy = static_cast<double>(busy.value()) / static_cast<double>(step.trace.size());
  figures.bubble_ratio = 1.0 - mean_busy / static_cast<double>(figures.makespan.value());
  return figures;
}

std::string trace_json(const Program& program, const StepResult& step, std::int64_t step_number) {
  Json document{{"format", "plait-trace"},           {"version", 1},
                {"schedule", program.layout.name},   {"step", step_number},
                {"ranks", program.layout.num_ranks}, {"time_unit", "ns"},
                {"duration", step.duration.value()}, {"bubble_ratio", trace_figures(program, step).bubble_ratio}};
  document["bytes_moved"] = Json::array();
  for (const Bytes bytes : step.bytes_moved) document["bytes_moved"].push_back(bytes.value());
  std::vector<Json> ops;
  std::vector<Json> transfers;
  for (std::size_t rank = 0; rank < step.trace.size(); ++rank)
    for (const TraceEvent& event : step.trace[rank]) {
      const Instr& instr = instr_at(program, rank, event);
      const Op* op = std::get_if<Op>(&instr);
      Json entry{{"rank", rank}, {"position", event.position}};
      entry.update(op != nullptr ? op_entry(*op, program.layout) : other_entry(instr, program.layout));
      entry["start"] = event.start.value();
      entry["end"] = event.end.value();
      if (op == nullptr) entry["bytes"] = event.moved.value();
      (op != nullptr ? ops : transfers).push_back(std::move(entry));
    }
  std::string text = document.dump();
  text.pop_back();  // the closing brace
  append_lines(text, "ops", ops);
  append_lines(text, "transfers", transfers);
  append_kernels(text, step);
  return text + "\n}\n";
}

}  // namespace plait
