#pragma once

#include "plait/schedules/common.h"

/// What the schedules that cut sequences share: units (micro-batch, slice), numbered m k + q.
namespace plait {

inline constexpr int kDefaultSlices = 2;

/// The shape with its number of slices filled in.
inline ScheduleShape with_slices(ScheduleShape shape) {
  shape.slices = shape.slices.value_or(kDefaultSlices);
  return shape;
}

/// Forwards take slices in ascending order: each needs the keys and values of those before it.
inline Op forward_unit(int stage, int unit, int num_slices) {
  return forward(stage, unit / num_slices, unit % num_slices);
}

/// Backwards take micro-batches in order and inside each the slices in descending order: the last slice's keys and values
/// are complete first. This is what a queue of stacks, one per micro-batch, gives.
inline Op reversed_unit(OpKind kind, int stage, int unit, int num_slices) {
  return Op{.kind = kind,
            .stage = StageId{stage},
            .microbatch = MicrobatchId{unit / num_slices},
            .slice = SliceId{num_slices - 1 - unit % num_slices}};
}

}  // namespace plait
