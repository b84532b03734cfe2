#include "plait/run/train/breakdown.h"

#include "plait/base/check.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace plait {
namespace {

bool is_transfer(const Instr& instr) {
  return std::holds_alternative<Send>(instr) || std::holds_alternative<Recv>(instr) ||
         std::holds_alternative<WaitSend>(instr) || std::holds_alternative<Collective>(instr) ||
         std::holds_alternative<WaitCollective>(instr) || std::holds_alternative<Validate>(instr);
}

Nanos length_of(const KernelEvent& event) {
  return event.end - event.start;
}

/// The entry for `key`, added behind the others if it is new.
template <class Entry, class Same>
Entry& entry_of(std::vector<Entry>& entries, const Same& is_same, Entry fresh) {
  const auto found = std::find_if(entries.begin(), entries.end(), is_same);
  return found != entries.end() ? *found : entries.emplace_back(std::move(fresh));
}

/// What kernels of an instruction took that began in front of `from`, where its trace begins, is no time of its own.
Nanos time_in(const std::vector<const KernelEvent*>& kernels, Nanos from) {
  Nanos time{0};
  for (const KernelEvent* kernel : kernels)
    if (kernel->start >= from) time += length_of(*kernel);
  return time;
}

void add_instrs(Breakdown& total, const Row& row, const std::vector<TraceEvent>& trace,
                const std::map<int, std::vector<const KernelEvent*>>& kernels_at) {
  static const std::vector<const KernelEvent*> kNone;
  Nanos before{0};
  for (const TraceEvent& event : trace) {
    const auto kernels = kernels_at.find(event.position);
    const std::vector<const KernelEvent*>& inside = kernels != kernels_at.end() ? kernels->second : kNone;
    if (&event == &trace.front())
      total.begin = event.start;
    else
      total.waiting += event.start - before;
    before = event.end;
    const Instr& instr = row[static_cast<std::size_t>(event.position)];
    const std::string kind = kind_of(instr);
    Breakdown::InstrTotal& entry = entry_of(
        total.instrs, [&](const auto& known) { return known.kind == kind; },
        Breakdown::InstrTotal{.kind = kind, .is_transfer = is_transfer(instr)});
    ++entry.count;
    entry.time += event.end - event.start;
    entry.in_kernels += time_in(inside, event.start);
  }
  total.waiting += total.duration - before;
}

void add_parts(Breakdown& total, const Row& row, const std::vector<KernelEvent>& events) {
  std::map<std::pair<PartKind, OpKind>, Breakdown::PartTotal> parts;
  for (const KernelEvent& event : events) {
    if (!event.part) continue;
    const Op* op = std::get_if<Op>(&row[static_cast<std::size_t>(event.position)]);
    PLAIT_CHECK(op != nullptr, "position {}: a part outside of an op", event.position);
    Breakdown::PartTotal& entry = parts[{event.part->kind, op->kind}];
    entry.part = event.part->kind;
    entry.op = op->kind;
    if (event.kernel) {
      entry.in_kernels += length_of(event);
    } else {
      ++entry.count;
      entry.time += length_of(event);
    }
  }
  for (const auto& [key, entry] : parts) total.parts.push_back(entry);
}

void add_kernels(Breakdown& total, const std::vector<KernelEvent>& events) {
  std::map<KernelKind, Breakdown::KernelTotal> kernels;
  std::map<std::pair<KernelKind, GemmShape>, Breakdown::GemmTotal> gemms;
  for (const KernelEvent& event : events) {
    if (!event.kernel) continue;
    Breakdown::KernelTotal& entry = kernels[*event.kernel];
    entry.kernel = *event.kernel;
    ++entry.count;
    entry.time += length_of(event);
    entry.flops += event.gemm.flops();
    if (event.gemm == GemmShape{}) continue;
    Breakdown::GemmTotal& gemm = gemms[{*event.kernel, event.gemm}];
    gemm.kernel = *event.kernel;
    gemm.shape = event.gemm;
    ++gemm.count;
    gemm.time += length_of(event);
  }
  for (const auto& [key, entry] : kernels) total.kernels.push_back(entry);
  for (const auto& [key, entry] : gemms) total.gemms.push_back(entry);
}

Breakdown break_down_rank(const Row& row, const std::vector<TraceEvent>& trace, const std::vector<KernelEvent>& events,
                          Nanos duration) {
  Breakdown total{.duration = duration};
  if (trace.empty()) {
    total.waiting = duration;
    return total;
  }
  std::map<int, std::vector<const KernelEvent*>> kernels_at;
  for (const KernelEvent& event : events)
    if (event.kernel) kernels_at[event.position].push_back(&event);
  add_instrs(total, row, trace, kernels_at);
  add_parts(total, row, events);
  add_kernels(total, events);
  total.uncovered = total.begin;
  for (const KernelEvent* kernel : kernels_at[KernelEvent::kBeforeRow]) total.uncovered -= length_of(*kernel);
  for (const Breakdown::InstrTotal& entry : total.instrs)
    if (!entry.is_transfer) total.uncovered += entry.time - entry.in_kernels;
  return total;
}

}  // namespace

std::string kind_of(const Instr& instr) {
  const Op* op = std::get_if<Op>(&instr);
  return std::string(op != nullptr ? to_string(op->kind) : kind_name(instr));
}

std::string_view to_string(PartKind part) {
  switch (part) {
    case PartKind::kEmbed: return "embed";
    case PartKind::kNorm: return "norm";
    case PartKind::kQkv: return "qkv";
    case PartKind::kAttn: return "attn";
    case PartKind::kPost: return "post";
    case PartKind::kHead: return "head";
  }
  PLAIT_CHECK(false, "part kind {}", static_cast<int>(part));
}

std::vector<Breakdown> break_down(const Program& program, const StepResult& step) {
  PLAIT_CHECK(step.kernel_events.size() == program.rows.size(), "kernels of {} ranks of {}", step.kernel_events.size(),
              program.rows.size());
  std::vector<Breakdown> ranks;
  for (std::size_t rank = 0; rank < program.rows.size(); ++rank)
    ranks.push_back(break_down_rank(program.rows[rank], step.trace[rank], step.kernel_events[rank], step.duration));
  return ranks;
}

}  // namespace plait
