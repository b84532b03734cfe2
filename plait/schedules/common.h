#pragma once

#include "plait/schedules/schedule_info.h"

#include <functional>

/// What most schedule files share: size checks with the fix in the message, the usual placements, op constructors.
namespace plait {

/// Refuses ranks < 1, microbatches missing or < 1 and any set field < 1; `name` heads the messages.
Result<> check_positive(std::string_view name, const ScheduleShape& shape);
/// check_positive, and nothing set that only other systems read: folds, repeats, groups, rounds, squeeze, qkv place. A memory limit may be given to any schedule, for the verifier to hold it to.
Result<> check_sizes(std::string_view name, const ScheduleShape& shape);
/// check_sizes, and chunks and slices unset or 1: for schedules with one stage per rank and whole sequences.
Result<> check_plain(std::string_view name, const ScheduleShape& shape);
/// check_sizes, whole sequences, and two chunks per rank (unset or 2): for V placements.
Result<> check_v_shape(std::string_view name, const ScheduleShape& shape);
/// Refuses --slices other than 1 or unset.
Result<> check_whole_sequences(std::string_view name, const ScheduleShape& shape);
/// Refuses when the model has fewer layers than the schedule has stages.
Result<> check_layers(std::string_view name, const ScheduleShape& shape, int num_stages);

/// Layout of `num_stages` stages cut by layers (default: one layer per stage); `home(stage)` is the rank of each.
Result<Layout> pipeline_layout(std::string_view name, const ScheduleShape& shape, int num_stages,
                               const std::function<int(int)>& home, Mode mode = Mode::kTrain);
/// The same for stages with several homes (replicas).
Result<Layout> replicated_layout(std::string_view name, const ScheduleShape& shape, int num_stages,
                                 const std::function<std::vector<RankId>(int)>& homes, Mode mode = Mode::kTrain);

/// Rank of a stage placed in a V: 0, 1, ..., p-1, p-1, ..., 1, 0, and again down for more than two chunks (waves).
inline int v_rank(int stage, int num_ranks) {
  const int at = stage % (2 * num_ranks);
  return at < num_ranks ? at : 2 * num_ranks - 1 - at;
}
/// The stage that chunk 1 of a rank is in a V of two chunks.
inline int v_second_stage(int rank, int num_ranks) {
  return 2 * num_ranks - 1 - rank;
}

/// Messages of one training step, each way one per micro-batch and slice, over the edges whose ends are on two ranks.
std::int64_t count_sends(const ScheduleShape& shape, int num_stages, const std::function<int(int)>& home);

/// Forward, gradient of the input and gradient of the weights of a 1/p share: the work of one micro-batch on one rank.
inline Ticks work(const OpTimes& times) {
  return times.forward + times.backward + times.weight;
}

/// One step of the interleaved order: units run in groups; inside a group all its units run through chunk 0, then all
/// through chunk 1, and so on. The last group may be smaller.
///
///     units 0..5, group 4, 2 chunks:  0 1 2 3 0' 1' 2' 3' 4 5 4' 5'
struct InterleavedUnit {
  int unit = 0;
  int chunk = 0;
  friend bool operator==(const InterleavedUnit&, const InterleavedUnit&) = default;
};
InterleavedUnit interleaved_unit(int step, int num_units, int group, int num_chunks);

inline Op forward(int stage, int microbatch, int slice = 0) {
  return Op{.kind = OpKind::kForward,
            .stage = StageId{stage},
            .microbatch = MicrobatchId{microbatch},
            .slice = SliceId{slice}};
}
inline Op backward_input(int stage, int microbatch, int slice = 0) {
  return Op{.kind = OpKind::kBackwardInput,
            .stage = StageId{stage},
            .microbatch = MicrobatchId{microbatch},
            .slice = SliceId{slice}};
}
inline Op backward_weight(int stage, int microbatch, int slice = 0) {
  return Op{.kind = OpKind::kBackwardWeight,
            .stage = StageId{stage},
            .microbatch = MicrobatchId{microbatch},
            .slice = SliceId{slice}};
}
inline Op backward(int stage, int microbatch, int slice = 0) {
  return Op{.kind = OpKind::kBackward,
            .stage = StageId{stage},
            .microbatch = MicrobatchId{microbatch},
            .slice = SliceId{slice}};
}

}  // namespace plait
