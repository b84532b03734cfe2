#pragma once

#include "plait/ir/program.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace plait::testing {

enum class Split : std::uint8_t { kBackward, kInputThenWeight };
enum class Again : std::uint8_t { kNever, kBeforeBackward };

/// All forwards micro-batch by micro-batch, then all backwards in the reverse order; each rank's row is a part of that one
/// order, so any place of any op is free of deadlock.
inline Schedule chain_schedule(const Layout& layout, const std::function<RankId(int stage, int microbatch)>& place,
                               Split split, Again again) {
  Schedule schedule{.layout = layout, .rows = std::vector<Row>(static_cast<std::size_t>(layout.num_ranks))};
  const auto put = [&](OpKind kind, int stage, int microbatch) {
    schedule.rows[place(stage, microbatch).index()].push_back(
        Op{.kind = kind, .stage = StageId{stage}, .microbatch = MicrobatchId{microbatch}, .slice = SliceId{0}});
  };
  for (int m = 0; m < layout.num_microbatches; ++m)
    for (int s = 0; s < layout.num_stages(); ++s) put(OpKind::kForward, s, m);
  for (int m = layout.num_microbatches; m-- > 0;) {
    for (int s = layout.num_stages(); s-- > 0;) {
      if (again == Again::kBeforeBackward) put(OpKind::kRecompute, s, m);
      put(split == Split::kBackward ? OpKind::kBackward : OpKind::kBackwardInput, s, m);
    }
    for (int s = layout.num_stages(); split == Split::kInputThenWeight && s-- > 0;) put(OpKind::kBackwardWeight, s, m);
  }
  return schedule;
}

}  // namespace plait::testing
