#include "plait/view/timeline.h"

#include "plait/base/check.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>

namespace plait {
namespace {

constexpr int kMostRanks = 1 << 16;

void sort_bars(Timeline& timeline) {
  std::stable_sort(timeline.bars.begin(), timeline.bars.end(),
                   [](const Bar& a, const Bar& b) { return std::pair(a.rank, a.start) < std::pair(b.rank, b.start); });
}

/// Numbers the stages of each rank.
void set_chunks(Timeline& timeline) {
  std::vector<std::set<int>> stages(static_cast<std::size_t>(timeline.num_ranks));
  for (const Bar& bar : timeline.bars) stages[static_cast<std::size_t>(bar.rank)].insert(bar.stage);
  for (Bar& bar : timeline.bars) {
    const std::set<int>& here = stages[static_cast<std::size_t>(bar.rank)];
    bar.chunk = static_cast<int>(std::distance(here.begin(), here.find(bar.stage)));
    timeline.num_chunks = std::max(timeline.num_chunks, bar.chunk + 1);
    timeline.num_slices = std::max(timeline.num_slices, bar.slice + 1);
  }
}

/// Times count from the first start.
void shift(Timeline& timeline, std::int64_t first) {
  for (Bar& bar : timeline.bars) {
    bar.start -= first;
    bar.end -= first;
  }
  for (Span& span : timeline.spans) {
    span.start -= first;
    span.end -= first;
  }
  for (Arrow& arrow : timeline.arrows) {
    arrow.sent -= first;
    arrow.arrived -= first;
  }
  for (MemoryCurve& curve : timeline.memory)
    for (auto& [time, held] : curve) time = std::max<std::int64_t>(0, time - first);
}

void set_figures(Timeline& timeline) {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  std::int64_t last = 0;
  double busy = 0;
  for (const Bar& bar : timeline.bars) {
    first = std::min(first, bar.start);
    last = std::max(last, bar.end);
    busy += static_cast<double>(bar.end - bar.start) / timeline.num_ranks;
  }
  if (timeline.bars.empty()) return;
  shift(timeline, first);
  timeline.makespan = last - first;
  if (timeline.makespan > 0)
    timeline.bubble_ratio = (static_cast<double>(timeline.makespan) - busy) / static_cast<double>(timeline.makespan);
}

/// Exposed transfers: gaps in front of a bar that end when a message arrives.
void set_waits(Timeline& timeline) {
  std::map<std::pair<int, std::int64_t>, std::int64_t> sent_at;  // (rank, arrival)
  for (const Arrow& arrow : timeline.arrows) {
    const auto [found, added] = sent_at.try_emplace({arrow.to, arrow.arrived}, arrow.sent);
    if (!added) found->second = std::min(found->second, arrow.sent);
  }
  timeline.waits.resize(static_cast<std::size_t>(timeline.num_ranks));
  const Bar* before = nullptr;
  for (const Bar& bar : timeline.bars) {
    const std::int64_t free_since = before != nullptr && before->rank == bar.rank ? before->end : 0;
    before = &bar;
    const auto found = sent_at.find({bar.rank, bar.start});
    if (found == sent_at.end()) continue;
    const std::int64_t start = std::max(free_since, found->second);
    if (start < bar.start) timeline.waits[static_cast<std::size_t>(bar.rank)].emplace_back(start, bar.start);
  }
}

Error bad_trace(std::string_view why) {
  return make_error(ErrorCode::kIo, "view.trace", "not a trace of a run: {}", why);
}

std::optional<OpKind> op_kind(const std::string& text) {
  for (const OpKind kind :
       {OpKind::kForward, OpKind::kBackwardInput, OpKind::kBackwardWeight, OpKind::kBackward, OpKind::kRecompute})
    if (to_string(kind) == text) return kind;
  return std::nullopt;
}

}  // namespace

Timeline make_timeline(const Program& program, const SimResult& result, std::string title, std::string unit) {
  PLAIT_CHECK(result.times.size() == program.rows.size(), "the result has no timeline");
  Timeline timeline{.title = std::move(title),
                    .ticks_per_unit = result.ticks_per_unit,
                    .unit = std::move(unit),
                    .num_ranks = static_cast<int>(program.rows.size())};
  bool any_bytes = false;
  for (std::size_t rank = 0; rank < program.rows.size(); ++rank) {
    for (std::size_t at = 0; at < program.rows[rank].size(); ++at) {
      any_bytes |= result.held[rank][at].bytes != 0;
      const Op* op = std::get_if<Op>(&program.rows[rank][at]);
      if (op == nullptr) continue;
      timeline.bars.push_back(Bar{.rank = static_cast<int>(rank),
                                  .start = result.times[rank][at].start,
                                  .end = result.times[rank][at].end,
                                  .kind = op->kind,
                                  .stage = op->stage.value(),
                                  .microbatch = op->microbatch.value(),
                                  .slice = op->slice.value()});
    }
  }
  for (const TransferTime& message : result.messages)
    timeline.arrows.push_back(Arrow{.from = message.from.value(),
                                    .to = message.to.value(),
                                    .sent = message.sent,
                                    .arrived = message.arrived,
                                    .bytes = message.bytes,
                                    .value = std::string(to_string(message.value.kind()))});
  timeline.memory_unit = any_bytes ? "bytes" : "stashes";
  for (std::size_t rank = 0; rank < program.rows.size(); ++rank) {
    MemoryCurve curve;
    for (std::size_t at = 0; at < program.rows[rank].size(); ++at) {
      const std::int64_t held = any_bytes ? result.held[rank][at].bytes : result.held[rank][at].stashes;
      if (!curve.empty() && curve.back().second == held) continue;
      // A stash lives from the start of its op, so the step up stands there.
      const bool grows = curve.empty() || held > curve.back().second;
      curve.emplace_back(grows ? result.times[rank][at].start : result.times[rank][at].end, held);
    }
    timeline.memory.push_back(std::move(curve));
  }
  set_chunks(timeline);
  sort_bars(timeline);
  set_figures(timeline);
  set_waits(timeline);
  return timeline;
}

Result<Timeline> read_trace(std::string_view text, std::string title) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded()) return bad_trace("it is no JSON");
  if (!json.is_object() || json.value("format", "") != "plait-trace")
    return bad_trace("its \"format\" is not \"plait-trace\"");
  Timeline timeline{.title = std::move(title), .origin = Origin::kMeasured, .ticks_per_unit = 1'000'000, .unit = "ms"};
  try {
    timeline.num_ranks = json.at("ranks").get<int>();
    if (timeline.num_ranks < 1 || timeline.num_ranks > kMostRanks) return bad_trace("its number of ranks is absurd");
    if (timeline.title.empty()) timeline.title = json.value("schedule", "") + " (measured)";
    const auto rank_of = [&](const nlohmann::json& at) {
      return at.get<int>() >= 0 && at.get<int>() < timeline.num_ranks
                 ? at.get<int>()
                 : throw std::out_of_range("a rank is out of range");
    };
    for (const auto& op : json.at("ops")) {
      const auto kind = op_kind(op.at("kind").get<std::string>());
      if (!kind) continue;  // optimizer steps and the like are no bars
      timeline.bars.push_back(Bar{.rank = rank_of(op.at("rank")),
                                  .start = op.at("start").get<std::int64_t>(),
                                  .end = op.at("end").get<std::int64_t>(),
                                  .kind = *kind,
                                  .stage = op.at("stage").get<int>(),
                                  .microbatch = op.at("microbatch").get<int>(),
                                  .slice = op.value("slice", 0)});
    }
    const auto add_spans = [&](const char* list, Span::Kind kind, const char* name) {
      if (!json.contains(list)) return;
      for (const auto& span : json.at(list))
        timeline.spans.push_back(Span{.rank = rank_of(span.at("rank")),
                                      .start = span.at("start").get<std::int64_t>(),
                                      .end = span.at("end").get<std::int64_t>(),
                                      .kind = kind,
                                      .name = span.at(name).get<std::string>()});
    };
    add_spans("parts", Span::Kind::kPart, "part");
    add_spans("kernels", Span::Kind::kKernel, "kernel");
    for (const auto& moved : json.at("transfers")) {
      if (moved.at("kind").get<std::string>() != "send") continue;
      timeline.arrows.push_back(Arrow{.from = rank_of(moved.at("rank")),
                                      .to = rank_of(moved.at("peer")),
                                      .sent = moved.at("start").get<std::int64_t>(),
                                      .arrived = moved.at("end").get<std::int64_t>(),
                                      .bytes = moved.value("bytes", std::int64_t{0}),
                                      .value = moved.value("value", "")});
    }
  } catch (const std::exception& e) {
    return bad_trace(e.what());
  }
  set_chunks(timeline);
  sort_bars(timeline);
  std::stable_sort(timeline.spans.begin(), timeline.spans.end(), [](const Span& a, const Span& b) {
    return std::tuple(a.rank, a.start, a.kind) < std::tuple(b.rank, b.start, b.kind);
  });
  set_figures(timeline);
  set_waits(timeline);
  return timeline;
}

std::string bar_label(const Timeline& timeline, const Bar& bar) {
  std::string kind(to_string(bar.kind));
  std::string prefix;
  if (timeline.num_chunks > 2) prefix = std::to_string(bar.stage);
  if (timeline.num_chunks == 2 && bar.chunk == 1)
    for (char& c : kind) c = static_cast<char>(c - 'A' + 'a');
  const std::string slice = timeline.num_slices > 1 ? fmt::format(".{}", bar.slice) : "";
  return fmt::format("{}{}{}{}", prefix, kind, bar.microbatch, slice);
}

std::string_view bar_color(OpKind kind) {
  switch (kind) {
    case OpKind::kForward: return "#56b4e9";
    case OpKind::kBackwardInput: return "#e69f00";
    case OpKind::kBackwardWeight: return "#009e73";
    case OpKind::kBackward: return "#d55e00";
    case OpKind::kRecompute: return "#cc79a7";
  }
  return "#999999";
}

}  // namespace plait
