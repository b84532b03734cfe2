#include "plait/run/engine/rank_report.h"

#include "plait/run/engine/byte_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace plait {
namespace {

/// Adds the bytes that one row moved to those of their kinds of value.
void add_moved(const Row& row, const std::vector<TraceEvent>& trace, std::map<ValueKind, Bytes>& by_kind) {
  for (std::size_t at = 0; at < row.size(); ++at) {
    if (trace[at].moved == Bytes{0}) continue;
    if (const Send* send = std::get_if<Send>(&row[at])) by_kind[send->value.kind()] += trace[at].moved;
    if (const Collective* entry = std::get_if<Collective>(&row[at])) by_kind[entry->value.kind()] += trace[at].moved;
  }
}

}  // namespace

std::string encode(const std::vector<RankReport>& reports) {
  ByteWriter out;
  out.put(reports.size());
  for (const RankReport& report : reports)
    out.put_list(report.losses)
        .put_list(report.not_finite)
        .put(report.grad_norm)
        .put_list(report.trace)
        .put(report.peak)
        .put(report.moved)
        .put(report.peak_stashes)
        .put(report.kernels)
        .put_list(report.kernel_events);
  return out.take();
}

void decode(std::string_view bytes, std::vector<RankReport>& reports) {
  ByteReader in(bytes);
  for (auto left = in.get<std::size_t>(); left > 0; --left) {
    RankReport& report = reports.emplace_back();
    report.losses = in.get_list<double>();
    report.not_finite = in.get_list<std::int64_t>();
    report.grad_norm = in.get<double>();
    report.trace = in.get_list<TraceEvent>();
    report.peak = in.get<Bytes>();
    report.moved = in.get<Bytes>();
    report.peak_stashes = in.get<int>();
    report.kernels = in.get<KernelCounts>();
    report.kernel_events = in.get_list<KernelEvent>();
  }
}

double loss_sum(const std::vector<RankReport>& reports) {
  double sum = 0;
  for (std::size_t at = 0; at < reports.front().losses.size(); ++at)
    for (const RankReport& report : reports) sum += report.losses[at];
  return sum;
}

std::string describe_not_finite(const std::vector<RankReport>& reports,
                                const std::vector<std::string>& parameter_order) {
  for (std::size_t rank = 0; rank < reports.size(); ++rank)
    for (const double loss : reports[rank].losses)
      if (!std::isfinite(loss)) return fmt::format("the loss is {} (rank {})", loss, rank);
  std::string first;
  std::size_t count = 0;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    const std::vector<std::int64_t>& places = reports[rank].not_finite;
    count += places.size();
    if (!first.empty() || places.empty()) continue;
    first = fmt::format("{} (rank {})", parameter_order[static_cast<std::size_t>(places.front())], rank);
  }
  if (count == 0) return {};
  return fmt::format("the gradient of {}{} is not finite", first,
                     count > 1 ? fmt::format(" and of {} more", count - 1) : "");
}

void add_reports(const Program& program, std::vector<RankReport>&& reports, StepResult& result) {
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    RankReport& report = reports[rank];
    add_moved(program.rows[rank], report.trace, result.moved_by_kind);
    result.trace.push_back(std::move(report.trace));
    result.peak_bytes.push_back(report.peak);
    result.bytes_moved.push_back(report.moved);
    result.peak_stashes.push_back(report.peak_stashes);
    result.kernels.push_back(report.kernels);
  }
  const bool recorded = std::any_of(reports.begin(), reports.end(),
                                    [](const RankReport& report) { return !report.kernel_events.empty(); });
  if (!recorded) return;
  for (RankReport& report : reports) result.kernel_events.push_back(std::move(report.kernel_events));
}

}  // namespace plait
