#include "plait/schedules/common.h"

#include <algorithm>

namespace plait {
namespace {

int warmup_of(int rank, const ScheduleShape& shape) {
  return std::min(*shape.microbatches, 2 * (shape.ranks - rank) - 1);
}

Result<> supports(const ScheduleShape& shape) {
  return check_plain("eager-1f1b", shape);
}

Result<Schedule> build(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const int num_microbatches = *shape.microbatches;
  PLAIT_TRY(Layout layout, pipeline_layout("eager-1f1b", shape, p, [](int stage) { return stage; }));
  std::vector<Row> rows(static_cast<std::size_t>(p));
  for (int rank = 0; rank < p; ++rank) {
    Row& row = rows[static_cast<std::size_t>(rank)];
    const int warmup = warmup_of(rank, shape);
    // 1. Warm-up: two forwards for every rank behind this one, so that a transfer each way can hide behind compute.
    for (int m = 0; m < warmup; ++m) row.push_back(forward(rank, m));
    // 2. Steady: one backward, one forward.
    for (int m = warmup; m < num_microbatches; ++m) {
      row.push_back(backward(rank, m - warmup));
      row.push_back(forward(rank, m));
    }
    // 3. Cool-down: the backwards that are left.
    for (int m = num_microbatches - warmup; m < num_microbatches; ++m) row.push_back(backward(rank, m));
  }
  return Schedule{.layout = std::move(layout), .rows = std::move(rows)};
}

Expectation expect(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const int m = *shape.microbatches;
  std::vector<int> peaks;
  for (int rank = 0; rank < p; ++rank) peaks.push_back(warmup_of(rank, shape));
  Expectation expected{.peak_activation_units = std::move(peaks),
                       .sends = count_sends(shape, p, [](int stage) { return stage; })};
  // Longer forwards than backwards would let the extra forwards delay the first backward.
  if (shape.times.forward <= shape.times.backward + shape.times.weight) {
    expected.makespan = (m + p - 1) * work(shape.times);
    expected.max_idle = (p - 1) * work(shape.times);
  }
  return expected;
}

constexpr ScheduleInfo kInfo{.name = "eager-1f1b",
                             .summary = "1F1B that warms up twice as deep, so that slow transfers hide behind compute",
                             .needs = "any p, m; one chunk",
                             .forms = "bubble (p-1)(F+B+W) if F <= B+W; memory min(m, 2(p-r)-1)",
                             .source = "Zhuang et al. 2023, arXiv:2211.05322, sec. 4",
                             .supports = &supports,
                             .build = &build,
                             .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
