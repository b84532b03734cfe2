// The "must show" lines of the TawPipe card that need no execution.

#include "plait/sim/cluster.h"

#include "weight_passing.h"

#include <algorithm>
#include <map>
#include <set>

namespace plait {
namespace {

using namespace plait::testing;

ScheduleShape shape_of(int ranks, int groups, int rounds) {
  return {.ranks = ranks, .microbatches = ranks * rounds, .groups = groups, .rounds = rounds};
}

struct Sizes {
  int ranks;
  int groups;
};
constexpr Sizes kGrid[] = {{2, 1}, {2, 2}, {4, 1}, {4, 2}, {4, 4}, {6, 2}, {6, 3}, {8, 2}, {8, 4}, {12, 4}, {24, 3}};

TEST(Tawpipe, OwnersAndStagingRanksAreTheCards) {
  for (const Sizes& sizes : kGrid) {
    const int per_group = sizes.ranks / sizes.groups;
    const Schedule schedule = built("tawpipe", shape_of(sizes.ranks, sizes.groups, 1));
    std::set<int> owners;
    std::vector<int> owner_of;
    for (int j = 0; j < sizes.ranks; ++j) {
      const int owner = schedule.layout.stages[static_cast<std::size_t>(j)].homes.front().value();
      EXPECT_EQ(owner, j % sizes.groups * per_group + j / sizes.groups);
      owners.insert(owner);
      owner_of.push_back(owner);
    }
    EXPECT_EQ(owners.size(), static_cast<std::size_t>(sizes.ranks));
    // Every broadcast's root is in its group, the owner where the owner is, and has the owner's place in its group.
    for (int rank = 0; rank < sizes.ranks; ++rank) {
      for (const Instr& instr : schedule.rows[static_cast<std::size_t>(rank)]) {
        const Collective* collective = std::get_if<Collective>(&instr);
        if (collective == nullptr) continue;
        const int owner = owner_of[collective->value.group().index()];
        const int root = collective->root.value();
        EXPECT_EQ(root / per_group, rank / per_group);
        EXPECT_EQ(root % per_group, owner % per_group);
        if (owner / per_group == rank / per_group) {
          EXPECT_EQ(root, owner);
        }
      }
    }
  }
}

/// "F0", "-"; transfers as the card writes them, each group's weights before its gradients.
std::string step_line(const Schedule& schedule, int step, int per_group) {
  const auto group_of = [&](int rank) { return rank / per_group; };
  const int num_groups = schedule.layout.num_ranks / per_group;
  std::string ops;
  std::string moves;
  for (int g = 0; g < num_groups; ++g) {
    std::string op = "-";
    const Row turn =
        turns_of(schedule.rows[static_cast<std::size_t>(g * per_group)])[static_cast<std::size_t>(step + 1)];
    for (const Instr& instr : turn)
      if (const Op* what = std::get_if<Op>(&instr))
        op = fmt::format("{}{}", what->kind == OpKind::kForward ? "F" : "B", what->stage.value());
    ops += op + " | ";
    std::vector<std::string> weights;
    std::vector<std::string> gradients;
    for (int rank = 0; rank < schedule.layout.num_ranks; ++rank) {
      const Row here = turns_of(schedule.rows[static_cast<std::size_t>(rank)])[static_cast<std::size_t>(step + 1)];
      for (const Instr& instr : here) {
        if (const Collective* c = std::get_if<Collective>(&instr); c != nullptr && rank == g * per_group) {
          const int j = c->value.group().value();
          if (c->kind == CollectiveKind::kBroadcast)
            weights.push_back(fmt::format("bc W{} g{} (root {})", j, g, c->root.value()));
          else
            gradients.insert(gradients.begin(), fmt::format("red D{} g{}->{}", j, g, c->root.value()));
        }
        const Send* send = std::get_if<Send>(&instr);
        if (send == nullptr) continue;
        const bool weight = send->value.kind() == ValueKind::kWeight;
        if (group_of(weight ? send->peer.value() : rank) != g) continue;
        auto& list = weight ? weights : gradients;
        const std::string text =
            fmt::format("p2p {}{} {}->{}", weight ? "W" : "D", send->value.group().value(), rank, send->peer.value());
        if (weight)
          list.insert(list.begin(), text);
        else
          list.push_back(text);
      }
    }
    for (const auto* list : {&weights, &gradients})
      for (const std::string& text : *list) moves += (moves.empty() ? "" : "; ") + text;
  }
  return fmt::format("{} | {}{}", step, ops, moves);
}

TEST(Tawpipe, ReproducesTheStepTable) {
  const Schedule schedule = built("tawpipe", shape_of(4, 2, 2));
  const std::map<int, std::string> expected = {
      {-1, "- | - | bc W0 g0 (root 0)"},
      {0, "F0 | - | p2p W1 2->0; bc W1 g0 (root 0); p2p W0 0->2; bc W0 g1 (root 2)"},
      {1, "F1 | F0 | bc W2 g0 (root 1); bc W1 g1 (root 2)"},
      {2, "F2 | F1 | p2p W3 3->1; bc W3 g0 (root 1); p2p W2 1->3; bc W2 g1 (root 3)"},
      {3, "F3 | F2 | bc W3 g1 (root 3)"},
      {4, "B3 | F3 | bc W2 g0 (root 1)"},
      {5, "B2 | B3 | p2p W1 2->0; bc W1 g0 (root 0); red D3 g0->1; p2p D3 1->3; p2p W2 1->3; bc W2 g1 (root 3)"},
      {6, "B1 | B2 | bc W0 g0 (root 0); red D2 g0->1; bc W1 g1 (root 2); red D3 g1->3"},
      {7, "B0 | B1 | red D1 g0->0; p2p D1 0->2; p2p W0 0->2; bc W0 g1 (root 2); red D2 g1->3; p2p D2 3->1"},
      {8, "F0 | B0 | p2p W1 2->0; bc W1 g0 (root 0); red D0 g0->0; red D1 g1->2"},
      {9, "F1 | F0 | bc W2 g0 (root 1); bc W1 g1 (root 2); red D0 g1->2; p2p D0 2->0"},
      {16, "- | B0 | red D0 g0->0; red D1 g1->2"},
      {17, "- | - | red D0 g1->2; p2p D0 2->0"}};
  for (const auto& [step, line] : expected) EXPECT_EQ(step_line(schedule, step, 2), fmt::format("{} | {}", step, line));
  for (int step = 10; step <= 15; ++step) {
    const std::string line = step_line(schedule, step, 2);
    EXPECT_EQ(line.substr(line.find('|')), "| " + expected.at(step - 8)) << step;
  }
  EXPECT_EQ(turns_of(schedule.rows[0]).size() - 1, 19U);
}

struct Counts {
  int ranks;
  int groups;
  int rounds;
  int weights;
  int gradients;
  int broadcasts;
  int reduces;
};
constexpr Counts kCounts[] = {{2, 1, 1, 0, 0, 3, 2},      {2, 2, 1, 3, 2, 6, 4},        {4, 1, 2, 0, 0, 13, 8},
                              {4, 2, 2, 13, 8, 26, 16},   {4, 4, 2, 39, 24, 52, 32},    {6, 2, 2, 21, 12, 42, 24},
                              {6, 3, 3, 62, 36, 93, 54},  {8, 2, 4, 57, 32, 114, 64},   {8, 4, 2, 87, 48, 116, 64},
                              {12, 4, 1, 69, 36, 92, 48}, {24, 3, 2, 186, 96, 279, 144}};

TEST(Tawpipe, CountsAreTheCards) {
  for (const Counts& c : kCounts) {
    const Program program = program_of("tawpipe", shape_of(c.ranks, c.groups, c.rounds));
    Counts found{c.ranks, c.groups, c.rounds, 0, 0, 0, 0};
    for (std::size_t rank = 0; rank < program.rows.size(); ++rank) {
      for (const Instr& instr : program.rows[rank]) {
        if (const Send* send = std::get_if<Send>(&instr)) {
          ++(send->value.kind() == ValueKind::kWeight ? found.weights : found.gradients);
          // Only between groups.
          const int per_group = c.ranks / c.groups;
          EXPECT_NE(static_cast<int>(rank) / per_group, send->peer.value() / per_group);
        }
        const Collective* collective = std::get_if<Collective>(&instr);
        if (collective == nullptr || collective->root.index() != rank) continue;
        if (collective->kind == CollectiveKind::kBroadcast) ++found.broadcasts;
        if (collective->kind == CollectiveKind::kReduce) ++found.reduces;
      }
    }
    EXPECT_EQ(std::tie(found.weights, found.gradients, found.broadcasts, found.reduces),
              std::tie(c.weights, c.gradients, c.broadcasts, c.reduces))
        << c.ranks << " " << c.groups;
    EXPECT_EQ((*find_schedule("tawpipe"))->expect(shape_of(c.ranks, c.groups, c.rounds)).sends,
              c.weights + c.gradients);
  }
}

TEST(Tawpipe, ProgramsAreProvedUnderAllTransfers) {
  // Residency, receive before add, and N contributions per gradient: a program with a finding is refused.
  for (const Sizes& sizes : kGrid)
    for (const int rounds : {1, 2})
      for (const TransferRule rule : {TransferRule::kBuffered, TransferRule::kBounded, TransferRule::kRendezvous})
        ASSERT_EQ(rules_found(program_of("tawpipe", shape_of(sizes.ranks, sizes.groups, rounds)), rule),
                  std::vector<std::string>{})
            << sizes.ranks << " " << sizes.groups;
}

TEST(Tawpipe, AGroupComputesTheShardThatItsLastBroadcastLeft) {
  for (const Sizes& sizes : kGrid) {
    const Schedule schedule = built("tawpipe", shape_of(sizes.ranks, sizes.groups, 2));
    for (const Row& row : schedule.rows) {
      int resident = -1;
      int next = -1;
      for (const Instr& instr : row) {
        if (const Collective* c = std::get_if<Collective>(&instr);
            c != nullptr && c->kind == CollectiveKind::kBroadcast)
          next = c->value.group().value();
        if (const Op* op = std::get_if<Op>(&instr)) {
          EXPECT_EQ(op->stage.value(), resident);
        }
        if (std::holds_alternative<Turn>(instr)) resident = next;
      }
    }
  }
}

TEST(Tawpipe, LockStepAndPublishedBubbles) {
  const std::tuple<int, int, int> cases[] = {{4, 2, 2}, {8, 2, 8}, {6, 3, 2}, {8, 4, 2}, {24, 3, 4}, {24, 3, 64}};
  for (const auto& [p, d, rounds] : cases) {
    const Program program = program_of("tawpipe", shape_of(p, d, rounds));
    const SimResult result = simulated(program, Turns::kLockStep, unit_costs(program.layout));
    EXPECT_EQ(result.makespan, 3 * p * rounds + (d - 1) * (rounds + 1)) << p << " " << d;
    for (const RankFigures& rank : result.ranks) EXPECT_EQ(result.makespan - rank.busy, (d - 1) * (rounds + 1));
    if (p == 24 && rounds == 64) {
      EXPECT_NEAR(result.bubble_ratio, 0.02744, 5e-6);
    }
    if (d == 2) {
      EXPECT_NEAR(result.bubble_ratio,
                  *(*find_schedule("tawpipe"))->expect(shape_of(p, d, rounds)).published_bubble_ratio, 1e-12);
    }
  }
  const auto published = [](int p, int d, int n) {
    return *(*find_schedule("tawpipe"))->expect({.ranks = p, .microbatches = n, .groups = d}).published_bubble_ratio;
  };
  EXPECT_NEAR(published(4, 2, 8), 1.0 / 9, 1e-12);
  EXPECT_NEAR(published(8, 2, 64), 0.0448, 5e-5);
  EXPECT_NEAR(published(24, 3, 1536), 0.01412, 5e-6);
}

TEST(Tawpipe, BytesBetweenNodesAreTheMessagesOfTheCardTimesTheShard) {
  constexpr std::int64_t kShard = 1000;
  for (const Counts& c : kCounts) {
    const Program program = program_of("tawpipe", shape_of(c.ranks, c.groups, c.rounds));
    CostModel costs = unit_costs(program.layout);
    for (GroupCost& group : costs.groups) group.weight = group.gradient = Bytes{kShard};
    const SimResult result = simulated(program, Turns::kIgnored, costs);
    // Only messages between groups are point to point.
    EXPECT_EQ(result.transfers.bytes, kShard * (c.weights + c.gradients));
  }
  // 24 H^2 elements per layer and step: one weight in, one gradient out.
  const Program program = program_of("tawpipe", shape_of(4, 2, 3));
  for (const Row& row : program.rows) {
    int broadcasts = 0;
    int reduces = 0;
    for (const Instr& instr : row) {
      const Collective* c = std::get_if<Collective>(&instr);
      if (c == nullptr) continue;
      broadcasts += c->kind == CollectiveKind::kBroadcast ? 1 : 0;
      reduces += c->kind == CollectiveKind::kReduce ? 1 : 0;
    }
    EXPECT_EQ(broadcasts, 2 * 3 * 3 + 1);
    EXPECT_EQ(reduces, 4 * 3);
  }
}

TEST(Tawpipe, HoldsThreeWeightsAndOneMicrobatchWhateverTheRounds) {
  for (const Sizes& sizes : kGrid) {
    if (sizes.ranks < 6) continue;
    for (const int rounds : {1, 2, 4}) {
      const Program program = program_of("tawpipe", shape_of(sizes.ranks, sizes.groups, rounds));
      // The owner's own, the one of this step and the one of the next.
      const auto weights = shards_held(program, Bytes{1}, Bytes{0});
      EXPECT_EQ(*std::max_element(weights.begin(), weights.end()), 3);
      // A rank holds its accumulator (1), the D that this step's backward writes (2), and the D of the step before, which is
      // reduced under it and may not be written (3). What is sent home leaves at the end of a step and is waited for in the
      // next; what is received is posted at the end of a step and added in the next: at most one of each at a time. Rank k
      // of group g reduces shard kD + x at step T - kD - x + g (B descends, T as for group 0 and shard 0): it sends those of
      // x != g at T - kD - x + g and receives shard kD + g from group g' at T - kD - g + g'. With D = 2 the two are
      // |2g - x - g'| = 2 steps apart, so only one of the buffers is in use (4); with D >= 3 a group in the middle has
      // x = 2g - g', both at once (5). With D = 1 nothing is sent (3). The card's 3 leaves the overlap of reduction and
      // backward out.
      const auto gradients = shards_held(program, Bytes{0}, Bytes{1});
      EXPECT_EQ(*std::max_element(gradients.begin(), gradients.end()), std::min(3 + sizes.groups - 1, 5))
          << sizes.ranks << " " << sizes.groups << " " << rounds;
      for (const RankFigures& rank : simulated(program, Turns::kLockStep, unit_costs(program.layout)).ranks)
        EXPECT_EQ(rank.peak_stashes, sizes.ranks);
    }
  }
}

TEST(Tawpipe, TransfersHideUnderAStepThatIsLongEnough) {
  // Two nodes; a step of 1000 ticks hides the message between them and the broadcast behind it.
  const Program program = program_of("tawpipe", shape_of(8, 2, 3));
  CostModel costs = unit_costs(program.layout);
  for (OpCost& op : costs.ops) op.ticks *= 1000;
  for (GroupCost& group : costs.groups) group.weight = group.gradient = Bytes{100};
  costs.cluster = make_cluster(8, 4, Link{.latency_ticks = 1, .bytes_per_second = 10},
                               Link{.latency_ticks = 5, .bytes_per_second = 1}, 1);
  const SimResult result = simulated(program, Turns::kIgnored, costs);
  for (const RankFigures& rank : result.ranks) EXPECT_LT(rank.exposed_transfer, 1000);
}

TEST(Tawpipe, WithoutPrefetchTheSameMessagesComeWithTheStepThatNeedsThem) {
  for (const Counts& c : kCounts) {
    ScheduleShape shape = shape_of(c.ranks, c.groups, c.rounds);
    shape.prefetch = 0;
    const Program program = program_of("tawpipe", shape);
    for (const TransferRule rule : {TransferRule::kBuffered, TransferRule::kBounded, TransferRule::kRendezvous})
      ASSERT_EQ(rules_found(program, rule), std::vector<std::string>{}) << c.ranks << " " << c.groups;
    int sends = 0;
    for (std::size_t rank = 0; rank < program.rows.size(); ++rank) {
      for (const Row& turn : turns_of(program.rows[rank])) {
        int broadcast = -1;
        for (const Instr& instr : turn) {
          sends += std::holds_alternative<Send>(instr) ? 1 : 0;
          if (const Collective* collective = std::get_if<Collective>(&instr);
              collective != nullptr && collective->kind == CollectiveKind::kBroadcast)
            broadcast = collective->value.group().value();
          if (const Op* op = std::get_if<Op>(&instr); op != nullptr && broadcast >= 0) {
            EXPECT_EQ(op->stage.value(), broadcast);
          }
        }
      }
    }
    EXPECT_EQ(sends, c.weights + c.gradients) << c.ranks << " " << c.groups;
    // The owner's own, and this step's.
    const auto weights = shards_held(program, Bytes{1}, Bytes{0});
    EXPECT_EQ(*std::max_element(weights.begin(), weights.end()), 2) << c.ranks << " " << c.groups;
  }
}

TEST(Tawpipe, RefusalsNameTheNumbers) {
  const auto refused = [&](const ScheduleShape& shape) { return (*find_schedule("tawpipe"))->supports(shape).error(); };
  const Error groups = refused({.ranks = 8, .microbatches = 8, .groups = 3});
  EXPECT_EQ(groups.rule, "schedule.groups");
  EXPECT_NE(groups.message.find("--groups 3 and --ranks 8"), std::string::npos) << groups.message;
  const Error microbatches = refused({.ranks = 4, .microbatches = 6, .groups = 2});
  EXPECT_EQ(microbatches.rule, "schedule.microbatches");
  EXPECT_NE(microbatches.message.find("--microbatches 6 and --ranks 4"), std::string::npos) << microbatches.message;
  EXPECT_EQ(refused({.ranks = 4, .microbatches = 8, .groups = 2, .prefetch = 2}).message,
            "tawpipe: fetches the weights of one step ahead, or none, got --prefetch 2; use 0 or 1");
}

// --- what else keeps its micro-batches where they are ---

TEST(DataParallel, CollectivesAreCounted) {
  struct Case {
    const char* name;
    int rounds;
    int gathers;
    int scatters;
    int all_reduces;  // the norm's among them
  };
  constexpr int kUnits = 4;
  for (const Case& c :
       {Case{"fsdp", 1, 2 * kUnits - 1, kUnits, 1}, Case{"fsdp", 3, 3 * (2 * kUnits - 2) + 1, 3 * kUnits, 1},
        Case{"zero1", 3, kUnits, kUnits, 1}, Case{"ddp", 3, 0, 0, kUnits + 1}}) {
    const Program program = program_of(c.name, {.ranks = kUnits, .microbatches = kUnits * c.rounds});
    for (const TransferRule rule : {TransferRule::kBuffered, TransferRule::kBounded, TransferRule::kRendezvous})
      ASSERT_EQ(rules_found(program, rule), std::vector<std::string>{}) << c.name;
    for (const Row& row : program.rows) {
      std::map<CollectiveKind, int> found;
      for (const Instr& instr : row)
        if (const Collective* collective = std::get_if<Collective>(&instr)) ++found[collective->kind];
      EXPECT_EQ(found[CollectiveKind::kAllGather], c.gathers) << c.name;
      EXPECT_EQ(found[CollectiveKind::kReduceScatter], c.scatters) << c.name;
      EXPECT_EQ(found[CollectiveKind::kAllReduce], c.all_reduces) << c.name;
    }
  }
}

TEST(DataParallel, PrefetchAndReshardChooseWhatIsGathered) {
  const auto gathers = [](std::optional<int> prefetch, Reshard reshard) {
    const Program program =
        program_of("fsdp", {.ranks = 2, .microbatches = 4, .chunks = 3, .prefetch = prefetch, .reshard = reshard});
    EXPECT_EQ(rules_found(program), std::vector<std::string>{});
    return std::count_if(program.rows[0].begin(), program.rows[0].end(), [](const Instr& instr) {
      const Collective* collective = std::get_if<Collective>(&instr);
      return collective != nullptr && collective->kind == CollectiveKind::kAllGather;
    });
  };
  // Six units, two rounds.
  EXPECT_EQ(gathers(0, Reshard::kAfterForward), 24);
  EXPECT_EQ(gathers({}, Reshard::kAfterForward), 2 * 10 + 1);
  EXPECT_EQ(gathers(3, Reshard::kAfterForward), 2 * 8 + 2);
  EXPECT_EQ(gathers({}, Reshard::kAfterBackward), 6 + 5);
}

}  // namespace
}  // namespace plait
