#include "plait/schedules/common.h"

#include <algorithm>
#include <vector>

namespace plait {
namespace {

/// Most activations that a rank may hold: one slot more than half of the pair's p+1 serves as transfer buffer.
int bound(int num_ranks) {
  return (num_ranks + 3) / 2;
}

Result<> supports(const ScheduleShape& shape) {
  ScheduleShape late = shape;  // the sizes count, whenever stashes leave
  late.eviction = Eviction::kLate;
  return check_plain("bpipe", late);
}

/// 1F1B's order for one rank.
std::vector<Op> order_of(int rank, int num_ranks, int num_microbatches) {
  std::vector<Op> ops;
  const int warmup = std::min(num_microbatches, num_ranks - rank - 1);
  for (int m = 0; m < warmup; ++m) ops.push_back(forward(rank, m));
  for (int m = warmup; m < num_microbatches; ++m) {
    ops.push_back(forward(rank, m));
    ops.push_back(backward(rank, m - warmup));
  }
  for (int m = num_microbatches - warmup; m < num_microbatches; ++m) ops.push_back(backward(rank, m));
  return ops;
}

struct Span {
  Ticks start = 0;
  Ticks end = 0;
};

/// When each op of each rank runs if none waits for a stash.
std::vector<std::vector<Span>> time_ops(const std::vector<std::vector<Op>>& orders, const ScheduleShape& shape) {
  const std::size_t p = orders.size();
  const auto num_microbatches = static_cast<std::size_t>(*shape.microbatches);
  std::vector<std::vector<Span>> spans(p);
  std::vector<std::vector<Ticks>> forward_end(p);
  std::vector<std::vector<Ticks>> backward_end(p);
  std::vector<Ticks> clock(p, 0);
  for (std::size_t placed = 0; placed < p * 2 * num_microbatches;) {
    for (std::size_t r = 0; r < p; ++r) {
      while (spans[r].size() < orders[r].size()) {
        const Op& op = orders[r][spans[r].size()];
        const bool is_forward = op.kind == OpKind::kForward;
        const bool from_outside = is_forward ? r > 0 : r + 1 < p;
        Ticks start = clock[r];
        if (from_outside) {
          const auto& inputs = is_forward ? forward_end[r - 1] : backward_end[r + 1];
          if (inputs.size() <= op.microbatch.index()) break;
          start = std::max(start, inputs[op.microbatch.index()] + shape.times.transfer);
        }
        clock[r] = start + (is_forward ? shape.times.forward : shape.times.backward + shape.times.weight);
        spans[r].push_back({.start = start, .end = clock[r]});
        (is_forward ? forward_end : backward_end)[r].push_back(clock[r]);
        ++placed;
      }
    }
  }
  return spans;
}

/// What an evictor does with stashes right before one of its ops.
struct Visit {
  enum class Way {
    kEvict,         ///< starts to send it away
    kAwaitEvicted,  ///< its slot is free from here on
    kLoad,          ///< starts to fetch it: it takes a slot from here on
  } way = Way::kEvict;
  int microbatch = 0;
};
/// One list per op of the order.
using Visits = std::vector<std::vector<Visit>>;

/// The activations of an evictor that are here, and those at its partner.
struct Places {
  std::vector<int> local;    // ascending
  std::vector<int> evicted;  // ascending

  [[nodiscard]] bool is_away(int microbatch) const {
    return std::find(evicted.begin(), evicted.end(), microbatch) != evicted.end();
  }
  void evict(std::vector<int>::iterator victim) {
    evicted.insert(std::upper_bound(evicted.begin(), evicted.end(), *victim), *victim);
    local.erase(victim);
  }
  void load(int microbatch) {
    evicted.erase(std::find(evicted.begin(), evicted.end(), microbatch));
    local.insert(std::upper_bound(local.begin(), local.end(), microbatch), microbatch);
  }
  /// A forward leaves its activation here, a backward uses one up.
  void run(const Op& op) {
    const int m = op.microbatch.value();
    if (op.kind == OpKind::kForward)
      local.push_back(m);
    else
      local.erase(std::find(local.begin(), local.end(), m));
  }
};

/// Late eviction: whenever a forward, or the load before a backward, needs a slot and all are taken, the newest local
/// activation goes to the partner, its backward being the furthest away. Transfer, load and op run one after the other.
Visits plan_late(const std::vector<Op>& order, int num_slots) {
  Visits visits(order.size());
  Places places;
  for (std::size_t at = 0; at < order.size(); ++at) {
    const int m = order[at].microbatch.value();
    const bool is_load = order[at].kind == OpKind::kBackward && places.is_away(m);
    const bool needs_slot = order[at].kind == OpKind::kForward || is_load;
    if (needs_slot && static_cast<int>(places.local.size()) == num_slots) {
      const int victim = places.local.back();
      visits[at].push_back({.way = Visit::Way::kEvict, .microbatch = victim});
      visits[at].push_back({.way = Visit::Way::kAwaitEvicted, .microbatch = victim});
      places.evict(std::prev(places.local.end()));
    }
    if (is_load) {
      visits[at].push_back({.way = Visit::Way::kLoad, .microbatch = m});
      places.load(m);
    }
    places.run(order[at]);
  }
  return visits;
}

/// Early eviction: every transfer starts one op ahead, so that it hides behind that op if it is not longer. A load runs beside
/// the op before its backward; where that op, or a forward, will need a slot that is taken, an eviction runs beside the op
/// before. Its victim is the newest activation that is complete and that the next three ops do not use; where there is
/// none, one slot more is taken.
///
///     p = 4, rank 0, 3 slots:    F4     B1     F5     B2
///     beside the op:                    out 4  in 2
Visits plan_early(const std::vector<Op>& order, int num_slots) {
  Visits visits(order.size());
  Places places;
  std::vector<int> leaving;
  const auto is_forward = [&](std::size_t at) { return at < order.size() && order[at].kind == OpKind::kForward; };
  const auto is_load_due = [&](std::size_t at) {  // right before an op, for the one behind it
    return at + 1 < order.size() && !is_forward(at + 1) && places.is_away(order[at + 1].microbatch.value());
  };
  for (std::size_t at = 0; at < order.size(); ++at) {
    for (const int m : leaving) visits[at].push_back({.way = Visit::Way::kAwaitEvicted, .microbatch = m});
    leaving.clear();
    if (is_load_due(at)) {
      const int m = order[at + 1].microbatch.value();
      visits[at].push_back({.way = Visit::Way::kLoad, .microbatch = m});
      places.load(m);
    }
    const int here = static_cast<int>(places.local.size()) + (is_forward(at) ? 1 : -1);
    int excess = here + (is_forward(at + 1) ? 1 : 0) + (is_load_due(at + 1) ? 1 : 0) - num_slots;
    for (auto victim = places.local.end(); excess > 0 && victim != places.local.begin();) {
      --victim;
      const auto end = order.begin() + static_cast<std::ptrdiff_t>(std::min(at + 3, order.size()));
      const bool is_used = std::any_of(order.begin() + static_cast<std::ptrdiff_t>(at), end,
                                       [&](const Op& op) { return op.microbatch.value() == *victim; });
      if (is_used) continue;
      visits[at].push_back({.way = Visit::Way::kEvict, .microbatch = *victim});
      leaving.push_back(*victim);
      const auto index = victim - places.local.begin();
      places.evict(victim);
      victim = places.local.begin() + index;
      --excess;
    }
    places.run(order[at]);
  }
  return visits;
}

/// The rows of an evictor and its acceptor. A visit's other end stands in the acceptor's row before the first op that has not
/// ended when the visit begins: there it is posted in time, and since nothing that began before the visit can depend on
/// an op that ends behind it, sends and receives match in one order even when both block until matched.
void add_visits(Row& evictor_row, Row& acceptor_row, int evictor, int acceptor,
                const std::vector<std::vector<Op>>& orders, const std::vector<std::vector<Span>>& spans,
                const Visits& visits) {
  const auto e = static_cast<std::size_t>(evictor);
  const auto a = static_cast<std::size_t>(acceptor);
  std::size_t at_acceptor = 0;
  for (std::size_t at = 0; at < orders[e].size(); ++at) {
    // What the acceptor has ended before this op begins.
    while (!visits[at].empty() && at_acceptor < orders[a].size() && spans[a][at_acceptor].end <= spans[e][at].start)
      acceptor_row.push_back(orders[a][at_acceptor++]);
    for (const Visit& visit : visits[at]) {
      const Value stash = Value::stash(StageId{evictor}, MicrobatchId{visit.microbatch}, SliceId{0});
      switch (visit.way) {
        case Visit::Way::kEvict:
          evictor_row.push_back(Send{.value = stash, .peer = RankId{acceptor}});
          acceptor_row.push_back(Recv{.value = stash, .peer = RankId{evictor}});
          break;
        case Visit::Way::kAwaitEvicted:
          evictor_row.push_back(WaitSend{.value = stash, .peer = RankId{acceptor}});
          break;
        case Visit::Way::kLoad:
          evictor_row.push_back(Recv{.value = stash, .peer = RankId{acceptor}});
          acceptor_row.push_back(Send{.value = stash, .peer = RankId{evictor}});
          break;
      }
    }
    evictor_row.push_back(orders[e][at]);
  }
  while (at_acceptor < orders[a].size()) acceptor_row.push_back(orders[a][at_acceptor++]);
}

Result<Schedule> build(const ScheduleShape& shape) {
  const int p = shape.ranks;
  PLAIT_TRY(Layout layout, pipeline_layout("bpipe", shape, p, [](int stage) { return stage; }));
  std::vector<std::vector<Op>> orders;
  for (int rank = 0; rank < p; ++rank) orders.push_back(order_of(rank, p, *shape.microbatches));
  const auto spans = time_ops(orders, shape);
  std::vector<Row> rows(static_cast<std::size_t>(p));
  for (int rank = 0; rank < p / 2; ++rank) {
    const int partner = p - 1 - rank;
    const auto& order = orders[static_cast<std::size_t>(rank)];
    const Visits visits = shape.eviction == Eviction::kLate ? plan_late(order, bound(p)) : plan_early(order, bound(p));
    add_visits(rows[static_cast<std::size_t>(rank)], rows[static_cast<std::size_t>(partner)], rank, partner, orders,
               spans, visits);
  }
  if (p % 2 == 1)
    for (const Op& op : orders[static_cast<std::size_t>(p / 2)]) rows[static_cast<std::size_t>(p / 2)].push_back(op);
  return Schedule{.layout = std::move(layout), .rows = std::move(rows)};
}

/// Late evictions of a rank: those u with u mod w >= bound-1, w = p-1-rank the warm-up. The last micro-batch is among them only if
/// the load for the backward beside its forward needs its slot, so not when all forwards are warm-up.
std::int64_t num_evictions(int rank, const ScheduleShape& shape) {
  const int m = *shape.microbatches;
  const int warmup = shape.ranks - 1 - rank;
  std::int64_t count = 0;
  for (int u = 0; u < m; ++u) count += u % warmup >= bound(shape.ranks) - 1 && (u + 1 < m || m > warmup) ? 1 : 0;
  return count;
}

Expectation expect(const ScheduleShape& shape) {
  const int p = shape.ranks;
  const Ticks op = work(shape.times);
  Expectation expected{.makespan = (*shape.microbatches + p - 1) * op, .max_idle = (p - 1) * op};
  if (shape.eviction == Eviction::kEarly) return expected;
  std::int64_t visits = 0;
  for (int rank = 0; rank < p / 2; ++rank) visits += 2 * num_evictions(rank, shape);
  expected.sends = visits + count_sends(shape, p, [](int stage) { return stage; });
  return expected;
}

constexpr ScheduleInfo kInfo{
    .name = "bpipe",
    .summary = "1F1B that parks surplus activations of early ranks at late ones, to level their memory",
    .needs = "any p, m; one chunk",
    .forms = "1F1B's bubble; memory at most ceil((p+2)/2); a rank x < p/2 evicts each u with u mod (p-1-x) >= bound-1",
    .source = "Kim et al. 2023 (ICML); Huang et al. 2024, arXiv:2401.02088",
    .supports = &supports,
    .build = &build,
    .expect = &expect};
PLAIT_REGISTER_SCHEDULE(kInfo);

}  // namespace
}  // namespace plait
