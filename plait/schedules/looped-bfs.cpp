#include "plait/schedules/common.h"

#include <algorithm>

namespace plait {
namespace {

constexpr int kDefaultChunks = 2;

Result<> supports(const ScheduleShape& shape) {
  PLAIT_TRY_VOID(check_sizes("looped-bfs", shape));
  PLAIT_TRY_VOID(check_whole_sequences("looped-bfs", shape));
  return check_layers("looped-bfs", shape, shape.ranks * shape.chunks.value_or(kDefaultChunks));
}

Result<Schedule> build(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const int m = *shape.microbatches;
  const int chunks = shape.chunks.value_or(kDefaultChunks);
  PLAIT_TRY(Layout layout, pipeline_layout("looped-bfs", shape, p * chunks, [p](int stage) { return stage % p; }));
  std::vector<Row> rows(static_cast<std::size_t>(p));
  for (int rank = 0; rank < p; ++rank) {
    Row& row = rows[static_cast<std::size_t>(rank)];
    // 1. All forwards, chunk by chunk.
    for (int chunk = 0; chunk < chunks; ++chunk)
      for (int microbatch = 0; microbatch < m; ++microbatch) row.push_back(forward(chunk * p + rank, microbatch));
    // 2. All backwards, last chunk first, last micro-batch first as PyTorch runs them.
    for (int chunk = chunks - 1; chunk >= 0; --chunk)
      for (int microbatch = m - 1; microbatch >= 0; --microbatch) row.push_back(backward(chunk * p + rank, microbatch));
  }
  return Schedule{.layout = std::move(layout), .rows = std::move(rows)};
}

Expectation expect(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const int m = *shape.microbatches;
  const int chunks = shape.chunks.value_or(kDefaultChunks);
  // With fewer micro-batches than ranks a chunk waits for the first micro-batch to come around.
  const Ticks slots = (chunks - 1) * std::max(m, p) + p - 1 + m;
  const Ticks makespan = slots * work(shape.times) / chunks;
  return Expectation{.makespan = makespan,
                     .max_idle = makespan - m * work(shape.times),
                     .peak_activation_units = std::vector<int>(static_cast<std::size_t>(p), m * chunks),
                     .sends = count_sends(shape, p * chunks, [p](int stage) { return stage % p; })};
}

constexpr ScheduleInfo kInfo{
    .name = "looped-bfs",
    .summary = "GPipe over v chunks per rank, breadth first: all of a chunk before the next",
    .needs = "any p, m; chunks 2 unless given",
    .forms = "bubble (p-1)(F+B+W)/v for m >= p; memory m",
    .source = "Lamy-Poirier 2022, arXiv:2211.05953; torch.distributed.pipelining 2.15, ScheduleLoopedBFS",
    .supports = &supports,
    .build = &build,
    .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
