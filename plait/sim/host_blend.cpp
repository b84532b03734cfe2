#include "plait/sim/engine_memory/engine_memory.h"
#include "plait/sim/host.h"
#include "plait/sim/simulate.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace plait::host {
namespace {

/// Spans in which a rank computes, ascending and apart.
using Spans = std::vector<std::pair<std::int64_t, std::int64_t>>;

Spans busy_spans(const Program& program, const SimResult& result, std::size_t rank) {
  Spans spans;
  for (std::size_t at = 0; at < program.rows[rank].size(); ++at) {
    const Instr& instr = program.rows[rank][at];
    if (!std::holds_alternative<Op>(instr) && !std::holds_alternative<Step>(instr)) continue;
    const InstrTime& time = result.times[rank][at];
    if (time.end <= time.start) continue;
    if (!spans.empty() && spans.back().second >= time.start) {
      spans.back().second = std::max(spans.back().second, time.end);
    } else {
      spans.emplace_back(time.start, time.end);
    }
  }
  return spans;
}

/// How much of [begin, end) lies in the spans of any other rank.
std::int64_t shared_part(const std::vector<Spans>& busy, std::size_t rank, std::int64_t begin, std::int64_t end) {
  std::int64_t most = 0;
  for (std::size_t other = 0; other < busy.size(); ++other) {
    if (other == rank) continue;
    std::int64_t sum = 0;
    const Spans& spans = busy[other];
    auto span = std::upper_bound(spans.begin(), spans.end(), std::pair(begin, begin));
    if (span != spans.begin()) --span;
    for (; span != spans.end() && span->first < end; ++span)
      sum += std::max<std::int64_t>(0, std::min(end, span->second) - std::max(begin, span->first));
    most = std::max(most, sum);
  }
  return most;
}

}  // namespace

Result<CostModel> blended_costs(const Program& program, const ModelShape& shape, const Calibration& calibration) {
  PLAIT_TRY(CostModel costs, host_costs(program, shape, calibration, Company::kAlone));
  if (program.layout.num_ranks == 1) {
    PLAIT_TRY(costs.known_memory, engine_memory(program, shape));
    return costs;
  }
  const CostModel alone = costs;
  PLAIT_TRY(const CostModel shared, host_costs(program, shape, calibration, Company::kShared));
  costs = shared;
  constexpr int kRounds = 4;
  for (int round = 0; round < kRounds; ++round) {
    PLAIT_TRY(const SimResult result, simulate(program, costs, {.detail = Detail::kTimeline}));
    std::vector<Spans> busy;
    for (std::size_t rank = 0; rank < program.rows.size(); ++rank) busy.push_back(busy_spans(program, result, rank));
    std::vector<double> in_company(costs.ops.size());
    std::vector<double> in_all(costs.ops.size());
    std::vector<double> step_in_company(costs.groups.size());
    std::vector<double> step_in_all(costs.groups.size());
    for (std::size_t rank = 0; rank < program.rows.size(); ++rank) {
      for (std::size_t at = 0; at < program.rows[rank].size(); ++at) {
        const InstrTime& time = result.times[rank][at];
        const auto length = static_cast<double>(time.end - time.start);
        const auto with_others = static_cast<double>(shared_part(busy, rank, time.start, time.end));
        if (const Op* op = std::get_if<Op>(&program.rows[rank][at])) {
          const std::size_t index = costs.at(op->kind, op->stage, op->slice);
          in_company[index] += with_others;
          in_all[index] += length;
        } else if (const Step* step = std::get_if<Step>(&program.rows[rank][at])) {
          step_in_company[step->group.index()] += with_others;
          step_in_all[step->group.index()] += length;
        }
      }
    }
    const auto between = [](std::int64_t lone, std::int64_t together, double part, double whole) {
      const double share = whole > 0 ? part / whole : 0;
      return std::llround((1 - share) * static_cast<double>(lone) + share * static_cast<double>(together));
    };
    for (std::size_t i = 0; i < costs.ops.size(); ++i)
      costs.ops[i].ticks = between(alone.ops[i].ticks, shared.ops[i].ticks, in_company[i], in_all[i]);
    for (std::size_t g = 0; g < costs.groups.size(); ++g)
      costs.groups[g].step_ticks =
          between(alone.groups[g].step_ticks, shared.groups[g].step_ticks, step_in_company[g], step_in_all[g]);
  }
  PLAIT_TRY(costs.known_memory, engine_memory(program, shape));
  return costs;
}

}  // namespace plait::host
