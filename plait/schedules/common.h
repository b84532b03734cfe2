#pragma once

#include <functional>

#include "plait/schedules/schedule_info.h"

/// What most schedule files share: size checks with the fix in the message, the usual placements, op constructors.
namespace plait {

/// Refuses ranks < 1, microbatches missing or < 1 and any set field < 1; `name` heads the messages.
Result<> check_positive(std::string_view name, const ScheduleShape& shape);
/// check_positive, and chunks and slices unset or 1: for schedules with one stage per rank and whole sequences.
Result<> check_plain(std::string_view name, const ScheduleShape& shape);
/// Refuses when the model has fewer layers than the schedule has stages.
Result<> check_layers(std::string_view name, const ScheduleShape& shape, int num_stages);

/// Layout of `num_stages` stages cut by layers (default: one layer per stage); `home(stage)` is the rank of each.
Result<Layout> pipeline_layout(std::string_view name, const ScheduleShape& shape, int num_stages,
                               const std::function<int(int)>& home);
/// The same for stages with several homes (replicas).
Result<Layout> replicated_layout(std::string_view name, const ScheduleShape& shape, int num_stages,
                                 const std::function<std::vector<RankId>(int)>& homes);

inline Op forward(int stage, int microbatch, int slice = 0) { return Op{.kind = OpKind::kForward, .stage = StageId{stage}, .microbatch = MicrobatchId{microbatch}, .slice = SliceId{slice}}; }
inline Op backward_input(int stage, int microbatch, int slice = 0) { return Op{.kind = OpKind::kBackwardInput, .stage = StageId{stage}, .microbatch = MicrobatchId{microbatch}, .slice = SliceId{slice}}; }
inline Op backward_weight(int stage, int microbatch, int slice = 0) { return Op{.kind = OpKind::kBackwardWeight, .stage = StageId{stage}, .microbatch = MicrobatchId{microbatch}, .slice = SliceId{slice}}; }
inline Op backward(int stage, int microbatch, int slice = 0) { return Op{.kind = OpKind::kBackward, .stage = StageId{stage}, .microbatch = MicrobatchId{microbatch}, .slice = SliceId{slice}}; }

}  // namespace plait
