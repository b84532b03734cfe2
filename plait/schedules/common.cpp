#include "plait/schedules/common.h"

#include <algorithm>
#include <string>
#include <utility>

namespace plait {
namespace {

Result<> refuse_below_one(std::string_view name, std::string_view field, std::optional<int> value) {
  if (value && *value < 1)
    return make_error(ErrorCode::kInvalidArgument, "schedule.size", "{}: {} is {}; at least 1 is needed", name, field,
                      *value);
  return {};
}

}  // namespace

Result<> check_positive(std::string_view name, const ScheduleShape& shape) {
  const std::pair<std::string_view, std::optional<int>> fields[] = {
      {"--ranks", shape.ranks},     {"--microbatches", shape.microbatches},
      {"--chunks", shape.chunks},   {"--slices", shape.slices},
      {"--layers", shape.layers},   {"--folds", shape.folds},
      {"--repeats", shape.repeats}, {"--groups", shape.groups},
      {"--rounds", shape.rounds}};
  for (const auto& [field, value] : fields) PLAIT_TRY_VOID(refuse_below_one(name, field, value));
  if (!shape.microbatches)
    return make_error(ErrorCode::kInvalidArgument, "schedule.size", "{}: --microbatches is missing", name);
  return {};
}

Result<> check_sizes(std::string_view name, const ScheduleShape& shape) {
  PLAIT_TRY_VOID(check_positive(name, shape));
  const std::pair<std::string_view, bool> foreign[] = {{"--folds", shape.folds.has_value()},
                                                       {"--repeats", shape.repeats.has_value()},
                                                       {"--groups", shape.groups.has_value()},
                                                       {"--rounds", shape.rounds.has_value()},
                                                       {"--prefetch", shape.prefetch.has_value()},
                                                       {"--reshard", shape.reshard != Reshard::kAfterForward},
                                                       {"--pattern-only", shape.squeeze != Squeeze::kFull},
                                                       {"--eviction", shape.eviction != Eviction::kLate},
                                                       {"--qkv", shape.qkv.has_value()},
                                                       {"--residual", shape.residual != ResidualPath::kThrough},
                                                       {"--weights", shape.weights != WeightTrips::kPerMicrobatch}};
  for (const auto& [flag, is_set] : foreign) {
    if (is_set)
      return make_error(ErrorCode::kInvalidArgument, "schedule.flag", "{}: does not take {}; leave it out", name, flag);
  }
  return {};
}

Result<> check_whole_sequences(std::string_view name, const ScheduleShape& shape) {
  if (shape.slice_cut != SliceCut::kEqualTokens)
    return make_error(ErrorCode::kInvalidArgument, "schedule.slices",
                      "{}: does not cut sequences; leave the slice cut out, or use seq1f1b", name);
  if (shape.slices.value_or(1) != 1)
    return make_error(ErrorCode::kInvalidArgument, "schedule.slices",
                      "{}: does not cut sequences, got --slices {}; use --slices 1, or seq1f1b", name, *shape.slices);
  return {};
}

Result<> check_v_shape(std::string_view name, const ScheduleShape& shape) {
  PLAIT_TRY_VOID(check_sizes(name, shape));
  if (shape.chunks.value_or(2) != 2)
    return make_error(ErrorCode::kInvalidArgument, "schedule.chunks",
                      "{}: places exactly two stages per rank in a V, got --chunks {}; use --chunks 2", name,
                      *shape.chunks);
  PLAIT_TRY_VOID(check_whole_sequences(name, shape));
  return check_layers(name, shape, 2 * shape.ranks);
}

Result<> check_plain(std::string_view name, const ScheduleShape& shape) {
  PLAIT_TRY_VOID(check_sizes(name, shape));
  if (shape.chunks.value_or(1) != 1)
    return make_error(ErrorCode::kInvalidArgument, "schedule.chunks",
                      "{}: has one stage per rank, got --chunks {}; use --chunks 1, or an interleaved schedule", name,
                      *shape.chunks);
  PLAIT_TRY_VOID(check_whole_sequences(name, shape));
  return check_layers(name, shape, shape.ranks);
}

Result<> check_layers(std::string_view name, const ScheduleShape& shape, int num_stages) {
  if (shape.layers && *shape.layers < num_stages)
    return make_error(
        ErrorCode::kInvalidArgument, "schedule.too_few_layers",
        "{}: cuts the model into {} stages, but it has {} layers; use fewer ranks or chunks, or a deeper model", name,
        num_stages, *shape.layers);
  return {};
}

Result<Layout> pipeline_layout(std::string_view name, const ScheduleShape& shape, int num_stages,
                               const std::function<int(int)>& home, Mode mode) {
  return replicated_layout(
      name, shape, num_stages, [&](int stage) { return std::vector<RankId>{RankId{home(stage)}}; }, mode);
}

Result<Layout> replicated_layout(std::string_view name, const ScheduleShape& shape, int num_stages,
                                 const std::function<std::vector<RankId>(int)>& homes, Mode mode) {
  const int num_layers = shape.layers.value_or(num_stages);
  PLAIT_TRY(auto stages, cut_by_layers(num_layers, num_stages));
  LayoutSpec spec{.name = std::string(name),
                  .mode = mode,
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

std::int64_t count_sends(const ScheduleShape& shape, int num_stages, const std::function<int(int)>& home) {
  std::int64_t crossings = 0;
  for (int stage = 1; stage < num_stages; ++stage) crossings += home(stage - 1) != home(stage) ? 1 : 0;
  return 2 * crossings * *shape.microbatches * shape.slices.value_or(1);
}

InterleavedUnit interleaved_unit(int step, int num_units, int group, int num_chunks) {
  const int begin = step / (group * num_chunks) * group;
  const int size = std::min(group, num_units - begin);
  const int within = step - begin * num_chunks;
  return InterleavedUnit{.unit = begin + within % size, .chunk = within / size};
}

}  // namespace plait
