#include "plait/schedules/common.h"

#include <string>
#include <utility>

namespace plait {
namespace {

Result<> refuse_below_one(std::string_view name, std::string_view field, std::optional<int> value) {
  if (value && *value < 1)
    return make_error(ErrorCode::kInvalidArgument, "schedule.size", "{}: {} is {}; at least 1 is needed", name, field, *value);
  return {};
}

}  // namespace

Result<> check_positive(std::string_view name, const ScheduleShape& shape) {
  const std::pair<std::string_view, std::optional<int>> fields[] = {
      {"--ranks", shape.ranks},   {"--microbatches", shape.microbatches}, {"--chunks", shape.chunks},
      {"--slices", shape.slices}, {"--layers", shape.layers},             {"--folds", shape.folds},
      {"--repeats", shape.repeats}, {"--groups", shape.groups},           {"--rounds", shape.rounds}};
  for (const auto& [field, value] : fields) PLAIT_TRY_VOID(refuse_below_one(name, field, value));
  if (!shape.microbatches)
    return make_error(ErrorCode::kInvalidArgument, "schedule.size", "{}: --microbatches is missing", name);
  return {};
}

Result<> check_plain(std::string_view name, const ScheduleShape& shape) {
  PLAIT_TRY_VOID(check_positive(name, shape));
  if (shape.chunks.value_or(1) != 1)
    return make_error(ErrorCode::kInvalidArgument, "schedule.chunks",
                      "{}: has one stage per rank, got --chunks {}; use --chunks 1, or an interleaved schedule", name, *shape.chunks);
  if (shape.slices.value_or(1) != 1)
    return make_error(ErrorCode::kInvalidArgument, "schedule.slices",
                      "{}: does not cut sequences, got --slices {}; use --slices 1, or seq1f1b", name, *shape.slices);
  return check_layers(name, shape, shape.ranks);
}

Result<> check_layers(std::string_view name, const ScheduleShape& shape, int num_stages) {
  if (shape.layers && *shape.layers < num_stages)
    return make_error(ErrorCode::kInvalidArgument, "schedule.too_few_layers",
                      "{}: cuts the model into {} stages, but it has {} layers; use fewer ranks or chunks, or a deeper model",
                      name, num_stages, *shape.layers);
  return {};
}

Result<Layout> pipeline_layout(std::string_view name, const ScheduleShape& shape, int num_stages,
                               const std::function<int(int)>& home) {
  return replicated_layout(name, shape, num_stages, [&](int stage) { return std::vector<RankId>{RankId{home(stage)}}; });
}

Result<Layout> replicated_layout(std::string_view name, const ScheduleShape& shape, int num_stages,
                                 const std::function<std::vector<RankId>(int)>& homes) {
  const int num_layers = shape.layers.value_or(num_stages);
  PLAIT_TRY(auto stages, cut_by_layers(num_layers, num_stages));
  LayoutSpec spec{.name = std::string(name),
                  .mode = Mode::kTrain,
                  .num_ranks = shape.ranks,
                  .num_microbatches = shape.microbatches.value_or(1),
                  .num_slices = shape.slices.value_or(1),
                  .num_layers = num_layers,
                  .tying = shape.tying,
                  .stages = std::move(stages),
                  .homes = {}};
  for (int stage = 0; stage < num_stages; ++stage) spec.homes.push_back(homes(stage));
  return make_layout(spec);
}

}  // namespace plait
