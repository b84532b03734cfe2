#include "plait/schedules/v_pattern.h"

#include "plait/schedules/common.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <utility>

namespace plait {
namespace {

constexpr int kPeriod = 6;  // F, B and W of two chunks
constexpr int kUnplaced = -1;
constexpr int kNoLimit = std::numeric_limits<int>::max() / 2;

/// Per rank, the op of each slot.
using Grid = std::vector<std::vector<std::optional<Op>>>;
using Orders = std::vector<std::vector<Op>>;

/// In which slot each op stands.
class Slots {
 public:
  Slots(int num_ranks, int num_microbatches)
      : num_ranks_(num_ranks),
        num_microbatches_(num_microbatches),
        slots_(std::size_t{3} * static_cast<std::size_t>(2 * num_ranks) * static_cast<std::size_t>(num_microbatches),
               kUnplaced) {}
  int& of(const Op& op) { return slots_[index(op)]; }
  /// First slot in which the inputs of an op are there; kUnplaced if one is not placed.
  [[nodiscard]] int ready(const Op& op) const {
    Op input = op;
    switch (op.kind) {
      case OpKind::kForward:
        if (op.stage.value() == 0) return 0;
        input.stage = StageId{op.stage.value() - 1};
        break;
      case OpKind::kBackwardInput:
        if (op.stage.value() + 1 == 2 * num_ranks_)
          input.kind = OpKind::kForward;
        else
          input.stage = StageId{op.stage.value() + 1};
        break;
      default: input.kind = OpKind::kBackwardInput; break;
    }
    const int slot = slots_[index(input)];
    return slot == kUnplaced ? kUnplaced : slot + 1;
  }

 private:
  [[nodiscard]] std::size_t index(const Op& op) const {
    const std::size_t kind = op.kind == OpKind::kForward ? 0 : op.kind == OpKind::kBackwardInput ? 1 : 2;
    return (kind * static_cast<std::size_t>(2 * num_ranks_) + op.stage.index()) *
               static_cast<std::size_t>(num_microbatches_) +
           op.microbatch.index();
  }
  int num_ranks_;
  int num_microbatches_;
  std::vector<int> slots_;
};

int memory_of(const Op& op) {
  return op.kind == OpKind::kForward ? 1 : op.kind == OpKind::kBackwardWeight ? -1 : 0;
}

void put(std::vector<std::optional<Op>>& row, int slot, const Op& op) {
  if (row.size() <= static_cast<std::size_t>(slot)) row.resize(static_cast<std::size_t>(slot) + 1);
  row[static_cast<std::size_t>(slot)] = op;
}

/// One construction for given sizes.
class Builder {
 public:
  Builder(int num_ranks, int num_microbatches) : p_(num_ranks), m_(num_microbatches) {}

  [[nodiscard]] Grid repeat(const VPattern& pattern) const {
    Grid grid(pattern.size());
    for (std::size_t rank = 0; rank < pattern.size(); ++rank) {
      const int first = static_cast<int>(rank);
      const int second = v_second_stage(first, p_);
      for (int k = 0; k < m_; ++k) {
        const auto& slots = pattern[rank];
        put(grid[rank], slots[0] + kPeriod * k, forward(first, k));
        put(grid[rank], slots[1] + kPeriod * k, forward(second, k));
        put(grid[rank], slots[2] + kPeriod * k, backward_input(second, k));
        put(grid[rank], slots[3] + kPeriod * k, backward_input(first, k));
      }
      place_weights(grid[rank]);
    }
    return grid;
  }

  [[nodiscard]] Orders order(const Grid& grid) const {
    Orders orders(grid.size());
    for (std::size_t rank = 0; rank < grid.size(); ++rank)
      for (const auto& cell : grid[rank])
        if (cell) orders[rank].push_back(*cell);
    return orders;
  }

  [[nodiscard]] Orders order_without_weights(const Grid& grid) const {
    Orders orders = order(grid);
    for (auto& row : orders) std::erase_if(row, [](const Op& op) { return op.kind == OpKind::kBackwardWeight; });
    return orders;
  }

  /// Every op as early as its inputs and its rank allow, in the given order.
  [[nodiscard]] Grid squeeze(const Orders& orders) const {
    std::optional<Grid> grid = play(orders, Weights::kAsOrdered, kNoLimit);
    PLAIT_CHECK(grid.has_value(), "nothing limits the memory");
    return *std::move(grid);
  }

  /// The same for orders without weight gradients: those go into the gaps, and before a forward that would exceed the
  /// limit; nothing if there is none to make room.
  [[nodiscard]] std::optional<Grid> insert_weights(const Orders& orders, int limit) const {
    return play(orders, Weights::kInserted, limit);
  }

  using Select = std::function<bool(std::size_t rank, int slot, const Op& op)>;

  /// Moves the selected ops, in the order of their slots, into the earliest free slot behind their inputs that keeps the
  /// memory of the rank within the limit.
  [[nodiscard]] Grid reorder(Grid grid, int limit, const Select& select) const {
    Slots slots(p_, m_);
    std::vector<std::vector<int>> memory(grid.size());  // behind each slot
    std::size_t num_slots = 0;
    for (std::size_t rank = 0; rank < grid.size(); ++rank) {
      int live = 0;
      for (std::size_t slot = 0; slot < grid[rank].size(); ++slot) {
        if (grid[rank][slot]) {
          slots.of(*grid[rank][slot]) = static_cast<int>(slot);
          live += memory_of(*grid[rank][slot]);
        }
        memory[rank].push_back(live);
      }
      num_slots = std::max(num_slots, grid[rank].size());
    }
    for (std::size_t from = 0; from < num_slots; ++from) {
      for (std::size_t rank = 0; rank < grid.size(); ++rank) {
        if (from >= grid[rank].size() || !grid[rank][from]) continue;
        const Op op = *grid[rank][from];
        if (!select(rank, static_cast<int>(from), op)) continue;
        const int ready = slots.ready(op);
        std::optional<std::size_t> target;
        for (std::size_t slot = from; slot-- > static_cast<std::size_t>(std::max(0, ready));) {
          if (memory[rank][slot] + memory_of(op) > limit) break;
          if (!grid[rank][slot]) target = slot;
        }
        if (!target) continue;
        grid[rank][*target] = op;
        grid[rank][from].reset();
        for (std::size_t slot = *target; slot < from; ++slot) memory[rank][slot] += memory_of(op);
        slots.of(op) = static_cast<int>(*target);
      }
    }
    return grid;
  }

  [[nodiscard]] int peak(const Grid& grid) const {
    int most = 0;
    for (const auto& row : grid) {
      int live = 0;
      for (const auto& cell : row)
        if (cell) most = std::max(most, live += memory_of(*cell));
    }
    return most;
  }

  /// Longest span of a rank minus its work.
  [[nodiscard]] int bubble(const Grid& grid) const {
    int longest = 0;
    for (const auto& row : grid) {
      const auto first = std::find_if(row.begin(), row.end(), [](const auto& cell) { return cell.has_value(); });
      longest = std::max(longest, static_cast<int>(row.end() - first));
    }
    return longest - kPeriod * m_;
  }

  /// First slot of a B, per rank.
  [[nodiscard]] std::vector<int> first_backward(const Grid& grid) const {
    std::vector<int> slots;
    for (const auto& row : grid) {
      const auto at = std::find_if(row.begin(), row.end(),
                                   [](const auto& cell) { return cell && cell->kind == OpKind::kBackwardInput; });
      slots.push_back(static_cast<int>(at - row.begin()));
    }
    return slots;
  }
  /// Last slot of an F, per rank.
  [[nodiscard]] std::vector<int> last_forward(const Grid& grid) const {
    std::vector<int> slots;
    for (const auto& row : grid) {
      int last = kUnplaced;
      for (std::size_t slot = 0; slot < row.size(); ++slot)
        if (row[slot] && row[slot]->kind == OpKind::kForward) last = static_cast<int>(slot);
      slots.push_back(last);
    }
    return slots;
  }

 private:
  static void place_weights(std::vector<std::optional<Op>>& row) {
    for (std::size_t slot = 0; slot < row.size(); ++slot) {
      if (!row[slot] || row[slot]->kind != OpKind::kBackwardInput) continue;
      std::size_t free = slot + 1;
      while (free < row.size() && row[free]) ++free;
      put(row, static_cast<int>(free), backward_weight(row[slot]->stage.value(), row[slot]->microbatch.value()));
    }
  }

  enum class Weights { kAsOrdered, kInserted };

  struct Player {
    std::size_t next = 0;  ///< op of the order
    int clock = 0;
    int live = 0;
    std::deque<Op> pending_weights;
  };

  [[nodiscard]] std::optional<Grid> play(const Orders& orders, Weights weights, int limit) const {
    Grid grid(orders.size());
    Slots slots(p_, m_);
    std::vector<Player> players(orders.size());
    const auto place = [&](std::size_t rank, const Op& op, int slot) {
      put(grid[rank], slot, op);
      slots.of(op) = slot;
      players[rank].clock = slot + 1;
      players[rank].live += memory_of(op);
    };
    const auto place_weight = [&](std::size_t rank) {
      place(rank, players[rank].pending_weights.front(), players[rank].clock);
      players[rank].pending_weights.pop_front();
    };
    for (bool progress = true; progress;) {
      progress = false;
      for (std::size_t rank = 0; rank < orders.size(); ++rank) {
        Player& player = players[rank];
        while (player.next < orders[rank].size()) {
          const Op& op = orders[rank][player.next];
          const int ready = slots.ready(op);
          if (ready == kUnplaced) break;
          while (!player.pending_weights.empty() && player.clock < ready) place_weight(rank);
          while (player.live + memory_of(op) > limit) {
            if (player.pending_weights.empty()) return std::nullopt;
            place_weight(rank);
          }
          place(rank, op, std::max(player.clock, ready));
          if (weights == Weights::kInserted && op.kind == OpKind::kBackwardInput)
            player.pending_weights.push_back(backward_weight(op.stage.value(), op.microbatch.value()));
          ++player.next;
          progress = true;
        }
      }
    }
    for (std::size_t rank = 0; rank < orders.size(); ++rank) {
      PLAIT_CHECK(players[rank].next == orders[rank].size(), "rank {} is stuck", rank);
      while (!players[rank].pending_weights.empty()) place_weight(rank);
    }
    return grid;
  }

  int p_;
  int m_;
};

/// Finishes a squeezed grid one way; nothing if the limit cannot be kept.
std::optional<Grid> finish(const Builder& builder, const Grid& squeezed, VFinish how, int limit) {
  const auto everything = [](std::size_t, int, const Op&) { return true; };
  switch (how) {
    case VFinish::kReordered: {
      if (builder.peak(squeezed) > limit) return std::nullopt;
      // Only the warm-up and the cool-down have holes: ops before a rank's first B, then those behind its last F.
      const std::vector<int> first_backward = builder.first_backward(squeezed);
      const Grid warm = builder.squeeze(builder.order(builder.reorder(
          squeezed, limit, [&](std::size_t rank, int slot, const Op&) { return slot < first_backward[rank]; })));
      const Grid bare = builder.squeeze(builder.order_without_weights(warm));
      const std::vector<int> last_forward = builder.last_forward(bare);
      const Grid cool = builder.reorder(
          bare, kNoLimit, [&](std::size_t rank, int slot, const Op&) { return slot > last_forward[rank]; });
      return builder.insert_weights(builder.order(cool), limit);
    }
    case VFinish::kNewWeights: return builder.insert_weights(builder.order_without_weights(squeezed), limit);
    case VFinish::kNewWeightsThenReordered: {
      const auto weighted = builder.insert_weights(builder.order_without_weights(squeezed), limit);
      if (!weighted) return std::nullopt;
      return builder.squeeze(builder.order(builder.reorder(*weighted, limit, everything)));
    }
    case VFinish::kReorderedThenNewWeights: {
      const Grid bare = builder.squeeze(builder.order_without_weights(squeezed));
      return builder.insert_weights(builder.order(builder.reorder(bare, kNoLimit, everything)), limit);
    }
  }
  return std::nullopt;
}

std::vector<Row> rows_of(const Orders& orders) {
  std::vector<Row> rows;
  for (const auto& order : orders) rows.emplace_back(order.begin(), order.end());
  return rows;
}

/// Adds whole periods to one op of all ranks until it comes after the op before it on the rank where the two meet.
void lift(VPattern& pattern, std::size_t op, std::size_t rank) {
  while (pattern[rank][op] <= pattern[rank][op - 1])
    for (auto& slots : pattern) slots[op] += kPeriod;
}

/// A pattern of the general search; nothing if two of its ops fall into one slot of the period.
std::optional<VPattern> shifted_pattern(int num_ranks, std::array<int, 4> first_row, int first_shift, int second_shift,
                                        int num_first) {
  VPattern pattern{first_row};
  for (int rank = 1; rank < num_ranks; ++rank) {
    const int shift = rank <= num_first ? first_shift : second_shift;
    const auto& above = pattern.back();
    pattern.push_back({above[0] + shift, above[1] - 1, above[2] + shift, above[3] - 1});
  }
  for (const auto& slots : pattern) {
    unsigned taken = 0;
    for (const int slot : slots) {
      const unsigned bit = 1U << static_cast<unsigned>((slot % kPeriod + kPeriod) % kPeriod);
      if ((taken & bit) != 0) return std::nullopt;
      taken |= bit;
    }
  }
  const auto last = static_cast<std::size_t>(num_ranks - 1);
  lift(pattern, 1, last);
  lift(pattern, 2, 0);
  lift(pattern, 3, last);
  return pattern;
}

}  // namespace

VPattern v_min_pattern(int num_ranks) {
  const int p = num_ranks;
  const int delta = p % 3 == 0 ? 2 : 0;
  VPattern pattern;
  for (int i = 0; i < p; ++i) pattern.push_back({i, 2 * p - 1 - i, 2 * p + delta + i, 4 * p + delta - 1 - i});
  return pattern;
}

VPattern v_half_pattern(int num_ranks) {
  const int p = num_ranks;
  const int delta = p % 2 == 0 ? 3 : 0;
  VPattern pattern;
  for (int i = 0; i < p; ++i)
    pattern.push_back({2 * i, 3 * p - 2 - i, 3 * p + delta + 2 * i - 1, 6 * p + delta - 2 - i});
  return pattern;
}

std::vector<Row> repeat_pattern(const VPattern& pattern, int num_microbatches) {
  const Builder builder(static_cast<int>(pattern.size()), num_microbatches);
  return rows_of(builder.order(builder.repeat(pattern)));
}

std::vector<Row> squeeze_pattern(const VPattern& pattern, int num_microbatches) {
  const Builder builder(static_cast<int>(pattern.size()), num_microbatches);
  const Grid squeezed = builder.squeeze(builder.order(builder.repeat(pattern)));
  const auto finished = finish(builder, squeezed, VFinish::kReordered, builder.peak(squeezed));
  PLAIT_CHECK(finished.has_value(), "the pattern keeps its own peak");
  return rows_of(builder.order(*finished));
}

bool has_v_forms(const ScheduleShape& shape) {
  return shape.ranks >= 3 && *shape.microbatches >= 2 * shape.ranks && shape.squeeze == Squeeze::kFull;
}

Result<> check_v_pattern(std::string_view name, const ScheduleShape& shape) {
  ScheduleShape squeezed = shape;
  squeezed.squeeze = Squeeze::kFull;
  return check_v_shape(name, squeezed);
}

Result<Schedule> build_v_pattern(std::string_view name, const ScheduleShape& shape, const VPattern& pattern) {
  const int p = shape.ranks;
  PLAIT_TRY(Layout layout, pipeline_layout(name, shape, 2 * p, [p](int stage) { return v_rank(stage, p); }));
  auto rows = shape.squeeze == Squeeze::kPatternOnly ? repeat_pattern(pattern, *shape.microbatches)
                                                     : squeeze_pattern(pattern, *shape.microbatches);
  return Schedule{.layout = std::move(layout), .rows = std::move(rows)};
}

Expectation expect_v_pattern(const ScheduleShape& shape, int bubble_slots) {
  const int p = shape.ranks;
  const OpTimes& times = shape.times;
  Expectation expected{.sends = count_sends(shape, 2 * p, [p](int stage) { return v_rank(stage, p); })};
  const bool is_unit = times.forward == times.backward && times.backward == times.weight;
  if (!is_unit || !has_v_forms(shape)) return expected;
  // Rank 0 works longest: its idle time is the bubble, and its span the makespan.
  expected.max_idle = bubble_slots * times.forward / 2;
  expected.makespan = *shape.microbatches * work(times) + *expected.max_idle;
  return expected;
}

std::optional<std::vector<Row>> finish_pattern(const VPattern& pattern, VFinish how, int num_microbatches,
                                               int memory_limit) {
  const Builder builder(static_cast<int>(pattern.size()), num_microbatches);
  const auto finished = finish(builder, builder.squeeze(builder.order(builder.repeat(pattern))), how, memory_limit);
  if (!finished || builder.peak(*finished) > memory_limit) return std::nullopt;
  return rows_of(builder.order(*finished));
}

std::optional<VSearchResult> search_v_pattern(int num_ranks, int num_microbatches, int memory_limit) {
  constexpr VFinish kFinishes[] = {VFinish::kReorderedThenNewWeights, VFinish::kNewWeightsThenReordered,
                                   VFinish::kNewWeights, VFinish::kReordered};
  const Builder builder(num_ranks, num_microbatches);
  std::optional<VSearchResult> best;
  /// False once nothing better can come.
  const auto try_pattern = [&](const VPattern& pattern) {
    const Grid squeezed = builder.squeeze(builder.order(builder.repeat(pattern)));
    for (const VFinish how : kFinishes) {
      const auto finished = finish(builder, squeezed, how, memory_limit);
      if (!finished || builder.peak(*finished) > memory_limit) continue;
      const int bubble = builder.bubble(*finished);
      if (best && bubble >= best->bubble) continue;
      best =
          VSearchResult{.rows = rows_of(builder.order(*finished)), .bubble = bubble, .pattern = pattern, .finish = how};
      if (bubble == 0) return false;
    }
    return true;
  };
  // Long shifts first: with a full budget they leave no bubble.
  std::array<int, 4> first_row = {0, 1, 2, 3};
  std::array<int, 5> free_slots = {1, 2, 3, 4, 5};
  do {
    std::copy_n(free_slots.begin(), 3, first_row.begin() + 1);
    for (int first_shift = 5; first_shift >= 1; --first_shift) {
      for (int second_shift = 1; second_shift <= first_shift; ++second_shift) {
        for (int num_first = std::max(1, num_ranks - 1); num_first >= 1; --num_first) {
          if (first_shift == second_shift && num_first > 1) continue;  // all the same pattern
          const auto pattern = shifted_pattern(num_ranks, first_row, first_shift, second_shift, num_first);
          if (pattern && !try_pattern(*pattern)) return best;
        }
      }
    }
    std::reverse(free_slots.begin() + 3, free_slots.end());  // the two that are left count once
  } while (std::next_permutation(free_slots.begin(), free_slots.end()));
  return best;
}

}  // namespace plait
