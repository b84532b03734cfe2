#include "plait/schedules/weight_rows.h"

#include "plait/schedules/common.h"

namespace plait {

Result<> check_rounds(std::string_view name, const ScheduleShape& shape) {
  ScheduleShape plain = shape;
  plain.rounds.reset();
  plain.groups.reset();
  plain.prefetch.reset();
  if (shape.rounds && *shape.rounds < 1)
    return make_error(ErrorCode::kInvalidArgument, "schedule.size", "{}: --rounds is {}; at least 1 is needed", name,
                      *shape.rounds);
  PLAIT_TRY_VOID(check_plain(name, plain));
  const int p = shape.ranks;
  const int m = *shape.microbatches;
  if (shape.layers && *shape.layers % p != 0)
    return make_error(ErrorCode::kInvalidArgument, "schedule.layers",
                      "{0}: cuts the layers into equal shards, got --layers {2} and --ranks {1}; use a multiple of {1} "
                      "layers",
                      name, p, *shape.layers);
  if (m % p != 0)
    return make_error(ErrorCode::kInvalidArgument, "schedule.microbatches",
                      "{0}: every rank takes one micro-batch a round, M = R P, got --microbatches {2} and --ranks {1}; "
                      "use a multiple of {1}",
                      name, p, m);
  if (shape.rounds && *shape.rounds != m / p)
    return make_error(ErrorCode::kInvalidArgument, "schedule.rounds",
                      "{}: {} micro-batches on {} ranks are {} rounds, got --rounds {}; leave one out", name, m, p,
                      m / p, *shape.rounds);
  return {};
}

Result<Layout> sharded_by_owner(std::string_view name, const ScheduleShape& shape,
                                const std::function<int(int)>& owner) {
  PLAIT_TRY(Layout layout, pipeline_layout(name, shape, shape.ranks, owner));
  if (layout.groups.front().users.size() > 1) {
    std::vector<RankId>& homes = layout.groups.front().homes;
    homes.clear();
    for (int rank = 0; rank < shape.ranks; ++rank) homes.emplace_back(rank);
  }
  return layout;
}

void WeightRows::move(Value value, int from, int to) {
  row(from).push_back(Send{.value = value, .peer = RankId{to}});
  row(to).push_back(Recv{.value = value, .peer = RankId{from}});
  unwaited_[static_cast<std::size_t>(from)].push_back(WaitSend{.value = value, .peer = RankId{to}});
}

void WeightRows::wait_sends(int rank) {
  std::vector<WaitSend>& waits = unwaited_[static_cast<std::size_t>(rank)];
  for (const WaitSend& wait : waits) row(rank).push_back(wait);
  waits.clear();
}

void WeightRows::turn_of_all() {
  for (Row& row : rows_) row.push_back(Turn{});
}

GroupId group_of_stage(const Layout& layout, int stage) {
  return layout.stages[static_cast<std::size_t>(stage)].groups.back();
}

}  // namespace plait
