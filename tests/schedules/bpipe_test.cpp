#include "plait/ir/lower.h"
#include "plait/sim/simulate.h"
#include "plait/verify/verify.h"

#include "printed_order.h"
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

namespace plait {
namespace {

Schedule bpipe(int p, int m, Eviction eviction = Eviction::kLate) {
  auto schedule = build_schedule("bpipe", {.ranks = p, .microbatches = m, .eviction = eviction});
  EXPECT_TRUE(schedule) << schedule.error().message;
  return *std::move(schedule);
}

int bound(int p) {
  return (p + 3) / 2;  // ceil((p+2)/2)
}

/// Stashes on a rank after each instruction, foreign ones included. A slot is taken until the wait of an eviction.
struct Local {
  int peak_own = 0;
  int peak_all = 0;  ///< the slot of a transfer under way included
  int at_ops = 0;    ///< most while an op runs
  int foreign_at_ops = 0;
  std::vector<int> evicted;
  int loads = 0;
};

Local walk(const Row& row, int rank) {
  Local local;
  std::set<int> own;
  std::set<int> leaving;
  std::set<int> foreign;
  for (const Instr& instr : row) {
    if (const Op* op = std::get_if<Op>(&instr)) {
      if (op->kind == OpKind::kForward) own.insert(op->microbatch.value());
      if (op->kind == OpKind::kBackward) {
        EXPECT_EQ(own.erase(op->microbatch.value()), 1U) << "a backward without its stash";
      }
    } else if (const Send* send = std::get_if<Send>(&instr)) {
      std::set<int>& from = send->value.stage().value() == rank ? own : foreign;
      EXPECT_EQ(from.erase(send->value.microbatch().value()), 1U);
      if (send->value.stage().value() == rank) {
        local.evicted.push_back(send->value.microbatch().value());
        leaving.insert(send->value.microbatch().value());
      }
    } else if (const WaitSend* wait = std::get_if<WaitSend>(&instr)) {
      EXPECT_EQ(leaving.erase(wait->value.microbatch().value()), 1U);
    } else if (const Recv* recv = std::get_if<Recv>(&instr)) {
      (recv->value.stage().value() == rank ? own : foreign).insert(recv->value.microbatch().value());
      local.loads += recv->value.stage().value() == rank ? 1 : 0;
    }
    const int num_own = static_cast<int>(own.size() + leaving.size());
    local.peak_own = std::max(local.peak_own, num_own);
    if (std::holds_alternative<Op>(instr)) {
      local.foreign_at_ops = std::max(local.foreign_at_ops, static_cast<int>(foreign.size()));
      local.at_ops = std::max(local.at_ops, num_own + static_cast<int>(foreign.size()));
    }
    local.peak_all = std::max(local.peak_all, num_own + static_cast<int>(foreign.size()));
  }
  EXPECT_TRUE(own.empty() && leaving.empty() && foreign.empty());
  return local;
}

TEST(BPipe, PeaksOfEveryRankAreWithinTheBound) {
  for (const int p : {2, 3, 4, 5, 6, 7, 8, 12, 16}) {
    for (const int m : {1, p, 2 * p, 2 * p + 1, 4 * p}) {
      const Schedule schedule = bpipe(p, m);
      const auto plain = build_schedule("1f1b", {.ranks = p, .microbatches = m});
      for (int x = 0; x < p; ++x) {
        SCOPED_TRACE(fmt::format("p {} m {} rank {}", p, m, x));
        const Local local = walk(schedule.rows[static_cast<std::size_t>(x)], x);
        const int raw = std::min(m, p - x);
        EXPECT_LE(local.peak_all, bound(p));
        if (x < p / 2) {
          EXPECT_EQ(local.peak_own, std::min(raw, bound(p)));
        } else {
          EXPECT_LE(local.foreign_at_ops, std::max(0, x + 1 - bound(p)));
          if (x > p / 2) {
            EXPECT_LE(local.at_ops, (p + 1) / 2);
          }
        }
        EXPECT_EQ(local.evicted.size(), static_cast<std::size_t>(local.loads));
        EXPECT_EQ(to_text(ops_of(schedule.rows[static_cast<std::size_t>(x)])),
                  to_text(ops_of(plain->rows[static_cast<std::size_t>(x)])));
      }
    }
  }
}

TEST(BPipe, EvictsTheMicrobatchesOfTheClosedForm) {
  const auto evicted = [](int p, int m, int x) {
    return walk(bpipe(p, m).rows[static_cast<std::size_t>(x)], x).evicted;
  };
  using List = std::vector<int>;
  EXPECT_EQ(evicted(4, 8, 0), (List{2, 5}));
  EXPECT_EQ(evicted(4, 8, 1), List{});
  EXPECT_EQ(evicted(8, 16, 0), (List{4, 5, 6, 11, 12, 13}));
  EXPECT_EQ(evicted(8, 16, 1), (List{4, 5, 10, 11}));
  EXPECT_EQ(evicted(8, 16, 2), (List{4, 9, 14}));
  EXPECT_EQ(evicted(8, 16, 3), List{});
  std::vector<std::size_t> counts;
  for (int x = 0; x < 4; ++x) counts.push_back(evicted(8, 64, x).size());
  EXPECT_EQ(counts, (std::vector<std::size_t>{27, 20, 12, 0}));
}

// Early eviction keeps the bound too, without a slot more; its counts are those of an independent plan of the same policy.
TEST(BPipe, EarlyEvictionKeepsTheBound) {
  for (const int p : {2, 3, 4, 5, 6, 7, 8, 12, 16}) {
    for (const int m : {1, 2, p, p + 1, 2 * p, 2 * p + 1, 4 * p}) {
      const Schedule schedule = bpipe(p, m, Eviction::kEarly);
      const auto plain = build_schedule("1f1b", {.ranks = p, .microbatches = m});
      for (int x = 0; x < p; ++x) {
        SCOPED_TRACE(fmt::format("p {} m {} rank {}", p, m, x));
        const Local local = walk(schedule.rows[static_cast<std::size_t>(x)], x);
        EXPECT_LE(local.peak_all, bound(p));
        EXPECT_EQ(local.evicted.size(), static_cast<std::size_t>(local.loads));
        EXPECT_EQ(to_text(ops_of(schedule.rows[static_cast<std::size_t>(x)])),
                  to_text(ops_of(plain->rows[static_cast<std::size_t>(x)])));
      }
    }
  }
  const auto counts = [](int p, int m) {
    std::vector<std::size_t> all;
    const Schedule schedule = bpipe(p, m, Eviction::kEarly);
    for (int x = 0; x < p / 2; ++x) all.push_back(walk(schedule.rows[static_cast<std::size_t>(x)], x).evicted.size());
    return all;
  };
  using Counts = std::vector<std::size_t>;
  EXPECT_EQ(counts(4, 8), (Counts{4, 0}));
  EXPECT_EQ(counts(8, 16), (Counts{7, 6, 4, 0}));
  EXPECT_EQ(counts(8, 64), (Counts{31, 25, 16, 0}));
  EXPECT_EQ(counts(16, 32), (Counts{14, 12, 11, 11, 9, 6, 4, 0}));
}

/// A stash on the way between partners: it moves once it is sent and its slot is there, one at a time in each direction.
struct Move {
  std::optional<Ticks> sent;
  std::optional<Ticks> posted;
  std::optional<Ticks> arrived;
};

/// Makespan for F = B = W = 10 where a stash takes `transfer` and everything else moves at once.
Ticks makespan_with_moves(const Schedule& schedule, Ticks transfer) {
  using Channel = std::pair<int, int>;
  const std::size_t p = schedule.rows.size();
  std::map<std::tuple<Channel, int, int>, Move> moves;  // channel, stage, micro-batch
  std::map<Channel, Ticks> channel_free;
  std::vector<std::vector<Ticks>> forward_end(p);
  std::vector<std::vector<Ticks>> backward_end(p);
  std::vector<Ticks> clock(p, 0);
  std::vector<std::size_t> next(p, 0);
  const auto start = [&](const Channel& channel, Move& move) {
    if (!move.sent || !move.posted) return;
    Ticks& free = channel_free[channel];
    free = std::max({free, *move.sent, *move.posted}) + transfer;
    move.arrived = free;
  };
  const auto step = [&](std::size_t r) {  // false: waits for another rank
    const int here = static_cast<int>(r);
    const Instr& instr = schedule.rows[r][next[r]];
    const auto move_of = [&](const Channel& channel, const Value& stash) -> Move& {
      return moves[{channel, stash.stage().value(), stash.microbatch().value()}];
    };
    if (const Send* send = std::get_if<Send>(&instr)) {
      const Channel channel{here, send->peer.value()};
      Move& move = move_of(channel, send->value);
      move.sent = clock[r];
      start(channel, move);
    } else if (const Recv* recv = std::get_if<Recv>(&instr)) {
      const Channel channel{recv->peer.value(), here};
      Move& move = move_of(channel, recv->value);
      move.posted = clock[r];
      start(channel, move);
    } else if (const WaitSend* wait = std::get_if<WaitSend>(&instr)) {
      const auto arrived = move_of({here, wait->peer.value()}, wait->value).arrived;
      if (!arrived) return false;
      clock[r] = std::max(clock[r], *arrived);
    } else {
      const Op& op = std::get<Op>(instr);
      const bool is_forward = op.kind == OpKind::kForward;
      Ticks begin = clock[r];
      if (is_forward ? r > 0 : r + 1 < p) {
        const auto& inputs = is_forward ? forward_end[r - 1] : backward_end[r + 1];
        if (inputs.size() <= op.microbatch.index()) return false;
        begin = std::max(begin, inputs[op.microbatch.index()]);
      }
      const int partner = static_cast<int>(p) - 1 - here;
      const auto load = moves.find({Channel{partner, here}, here, op.microbatch.value()});
      if (!is_forward && load != moves.end()) {
        if (!load->second.arrived) return false;
        begin = std::max(begin, *load->second.arrived);
      }
      clock[r] = begin + (is_forward ? 10 : 20);
      (is_forward ? forward_end : backward_end)[r].push_back(clock[r]);
    }
    ++next[r];
    return true;
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t r = 0; r < p; ++r)
      while (next[r] < schedule.rows[r].size() && step(r)) progress = true;
  }
  for (std::size_t r = 0; r < p; ++r) EXPECT_EQ(next[r], schedule.rows[r].size()) << "rank " << r << " is stuck";
  return *std::max_element(clock.begin(), clock.end());
}

Ticks added(int p, int m, Eviction eviction, Ticks transfer) {
  return makespan_with_moves(bpipe(p, m, eviction), transfer) - 30 * (m + p - 1);
}

TEST(BPipe, LateEvictionCostsEvenForShortTransfers) {
  EXPECT_EQ(added(4, 8, Eviction::kLate, 10), 20);
  EXPECT_EQ(added(4, 8, Eviction::kLate, 1), 2);
  EXPECT_EQ(added(8, 16, Eviction::kLate, 10), 80);
  EXPECT_EQ(added(8, 16, Eviction::kLate, 1), 8);
}

TEST(BPipe, EarlyEvictionHidesTransfersUpToAForward) {
  for (const int p : {4, 5, 6, 7, 8, 12, 16})
    for (const int m : {p, 2 * p, 2 * p + 1, 4 * p})
      for (const Ticks transfer : {1, 5, 10})
        EXPECT_EQ(added(p, m, Eviction::kEarly, transfer), 0) << "p " << p << " m " << m << " transfer " << transfer;
  EXPECT_GT(added(4, 8, Eviction::kEarly, 11), 0);
}

TEST(BPipe, IsProvedUnderAllTransferRules) {
  for (int p = 2; p <= 16; ++p) {
    for (const int m : {1, p - 1, p, 2 * p + 1, 3 * p}) {
      for (const Eviction eviction : {Eviction::kLate, Eviction::kEarly}) {
        const auto program = lower(bpipe(p, m, eviction));
        ASSERT_TRUE(program) << program.error().message;
        for (const TransferRule rule : {TransferRule::kBuffered, TransferRule::kBounded, TransferRule::kRendezvous}) {
          const auto findings = verify(*program, {.transfers = rule});
          EXPECT_TRUE(findings.empty()) << "p " << p << " m " << m << ": " << findings[0].message;
        }
      }
    }
  }
}

TEST(BPipe, OtherSchedulesRefuseARuleOfEviction) {
  for (const char* name : {"1f1b", "gpipe", "zb-v"}) {
    const auto schedule = build_schedule(name, {.ranks = 4, .microbatches = 8, .eviction = Eviction::kEarly});
    ASSERT_FALSE(schedule);
    EXPECT_EQ(schedule.error().rule, "schedule.flag") << name;
  }
}

/// A backward whose stash is still at the partner is found.
TEST(BPipe, BackwardBeforeTheStashCameBackIsFound) {
  Schedule schedule = bpipe(4, 8);
  Row& row = schedule.rows[0];
  const auto load =
      std::find_if(row.begin(), row.end(), [](const Instr& instr) { return std::holds_alternative<Recv>(instr); });
  ASSERT_NE(load, row.end());
  const auto user = std::next(load);
  ASSERT_TRUE(std::holds_alternative<Op>(*user));
  std::iter_swap(load, user);
  EXPECT_FALSE(verify(schedule).empty());
}

}  // namespace
}  // namespace plait
