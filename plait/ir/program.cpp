#include "plait/ir/program.h"

#include <fmt/format.h>

#include <algorithm>

namespace plait {
namespace {

bool owns_weights(int num_layers, PartRange parts) {
  for (int part = parts.begin; part < parts.end; ++part)
    if (part_at(num_layers, part).kind != PartKind::kAttn) return true;
  return false;
}

Result<> check_sizes(const LayoutSpec& spec) {
  const std::pair<const char*, int> sizes[] = {{"ranks", spec.num_ranks},
                                               {"microbatches", spec.num_microbatches},
                                               {"slices", spec.num_slices},
                                               {"layers", spec.num_layers},
                                               {"stages", static_cast<int>(spec.stages.size())}};
  for (const auto& [name, value] : sizes) {
    if (value < 1)
      return make_error(ErrorCode::kInvalidArgument, "layout.size", "{} is {}; at least 1 is needed", name, value);
  }
  int next = 0;
  for (std::size_t s = 0; s < spec.stages.size(); ++s) {
    if (spec.stages[s].begin != next || spec.stages[s].end <= next)
      return make_error(ErrorCode::kInvalidArgument, "layout.cut",
                        "stage {} holds parts {}..{}; expected a non-empty run that starts at part {}", s,
                        spec.stages[s].begin, spec.stages[s].end, next);
    next = spec.stages[s].end;
  }
  if (next != num_parts(spec.num_layers))
    return make_error(ErrorCode::kInvalidArgument, "layout.cut",
                      "the stages end at part {}; the chain of {} layers has {}", next, spec.num_layers,
                      num_parts(spec.num_layers));
  if (spec.homes.size() != spec.stages.size())
    return make_error(ErrorCode::kInvalidArgument, "layout.homes", "{} stages but {} lists of homes",
                      spec.stages.size(), spec.homes.size());
  for (std::size_t s = 0; s < spec.homes.size(); ++s) {
    if (spec.homes[s].empty() && owns_weights(spec.num_layers, spec.stages[s]))
      return make_error(ErrorCode::kInvalidArgument, "layout.homes", "stage {} owns weights but has no home rank", s);
    for (const RankId home : spec.homes[s]) {
      if (home.value() < 0 || home.value() >= spec.num_ranks)
        return make_error(ErrorCode::kInvalidArgument, "layout.homes", "stage {} lives on rank {}; there are {} ranks",
                          s, home.value(), spec.num_ranks);
    }
  }
  return {};
}

std::vector<RankId> sorted_unique(std::vector<RankId> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace

std::vector<EdgeId> Layout::edges_into(StageId stage) const {
  std::vector<EdgeId> found;
  for (std::size_t e = 0; e < edges.size(); ++e)
    if (edges[e].consumer == stage) found.push_back(EdgeId{static_cast<std::int32_t>(e)});
  return found;
}

std::vector<EdgeId> Layout::edges_out_of(StageId stage) const {
  std::vector<EdgeId> found;
  for (std::size_t e = 0; e < edges.size(); ++e)
    if (edges[e].producer == stage) found.push_back(EdgeId{static_cast<std::int32_t>(e)});
  return found;
}

Result<Layout> make_layout(const LayoutSpec& spec) {
  PLAIT_TRY_VOID(check_sizes(spec));
  Layout layout{.name = spec.name,
                .mode = spec.mode,
                .num_ranks = spec.num_ranks,
                .num_microbatches = spec.num_microbatches,
                .num_slices = spec.num_slices,
                .num_layers = spec.num_layers,
                .tying = spec.tying};
  const int num_stages = static_cast<int>(spec.stages.size());
  for (int s = 0; s < num_stages; ++s) {
    const auto at = static_cast<std::size_t>(s);
    layout.stages.push_back(Stage{.parts = spec.stages[at], .homes = sorted_unique(spec.homes[at])});
    if (s > 0) layout.edges.push_back(Edge{.producer = StageId{s - 1}, .consumer = StageId{s}});
  }

  // The token table is a group of its own only where two stages use it; inside one stage it is summed at Step anyway.
  const bool shared_table = spec.tying == HeadTying::kTied && num_stages > 1;
  const auto add_group = [&](ParamGroup group) {
    const GroupId id{static_cast<std::int32_t>(layout.groups.size())};
    for (const StageId user : group.users) layout.stages[user.index()].groups.push_back(id);
    layout.groups.push_back(std::move(group));
  };
  if (shared_table) {
    std::vector<RankId> homes = layout.stages.front().homes;
    homes.insert(homes.end(), layout.stages.back().homes.begin(), layout.stages.back().homes.end());
    add_group(ParamGroup{.name = "embed",
                         .parts = {0},
                         .users = {StageId{0}, StageId{num_stages - 1}},
                         .homes = sorted_unique(std::move(homes))});
  }
  for (int s = 0; s < num_stages; ++s) {
    const Stage& stage = layout.stages[static_cast<std::size_t>(s)];
    std::vector<int> parts;
    for (int part = stage.parts.begin; part < stage.parts.end; ++part) {
      if (owns_weights(spec.num_layers, PartRange{.begin = part, .end = part + 1}) && !(shared_table && part == 0))
        parts.push_back(part);
    }
    if (!parts.empty())
      add_group(ParamGroup{
          .name = fmt::format("stage.{}", s), .parts = std::move(parts), .users = {StageId{s}}, .homes = stage.homes});
  }
  return layout;
}

Result<std::vector<PartRange>> cut_by_layers(int num_layers, int num_stages) {
  if (num_stages < 1 || num_layers < 1 || num_stages > num_layers)
    return make_error(
        ErrorCode::kInvalidArgument, "layout.too_few_layers",
        "{} stages need at least {} layers, but the model has {}; use fewer ranks or chunks, or a deeper model",
        num_stages, num_stages, num_layers);
  std::vector<PartRange> stages;
  int begin = 0;
  for (int s = 0; s < num_stages; ++s) {
    const int count = num_layers / num_stages + (s < num_layers % num_stages ? 1 : 0);
    stages.push_back(layer_range(num_layers, begin, begin + count));
    begin += count;
  }
  return stages;
}

RankSetId intern_rank_set(Layout& layout, std::vector<RankId> ranks) {
  ranks = sorted_unique(std::move(ranks));
  const auto found = std::find(layout.rank_sets.begin(), layout.rank_sets.end(), ranks);
  const auto index = found - layout.rank_sets.begin();
  if (found == layout.rank_sets.end()) layout.rank_sets.push_back(std::move(ranks));
  return RankSetId{static_cast<std::int32_t>(index)};
}

Result<Schedule> rebind(const Schedule& schedule, int num_layers, HeadTying tying) {
  const Layout& old = schedule.layout;
  PLAIT_TRY(auto stages, cut_by_layers(num_layers, old.num_stages()));
  LayoutSpec spec{.name = old.name,
                  .mode = old.mode,
                  .num_ranks = old.num_ranks,
                  .num_microbatches = old.num_microbatches,
                  .num_slices = old.num_slices,
                  .num_layers = num_layers,
                  .tying = tying,
                  .stages = std::move(stages),
                  .homes = {}};
  for (const Stage& stage : old.stages) spec.homes.push_back(stage.homes);
  PLAIT_TRY(Layout layout, make_layout(spec));
  layout.newline = old.newline;
  layout.recompute = old.recompute;
  layout.exchanges = old.exchanges;
  layout.steps = old.steps;
  layout.folds = old.folds;
  return Schedule{.layout = std::move(layout), .rows = schedule.rows};
}

}  // namespace plait
