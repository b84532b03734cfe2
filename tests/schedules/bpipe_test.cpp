#include "plait/ir/lower.h"
#include "plait/sim/simulate.h"
#include "plait/verify/verify.h"

#include "printed_order.h"
#include "replay.h"
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace plait {
namespace {

Schedule bpipe(int p, int m) {
  auto schedule = build_schedule("bpipe", {.ranks = p, .microbatches = m});
  EXPECT_TRUE(schedule) << schedule.error().message;
  return *std::move(schedule);
}

/// Stashes on a rank after each instruction, foreign ones included.
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
      if (send->value.stage().value() == rank) local.evicted.push_back(send->value.microbatch().value());
    } else if (const Recv* recv = std::get_if<Recv>(&instr)) {
      (recv->value.stage().value() == rank ? own : foreign).insert(recv->value.microbatch().value());
      local.loads += recv->value.stage().value() == rank ? 1 : 0;
    }
    local.peak_own = std::max(local.peak_own, static_cast<int>(own.size()));
    if (std::holds_alternative<Op>(instr)) {
      local.foreign_at_ops = std::max(local.foreign_at_ops, static_cast<int>(foreign.size()));
      local.at_ops = std::max(local.at_ops, static_cast<int>(own.size() + foreign.size()));
    }
    local.peak_all = std::max(local.peak_all, static_cast<int>(own.size() + foreign.size()));
  }
  EXPECT_TRUE(own.empty() && foreign.empty());
  return local;
}

TEST(BPipe, PeaksOfEveryRankAreWithinTheBound) {
  for (const int p : {2, 3, 4, 5, 6, 7, 8, 12, 16}) {
    const int bound = (p + 3) / 2;  // ceil((p+2)/2)
    for (const int m : {1, p, 2 * p, 2 * p + 1, 4 * p}) {
      const Schedule schedule = bpipe(p, m);
      const auto plain = build_schedule("1f1b", {.ranks = p, .microbatches = m});
      for (int x = 0; x < p; ++x) {
        SCOPED_TRACE(fmt::format("p {} m {} rank {}", p, m, x));
        const Local local = walk(schedule.rows[static_cast<std::size_t>(x)], x);
        const int raw = std::min(m, p - x);
        EXPECT_LE(local.peak_all, bound);
        if (x < p / 2) {
          EXPECT_EQ(local.peak_own, std::min(raw, bound));
        } else {
          EXPECT_LE(local.foreign_at_ops, std::max(0, x + 1 - bound));
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

TEST(BPipe, TransfersInSeriesCostWhatTheyMust) {
  // Evict and load are in series with the first rank's ops; F = B = W = 1, only stashes take time.
  struct Row {
    int p, m;
    Ticks transfer;  // in tenths
    Ticks added;
  };
  for (const Row& row : {Row{4, 8, 10, 20}, Row{4, 8, 1, 2}, Row{8, 16, 10, 80}, Row{8, 16, 1, 8}}) {
    const Schedule schedule = bpipe(row.p, row.m);
    // Each end of a visit holds up the evictor for one transfer; the acceptor goes on.
    std::vector<std::vector<Ticks>> extra;
    for (int x = 0; x < row.p; ++x) {
      std::vector<Ticks> before;
      Ticks waiting = 0;
      for (const Instr& instr : schedule.rows[static_cast<std::size_t>(x)]) {
        const auto* send = std::get_if<Send>(&instr);
        const auto* recv = std::get_if<Recv>(&instr);
        const Value* stash = send != nullptr ? &send->value : recv != nullptr ? &recv->value : nullptr;
        if (stash != nullptr && stash->stage().value() == x) waiting += row.transfer;
        if (std::holds_alternative<Op>(instr)) {
          before.push_back(waiting);
          waiting = 0;
        }
      }
      extra.push_back(std::move(before));
    }
    // The replay, with the waiting added in front of the ops.
    std::vector<std::vector<Op>> ops;
    for (const ::plait::Row& r : schedule.rows) ops.push_back(ops_of(r));
    std::vector<std::vector<Ticks>> forward_end(ops.size());
    std::vector<std::vector<Ticks>> backward_end(ops.size());
    std::vector<Ticks> clock(ops.size(), 0);
    std::vector<std::size_t> next(ops.size(), 0);
    for (bool progress = true; progress;) {
      progress = false;
      for (std::size_t r = 0; r < ops.size(); ++r) {
        while (next[r] < ops[r].size()) {
          const Op& op = ops[r][next[r]];
          const bool is_forward = op.kind == OpKind::kForward;
          Ticks start = clock[r] + extra[r][next[r]];
          if (is_forward ? r > 0 : r + 1 < ops.size()) {
            const auto& inputs = is_forward ? forward_end[r - 1] : backward_end[r + 1];
            if (inputs.size() <= op.microbatch.index()) break;
            start = std::max(start, inputs[op.microbatch.index()]);
          }
          clock[r] = start + (is_forward ? 10 : 20);
          (is_forward ? forward_end : backward_end)[r].push_back(clock[r]);
          ++next[r];
          progress = true;
        }
      }
    }
    EXPECT_EQ(*std::max_element(clock.begin(), clock.end()) - 30 * (row.m + row.p - 1), row.added)
        << "p " << row.p << " m " << row.m << " transfer " << row.transfer;
  }
}

TEST(BPipe, IsProvedUnderAllTransferRules) {
  for (int p = 2; p <= 16; ++p) {
    for (const int m : {p, 2 * p + 1, 3 * p}) {
      const auto program = lower(bpipe(p, m));
      ASSERT_TRUE(program) << program.error().message;
      for (const TransferRule rule : {TransferRule::kBuffered, TransferRule::kBounded, TransferRule::kRendezvous}) {
        const auto findings = verify(*program, {.transfers = rule});
        EXPECT_TRUE(findings.empty()) << "p " << p << " m " << m << ": " << findings[0].message;
      }
    }
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
