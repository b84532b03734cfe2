#pragma once

#include "plait/schedules/schedule_info.h"

#include <functional>
#include <string_view>
#include <utility>
#include <vector>

/// What the systems share whose weights or gradients travel while every rank keeps its own micro-batches.
namespace plait {

/// Refuses what such a system cannot take: sizes below one, slices, layers that P does not divide, a number of
/// micro-batches that is not R P, and flags of other systems. `--groups` and `--prefetch` are for the caller to judge.
Result<> check_rounds(std::string_view name, const ScheduleShape& shape);

/// One shard per rank, `owner(shard)` its only home. A tied token table is held by all ranks: both ends of the model
/// use it, and the all-reduce of its gradient at the end of the step costs less than sending it round.
Result<Layout> sharded_by_owner(std::string_view name, const ScheduleShape& shape,
                                const std::function<int(int)>& owner);

/// Rows that grow together. Both ends of a transfer are written at one moment, so all transfers match in one global
/// order and the rows are safe even where sends and receives block.
class WeightRows {
 public:
  explicit WeightRows(int num_ranks) : rows_(static_cast<std::size_t>(num_ranks)), unwaited_(rows_.size()) {}

  void put(int rank, const Instr& instr) { row(rank).push_back(instr); }
  /// Send and receive; the wait of the send follows at wait_sends.
  void move(Value value, int from, int to);
  /// Waits for all sends of the rank so far, in their order.
  void wait_sends(int rank);
  void turn_of_all();
  [[nodiscard]] std::vector<Row> take() && { return std::move(rows_); }

 private:
  Row& row(int rank) { return rows_[static_cast<std::size_t>(rank)]; }
  std::vector<Row> rows_;
  std::vector<std::vector<WaitSend>> unwaited_;
};

/// The group that the weights of a stage form, the tied token table aside.
GroupId group_of_stage(const Layout& layout, int stage);

}  // namespace plait
