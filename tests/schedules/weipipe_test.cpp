// The "must show" lines of the WeiPipe card that need no execution.

#include "weight_passing.h"
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>

namespace plait {
namespace {

using namespace plait::testing;

ScheduleShape shape_of(int ranks, int rounds) {
  return {.ranks = ranks, .microbatches = ranks * rounds, .rounds = rounds};
}

int modulo(int value, int p) {
  return (value % p + p) % p;
}

/// What a turn of one rank computes and hands on.
struct TurnOfRank {
  std::optional<Op> forward;
  std::optional<Op> backward;
  std::vector<int> sent_weights;
  std::optional<int> sent_gradient;
  std::vector<int> freed;
};

std::vector<std::vector<TurnOfRank>> table_of(const Schedule& schedule) {
  std::vector<std::vector<TurnOfRank>> table;
  for (const Row& row : schedule.rows) {
    table.emplace_back();
    for (const Row& turn : turns_of(row)) {
      TurnOfRank& cell = table.back().emplace_back();
      for (const Instr& instr : turn) {
        if (const Op* op = std::get_if<Op>(&instr)) (op->kind == OpKind::kForward ? cell.forward : cell.backward) = *op;
        if (const Free* free = std::get_if<Free>(&instr)) cell.freed.push_back(free->value.group().value());
        const Send* send = std::get_if<Send>(&instr);
        if (send == nullptr) continue;
        if (send->value.kind() == ValueKind::kWeight) cell.sent_weights.push_back(send->value.group().value());
        if (send->value.kind() == ValueKind::kWeightGrad) cell.sent_gradient = send->value.group().value();
      }
    }
  }
  return table;
}

class IndexRules : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(IndexRules, WorkStandsWhereTheFlowsBringItsShard) {
  const auto [p, rounds] = GetParam();
  const Schedule schedule = built("weipipe", shape_of(p, rounds));
  const auto table = table_of(schedule);
  for (int r = 0; r < p; ++r) {
    const auto& turns = table[static_cast<std::size_t>(r)];
    // The piece behind the last turn holds the last hops.
    ASSERT_EQ(turns.size(), static_cast<std::size_t>((rounds + 2) * p - 1 + 1));
    std::map<std::string, int> kinds;
    for (int t = 0; t < static_cast<int>(turns.size()) - 1; ++t) {
      const TurnOfRank& cell = turns[static_cast<std::size_t>(t)];
      const bool f = t >= r && t < rounds * p + r;
      const bool b = t >= p + r && t < (rounds + 1) * p + r;
      ASSERT_EQ(cell.forward.has_value(), f) << "rank " << r << " turn " << t;
      ASSERT_EQ(cell.backward.has_value(), b) << "rank " << r << " turn " << t;
      if (f) {
        EXPECT_EQ(cell.forward->stage.value(), modulo(t - r, p));
        EXPECT_EQ(cell.forward->microbatch.value(), (t - r) / p * p + r);
      }
      if (b) {
        EXPECT_EQ(cell.backward->stage.value(), modulo(r - 1 - t, p));
        EXPECT_EQ(cell.backward->microbatch.value(), ((t - r) / p - 1) * p + r);
      }
      // Handed on: what the flows say that the rank holds.
      std::vector<int> held;
      if (t + 1 < (rounds + 1) * p) held.push_back(modulo(t - r, p));
      if (t >= p && t + 1 < (rounds + 2) * p - 1) held.push_back(modulo(r - 1 - t, p));
      std::vector<int> sent = cell.sent_weights;
      if (t == 0) sent.erase(sent.begin(), sent.end() - static_cast<std::ptrdiff_t>(held.size()));  // the swap
      EXPECT_EQ(sent, held) << "rank " << r << " turn " << t;
      ++kinds[f && b ? "FB" : f ? "F" : b ? "B" : "idle"];
    }
    EXPECT_EQ(kinds["idle"], p - 1);
    EXPECT_EQ(kinds["F"], p);
    EXPECT_EQ(kinds["FB"], (rounds - 1) * p);
    EXPECT_EQ(kinds["B"], p);
  }
}

TEST_P(IndexRules, GradientsCollectEveryContributionOneHopATurn) {
  const auto [p, rounds] = GetParam();
  const Schedule schedule = built("weipipe", shape_of(p, rounds));
  const auto table = table_of(schedule);
  for (int j = 0; j < p; ++j) {
    int contributions = 0;
    int rank = 0;
    int turn = 2 * p - 1 - j;  // rank 0's first backward of the shard
    int complete = -1;
    for (; contributions < rounds * p; ++turn) {
      const TurnOfRank& cell = table[static_cast<std::size_t>(rank)][static_cast<std::size_t>(turn)];
      ASSERT_TRUE(cell.backward && cell.backward->stage == StageId{j}) << "shard " << j << " turn " << turn;
      ++contributions;
      complete = turn;
      const bool at_home = contributions == rounds * p && rank == (j + 1) % p;
      EXPECT_EQ(cell.sent_gradient == std::optional(j), !at_home);
      if (contributions < rounds * p) rank = (rank + 1) % p;
    }
    EXPECT_EQ(rank, p - 1);
    EXPECT_EQ(complete, rounds * p + 2 * p - 2 - j);
    int hops = 0;
    std::int64_t sends = 0;
    for (const Row& row : schedule.rows)
      for (const Instr& instr : row)
        if (const Send* send = std::get_if<Send>(&instr))
          sends += send->value == Value::weight_grad(GroupId{j}) ? 1 : 0;
    hops = static_cast<int>(sends) - (rounds * p - 1);
    EXPECT_EQ(hops, (j + 2) % p);
  }
}

TEST_P(IndexRules, ProgramsAreProvedUnderAllTransfersAndRingsAreFull) {
  const auto [p, rounds] = GetParam();
  for (const char* name : {"weipipe", "weipipe-naive", "wzb1-reconstructed", "wzb2-reconstructed"}) {
    const Program program = program_of(name, shape_of(p, rounds));
    for (const TransferRule rule : {TransferRule::kBuffered, TransferRule::kBounded, TransferRule::kRendezvous})
      ASSERT_EQ(rules_found(program, rule), std::vector<std::string>{}) << name;
    const auto info = find_schedule(name);
    std::int64_t sends = 0;
    for (const Row& row : program.rows)
      for (const Instr& instr : row) sends += std::holds_alternative<Send>(instr) ? 1 : 0;
    EXPECT_EQ(sends, (*info)->expect(shape_of(p, rounds)).sends) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Grid, IndexRules, ::testing::Combine(::testing::Range(2, 9), ::testing::Range(1, 5)));

// M2 of the card: shard and micro-batch of every worker, then the shards of both flows on workers 0..3.
constexpr const char* kTable =
    "F0(0) | - | - | - | 0 3 2 1 |\n"
    "F1(0) | F0(1) | - | - | 1 0 3 2 |\n"
    "F2(0) | F1(1) | F0(2) | - | 2 1 0 3 |\n"
    "F3(0) | F2(1) | F1(2) | F0(3) | 3 2 1 0 |\n"
    "F0(4)+B3(0) | F3(1) | F2(2) | F1(3) | 0 3 2 1 | 3 0 1 2\n"
    "F1(4)+B2(0) | F0(5)+B3(1) | F3(2) | F2(3) | 1 0 3 2 | 2 3 0 1\n"
    "F2(4)+B1(0) | F1(5)+B2(1) | F0(6)+B3(2) | F3(3) | 2 1 0 3 | 1 2 3 0\n"
    "F3(4)+B0(0) | F2(5)+B1(1) | F1(6)+B2(2) | F0(7)+B3(3) | 3 2 1 0 | 0 1 2 3\n"
    "B3(4) | F3(5)+B0(1) | F2(6)+B1(2) | F1(7)+B2(3) | 0 3 2 1 | 3 0 1 2\n"
    "B2(4) | B3(5) | F3(6)+B0(2) | F2(7)+B1(3) | 1 0 3 2 | 2 3 0 1\n"
    "B1(4) | B2(5) | B3(6) | F3(7)+B0(3) | 2 1 0 3 | 1 2 3 0\n"
    "B0(4) | B1(5) | B2(6) | B3(7) | 3 2 1 0 | 0 1 2 3\n"
    "- | B0(5) | B1(6) | B2(7) | | 3 0 1 2\n"
    "- | - | B0(6) | B1(7) | | 2 3 0 1\n"
    "- | - | - | B0(7) | | 1 2 3 0\n";

/// Shards that the flows hold on a rank before each turn, by following the rows: what came in the turn before.
std::string flows_of(const Schedule& schedule, int turn, int first_turn, int last_turn, bool forward) {
  if (turn < first_turn || turn > last_turn) return "";
  std::string held;
  for (std::size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    const auto turns = turns_of(schedule.rows[rank]);
    const auto came_in = [&](int t) {
      std::vector<int> shards;
      for (const Instr& instr : turns[static_cast<std::size_t>(t)])
        if (const Recv* recv = std::get_if<Recv>(&instr); recv != nullptr && recv->value.kind() == ValueKind::kWeight)
          shards.push_back(recv->value.group().value());
      return shards;
    };
    int shard = 0;
    if (turn == first_turn) {
      // What the rank owns, for the forward flow after the swap.
      for (std::size_t s = 0; s < schedule.layout.stages.size(); ++s)
        if (schedule.layout.stages[s].homes.front().index() == rank) shard = static_cast<int>(s);
      if (forward && came_in(0).size() > 1) shard = came_in(0).front();
    } else {
      const std::vector<int> shards = came_in(turn - 1);
      shard = forward ? shards[turn == 1 && shards.size() > 1 ? 1 : 0] : shards.back();
    }
    held += " " + std::to_string(shard);
  }
  return held;
}

TEST(Weipipe, ReproducesTheTableCellByCell) {
  const Schedule schedule = built("weipipe", shape_of(4, 2));
  const auto table = table_of(schedule);
  std::string printed;
  for (int t = 0; t < 15; ++t) {
    for (int r = 0; r < 4; ++r) {
      const TurnOfRank& cell = table[static_cast<std::size_t>(r)][static_cast<std::size_t>(t)];
      std::string text;
      if (cell.forward) text = fmt::format("F{}({})", cell.forward->stage.value(), cell.forward->microbatch.value());
      if (cell.backward)
        text += fmt::format("{}B{}({})", text.empty() ? "" : "+", cell.backward->stage.value(),
                            cell.backward->microbatch.value());
      printed += (text.empty() ? "-" : text) + " | ";
    }
    printed.pop_back();
    const std::string backward = flows_of(schedule, t, 4, 14, false);
    printed += flows_of(schedule, t, 0, 11, true) + " |" + backward + "\n";
  }
  EXPECT_EQ(printed, kTable);
}

TEST(Weipipe, NaiveTakesTheTurnsOfTheCard) {
  const std::tuple<int, int, std::size_t> cases[] = {{4, 2, 19}, {4, 4, 35}, {8, 4, 71}, {8, 16, 263}};
  for (const auto& [p, rounds, turns] : cases)
    EXPECT_EQ(turns_of(built("weipipe-naive", shape_of(p, rounds)).rows[0]).size() - 1, turns);
}

TEST(Weipipe, LockStepBubblesAreTheCards) {
  struct Case {
    const char* name;
    int ranks;
    int rounds;
    double ratio;
  };
  const Case cases[] = {{"weipipe", 4, 2, 0.2727},       {"weipipe", 4, 4, 0.1579},
                        {"weipipe", 8, 4, 0.1795},       {"weipipe", 8, 16, 0.0519},
                        {"weipipe", 4, 1, 6.0 / 18},     {"weipipe", 8, 1, 14.0 / 38},
                        {"weipipe-naive", 4, 2, 0.2727}, {"weipipe-naive", 4, 4, 0.2381},
                        {"weipipe-naive", 8, 4, 0.2672}, {"weipipe-naive", 8, 16, 0.2366}};
  for (const Case& c : cases) {
    const Program program = program_of(c.name, shape_of(c.ranks, c.rounds));
    const CostModel costs = unit_costs(program.layout);
    EXPECT_NEAR(simulated(program, Turns::kLockStep, costs).bubble_ratio, c.ratio, 5e-5) << c.name;
  }
}

/// The same program with buffers for all that is under way: nothing waits until its receiver has room.
Program with_room_for_all(Program program) {
  for (Row& row : program.rows)
    std::stable_partition(row.begin(), row.end(),
                          [](const Instr& instr) { return !std::holds_alternative<WaitSend>(instr); });
  return program;
}

TEST(Weipipe, WithoutTurnsTheBuffersMakeTheBubble) {
  for (const char* name : {"weipipe", "weipipe-naive"}) {
    for (const auto& [p, rounds] : {std::pair{4, 1}, {4, 2}, {8, 4}}) {
      const Program program = program_of(name, shape_of(p, rounds));
      const CostModel costs = unit_costs(program.layout);
      // Every weight is handed on as soon as it is there, and takes no time.
      EXPECT_EQ(simulated(with_room_for_all(program), Turns::kIgnored, costs).bubble_ratio, 0) << name;
      // With two buffers a flow the last rank cannot run ahead of the first: nearly the lock step.
      const SimResult tied = simulated(program, Turns::kIgnored, costs);
      const SimResult lock_step = simulated(program, Turns::kLockStep, costs);
      EXPECT_LE(tied.makespan, lock_step.makespan) << name;
      EXPECT_GE(tied.makespan, lock_step.makespan - 1) << name;
    }
  }
}

/// A ring written straight from three rules: which shard the two flows hold, and where the backward ring turns.
struct Ring {
  int ranks = 1;
  int rounds = 1;
  std::function<int(int shard)> home;
  std::function<int(int rank, int turn)> forward_shard;
  std::function<int(int rank, int turn)> backward_shard;
  int backward_hop = 1;
  bool forks = false;  ///< the backward flow starts as a copy of the forward one, at turn P - 1
};

Program written(const Ring& ring) {
  const int p = ring.ranks;
  Schedule schedule = built("weipipe", shape_of(p, ring.rounds));
  const auto table = table_of(schedule);
  for (int s = 0; s < p; ++s) {
    schedule.layout.stages[static_cast<std::size_t>(s)].homes = {RankId{ring.home(s)}};
    schedule.layout.groups[static_cast<std::size_t>(s)].homes = {RankId{ring.home(s)}};
  }
  const auto at = [](int rank) { return static_cast<std::size_t>(rank); };
  const auto rank_at = [&](int rank) { return RankId{modulo(rank, p)}; };
  const auto weight = [](int shard) { return Value::weight(GroupId{shard}); };
  const auto gradient = [](int shard) { return Value::weight_grad(GroupId{shard}); };
  std::vector<Row> rows(at(p));
  const int turns = (ring.rounds + 2) * p - 1;
  const auto move = [&](Value value, int from, RankId to) {
    if (to == RankId{from}) return;
    rows[at(from)].push_back(Send{.value = value, .peer = to});
    rows[to.index()].push_back(Recv{.value = value, .peer = RankId{from}});
    rows[at(from)].push_back(WaitSend{.value = value, .peer = to});
  };
  // The gradient ring is that of the consistent version: D_j at rank r in turn t is j = (r - 1 - t) mod P.
  std::vector<bool> born(at(p));
  for (int t = 0; t < turns; ++t) {
    for (int r = 0; r < p; ++r) {
      const auto& cell = table[at(r)][at(t)];
      if (cell.forward) rows[at(r)].push_back(*cell.forward);
      if (!cell.backward) continue;
      rows[at(r)].push_back(*cell.backward);
      const int shard = cell.backward->stage.value();
      if (born[at(shard)]) rows[at(r)].push_back(Add{.group = GroupId{shard}});
      born[at(shard)] = true;
    }
    for (int r = 0; r < p; ++r) {
      const bool forward_goes_on = t + 1 < (ring.rounds + 1) * p;
      const int held = ring.forward_shard(r, t);
      if (forward_goes_on) move(weight(held), r, rank_at(r + 1));
      const int back = ring.backward_shard(r, t);
      const bool backward_goes_on = t >= (ring.forks ? p - 1 : p) && t + 1 < turns;
      // At the fork the rank keeps what it holds for one more turn, as the backward flow's.
      if (backward_goes_on && !(ring.forks && t == p - 1)) move(weight(back), r, rank_at(r + ring.backward_hop));
      if (t > 0 && t < (ring.rounds + 1) * p && !(ring.forks && t == p - 1))
        rows[at(r)].push_back(Free{.value = weight(held)});
      const int first_back = p;
      if (t > first_back || (ring.forks && t == p)) rows[at(r)].push_back(Free{.value = weight(back)});
      const int moving = modulo(r - 1 - t, p);
      if (born[at(moving)]) move(gradient(moving), r, rank_at(r + 1));
    }
    for (Row& row : rows) row.push_back(Turn{});
  }
  // Two more hops, then the final swap to the homes; by then every gradient is at (j + 1) mod P.
  for (int t = turns; t < turns + 1; ++t)
    for (int r = 0; r < p; ++r) move(gradient(modulo(r - 1 - t, p)), r, rank_at(r + 1));
  for (int j = 0; j < p; ++j) {
    move(gradient(j), (j + 1) % p, RankId{ring.home(j)});
    rows[at(ring.home(j))].push_back(Add{.group = GroupId{j}});
  }
  Program program{.layout = std::move(schedule.layout), .rows = std::move(rows)};
  add_steps(program);
  return program;
}

/// The newest public revision: no swap; the backward weights are forked from the forward ring at turn P and turn in reverse.
Ring public_head(int p, int rounds) {
  return Ring{.ranks = p,
              .rounds = rounds,
              .home = [p](int shard) { return modulo(-shard, p); },
              .forward_shard = [p](int r, int t) { return modulo(t - r, p); },
              .backward_shard = [p](int r, int t) { return modulo(-1 - r - t, p); },
              .backward_hop = -1,
              .forks = true};
}

TEST(Weipipe, TheFlawOfThePublicOrderIsCaught) {
  EXPECT_EQ(rules_found(written(public_head(2, 2))), std::vector<std::string>{});
  // Workers 0 and P/2 see the right order. Worker 1 owns the shard it needs first; the first one it lacks:
  const std::tuple<int, int, int> first_lacking[] = {{3, 6, 0}, {4, 6, 2}, {8, 10, 6}};
  for (const auto& [p, turn, shard] : first_lacking) {
    std::set<int> workers;
    std::string of_worker_one;
    const Ring ring = public_head(p, 2);
    // What worker 1 holds there: the forward flow's shard and the reversed backward flow's.
    const std::set<int> held = {ring.forward_shard(1, turn), ring.backward_shard(1, turn)};
    for (const Finding& finding : verify(written(ring))) {
      EXPECT_EQ(finding.rule, "verify.wrong_weights") << finding.message;
      workers.insert(finding.rank->value());
      if (finding.rank == RankId{1} && of_worker_one.empty()) of_worker_one = finding.message;
    }
    std::set<int> wrong;
    for (int r = 0; r < p; ++r)
      if (r != 0 && 2 * r != p) wrong.insert(r);
    EXPECT_EQ(workers, wrong) << p;
    const std::string expected =
        fmt::format("turn {}: expected the weights of group stage.{}, found copies of ", turn, shard);
    EXPECT_THAT(of_worker_one, ::testing::AllOf(::testing::HasSubstr("rank 1,"), ::testing::HasSubstr(expected)));
    const std::string found = of_worker_one.substr(std::min(of_worker_one.find(expected), of_worker_one.size()));
    for (const int other : held)
      EXPECT_THAT(found.substr(std::min(expected.size(), found.size())),
                  ::testing::HasSubstr(fmt::format("stage.{}", other)));
  }
}

TEST(Weipipe, OneSwapTurnsTheOwnersIntoTheForwardLayout) {
  for (int p = 2; p <= 8; ++p) {
    const Schedule schedule = built("weipipe", shape_of(p, 1));
    for (int r = 0; r < p; ++r) {
      const int owned = modulo(r - 1, p);
      EXPECT_EQ(schedule.layout.stages[static_cast<std::size_t>(owned)].homes, std::vector{RankId{r}});
      const int partner = modulo(p + 1 - r, p);
      if (partner == r) {
        EXPECT_EQ(owned, modulo(p - r, p));
        continue;
      }
      const Row& row = schedule.rows[static_cast<std::size_t>(r)];
      const Instr out = Send{.value = Value::weight(GroupId{owned}), .peer = RankId{partner}};
      const Instr in = Recv{.value = Value::weight(GroupId{modulo(p - r, p)}), .peer = RankId{partner}};
      EXPECT_TRUE(std::count(row.begin(), row.end(), out) > 0 && std::count(row.begin(), row.end(), in) > 0) << r;
    }
  }
}

TEST(Weipipe, WithoutTheSwapTheVerifierRefuses) {
  for (const int p : {3, 4, 8}) {
    Ring ring = public_head(p, 2);
    ring.forks = false;
    ring.backward_hop = 1;
    ring.home = [p](int shard) { return (shard + 1) % p; };
    ring.backward_shard = [p](int r, int t) { return modulo(r - 1 - t, p); };
    // The forward ring starts with what the ranks own.
    ring.forward_shard = [p](int r, int t) { return modulo(r - 1 - t, p); };
    const auto found = verify(written(ring));
    ASSERT_FALSE(found.empty());
    // Before anything came, a rank has only its own weights; from then on it has the wrong copies.
    int wrong = 0;
    for (const Finding& finding : found) {
      EXPECT_TRUE(finding.rule == "verify.wrong_weights" || finding.rule == "verify.weights_not_here")
          << finding.message;
      wrong += finding.rule == "verify.wrong_weights" ? 1 : 0;
    }
    EXPECT_GT(wrong, 0) << p;
  }
}

TEST(Weipipe, ASteadyTurnMovesThreeShardsPerRank) {
  for (const int p : {4, 6}) {
    const auto table = table_of(built("weipipe", shape_of(p, 3)));
    for (int r = 0; r < p; ++r) {
      for (int t = 3 * p; t < 4 * p - 1; ++t) {
        const TurnOfRank& cell = table[static_cast<std::size_t>(r)][static_cast<std::size_t>(t)];
        EXPECT_EQ(cell.sent_weights.size() + (cell.sent_gradient ? 1U : 0U), 3U) << r << " " << t;
      }
    }
  }
}

TEST(Weipipe, HoldsSixTravellingShardsAndOneMicrobatchWhateverTheRounds) {
  for (const int p : {2, 4, 8}) {
    for (const int rounds : {2, 3, 5}) {
      const Program program = program_of("weipipe", shape_of(p, rounds));
      const auto weights = shards_held(program, Bytes{1}, Bytes{0});
      const auto gradients = shards_held(program, Bytes{0}, Bytes{1});
      // Two of each weight flow, beside the rank's own. Gradients: two travel, the one of this turn and the one whose receive
      // is posted. D_{P-1} is complete on worker P-1 in turn RP + P - 1 and at home on rank 0 one hop later, where it stays;
      // D_{P-3} to D_0 are complete on worker P-1 from turn RP + P + 1 on and reach their homes (j + 2 hops) past rank 0. So
      // the home of a shard that is complete early holds it beside the two: 2 + 1.
      for (const std::int64_t held : weights) EXPECT_EQ(held, 1 + 4) << p;
      for (const std::int64_t held : gradients) EXPECT_LE(held, 3) << p;
      EXPECT_GE(*std::max_element(gradients.begin(), gradients.end()), 2) << p;
      for (const RankFigures& rank : simulated(program, Turns::kLockStep, unit_costs(program.layout)).ranks)
        EXPECT_EQ(rank.peak_stashes, p);
    }
  }
}

TEST(Weipipe, StepsStandOnTheOwnerBehindItsGradient) {
  for (const int p : {2, 3, 4, 7}) {
    const Program program = program_of("weipipe", shape_of(p, 2));
    for (int j = 0; j < p; ++j) {
      const Row& row = program.rows[static_cast<std::size_t>((j + 1) % p)];
      const Instr step = Step{.group = GroupId{j}};
      const auto stands = std::find(row.begin(), row.end(), step);
      ASSERT_NE(stands, row.end());
      EXPECT_EQ(std::count(stands, row.end(), Instr(Add{.group = GroupId{j}})), 0);
    }
  }
}

TEST(Weipipe, SplitBackwardsFillTheEndAndCostOneMoreMicrobatch) {
  for (const int p : {2, 4, 8}) {
    const auto shape = shape_of(p, 3);
    const Schedule first = built("wzb1-reconstructed", shape);
    // The idle turns of a rank at the end hold one W each, the rest of its W stand with their B.
    for (int r = 0; r < p; ++r) {
      const auto turns = turns_of(first.rows[static_cast<std::size_t>(r)]);
      for (int t = 4 * p + r; t < 5 * p - 1; ++t) {
        int ops = 0;
        for (const Instr& instr : turns[static_cast<std::size_t>(t)])
          if (const Op* op = std::get_if<Op>(&instr)) {
            EXPECT_EQ(op->kind, OpKind::kBackwardWeight);
            ++ops;
          }
        EXPECT_EQ(ops, 1) << "rank " << r << " turn " << t;
      }
    }
    for (const RankFigures& rank :
         simulated(program_of("wzb2-reconstructed", shape), Turns::kIgnored, unit_costs(first.layout)).ranks)
      EXPECT_EQ(rank.peak_stashes, 2 * p);
  }
}

TEST(Weipipe, RefusalsNameTheNumbers) {
  const auto info = find_schedule("weipipe");
  const auto refused = [&](const ScheduleShape& shape) { return (*info)->supports(shape).error(); };
  EXPECT_EQ(refused({.ranks = 4, .microbatches = 6}).rule, "schedule.microbatches");
  EXPECT_EQ(refused({.ranks = 4, .microbatches = 8, .rounds = 3}).rule, "schedule.rounds");
  EXPECT_EQ(refused({.ranks = 4, .microbatches = 8, .layers = 6}).rule, "schedule.layers");
  EXPECT_EQ(refused({.ranks = 4, .microbatches = 8, .groups = 2}).rule, "schedule.flag");
  EXPECT_EQ(refused({.ranks = 4, .microbatches = 8, .prefetch = 1}).rule, "schedule.flag");
}

}  // namespace
}  // namespace plait
