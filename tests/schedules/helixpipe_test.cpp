#include "plait/ir/lower.h"
#include "plait/schedules/common.h"
#include "plait/verify/verify.h"

#include "replay.h"
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

// Card of HelixPipe: orders and start times of the worked examples, counts, refusals.
namespace plait {
namespace {

/// As the card prints them: A attention of a layer, P module; `>k` the result leaves for rank k; `@t` start.
struct Example {
  const char* name;
  int ranks, layers, folds, microbatches;
  std::vector<std::string> rows;
};

const std::vector<Example> kExamples = {
    {"a",
     4,
     8,
     1,
     4,
     {"P0.0@0 P0.1@0.5 P0.2@1 P0.3@1.5 A1.3@2 A2.2@7.5 A3.1@11.5 A4.0@15.5 P4.0@19.5 P4.1@20.5 "
      "P4.2@21.5 P4.3@22.5 A5.3@23.5 A6.2@27.5 A7.1@31.5 A8.0@35.5 P8.0@39.5 P8.1@40.5 P8.2@41.5 "
      "P8.3@42.5",
      "A1.0@0.5 P1.0@4.5 P1.1@5.5 P1.2@6.5 P1.3@7.5 A2.3@8.5 A3.2@12.5 A4.1@16.5 A5.0@20.5 P5.0@24.5 "
      "P5.1@25.5 P5.2@26.5 P5.3@27.5 A6.3@28.5 A7.2@32.5 A8.1@36.5",
      "A1.1@1 A2.0@5.5 P2.0@9.5 P2.1@10.5 P2.2@11.5 P2.3@12.5 A3.3@13.5 A4.2@17.5 A5.1@21.5 A6.0@25.5 "
      "P6.0@29.5 P6.1@30.5 P6.2@31.5 P6.3@32.5 A7.3@33.5 A8.2@37.5",
      "A1.2@1.5 A2.1@6.5 A3.0@10.5 P3.0@14.5 P3.1@15.5 P3.2@16.5 P3.3@17.5 A4.3@18.5 A5.2@22.5 "
      "A6.1@26.5 A7.0@30.5 P7.0@34.5 P7.1@35.5 P7.2@36.5 P7.3@37.5 A8.3@38.5"}},
    {"b",
     4,
     4,
     2,
     8,
     {"P0.0>1 P0.1>1 P0.2>2 P0.3>2 P0.4>3 P0.5>3 P0.6 A1.6>1 P0.7 A1.7>1 A2.4>2 A2.5>2 A3.2>3 A3.3>3 "
      "A4.0 P4.0 A4.1 P4.1 P4.2 P4.3 P4.4 P4.5 P4.6 P4.7",
      "A1.0 P1.0>2 A1.1 P1.1>2 P1.2>3 P1.3>3 P1.4>0 P1.5>0 P1.6 A2.6>2 P1.7 A2.7>2 A3.4>3 A3.5>3 "
      "A4.2>0 A4.3>0",
      "A1.2>1 A1.3>1 A2.0 P2.0>3 A2.1 P2.1>3 P2.2>0 P2.3>0 P2.4>1 P2.5>1 P2.6 A3.6>3 P2.7 A3.7>3 "
      "A4.4>0 A4.5>0",
      "A1.4>1 A1.5>1 A2.2>2 A2.3>2 A3.0 P3.0>0 A3.1 P3.1>0 P3.2>1 P3.3>1 P3.4>2 P3.5>2 P3.6 A4.6>0 "
      "P3.7 A4.7>0"}},
    {"c",
     4,
     8,
     2,
     8,
     {"P0.0@0 P0.1@0.5 P0.2@1 P0.3@1.5 P0.4@2 P0.5@2.5 P0.6@3 A1.6@3.5 P0.7@7.5 A1.7@8 A2.4@13.5 "
      "A2.5@17.5 A3.2@21.5 A3.3@25.5 A4.0@29.5 P4.0@33.5 A4.1@34.5 P4.1@38.5 P4.2@39.5 P4.3@40.5 "
      "P4.4@41.5 P4.5@42.5 P4.6@43.5 A5.6@44.5 P4.7@48.5 A5.7@49.5 A6.4@53.5 A6.5@57.5 A7.2@61.5 "
      "A7.3@65.5 A8.0@69.5 P8.0@73.5 A8.1@74 P8.1@78 P8.2@78.5 P8.3@80.5 P8.4@81 P8.5@81.5 P8.6@82 "
      "P8.7@83.5",
      "A1.0@0.5 P1.0@4.5 A1.1@5.5 P1.1@9.5 P1.2@10.5 P1.3@11.5 P1.4@12.5 P1.5@13.5 P1.6@14.5 A2.6@15.5 "
      "P1.7@19.5 A2.7@20.5 A3.4@24.5 A3.5@28.5 A4.2@32.5 A4.3@36.5 A5.0@40.5 P5.0@44.5 A5.1@45.5 "
      "P5.1@49.5 P5.2@50.5 P5.3@51.5 P5.4@52.5 P5.5@53.5 P5.6@54.5 A6.6@55.5 P5.7@59.5 A6.7@60.5 "
      "A7.4@64.5 A7.5@68.5 A8.2@72.5 A8.3@76.5",
      "A1.2@1.5 A1.3@5.5 A2.0@9.5 P2.0@13.5 A2.1@14.5 P2.1@18.5 P2.2@19.5 P2.3@20.5 P2.4@21.5 "
      "P2.5@22.5 P2.6@23.5 A3.6@24.5 P2.7@28.5 A3.7@29.5 A4.4@33.5 A4.5@37.5 A5.2@41.5 A5.3@45.5 "
      "A6.0@49.5 P6.0@53.5 A6.1@54.5 P6.1@58.5 P6.2@59.5 P6.3@60.5 P6.4@61.5 P6.5@62.5 P6.6@63.5 "
      "A7.6@64.5 P6.7@68.5 A7.7@69.5 A8.4@73.5 A8.5@77.5",
      "A1.4@2.5 A1.5@6.5 A2.2@11.5 A2.3@15.5 A3.0@19.5 P3.0@23.5 A3.1@24.5 P3.1@28.5 P3.2@29.5 "
      "P3.3@30.5 P3.4@31.5 P3.5@32.5 P3.6@33.5 A4.6@34.5 P3.7@38.5 A4.7@39.5 A5.4@43.5 A5.5@47.5 "
      "A6.2@51.5 A6.3@55.5 A7.0@59.5 P7.0@63.5 A7.1@64.5 P7.1@68.5 P7.2@69.5 P7.3@70.5 P7.4@71.5 "
      "P7.5@72.5 P7.6@73.5 A8.6@74.5 P7.7@78.5 A8.7@79.5"}},
    {"d",
     2,
     2,
     1,
     4,
     {"P0.0>1@0 P0.1@0.5 A1.1>1@1 A2.0@5.5 P2.0@9.5 P0.2>1@10 P2.1@10.5 P0.3@11 A1.3>1@11.5 A2.2@15.5 "
      "P2.2@19.5 P2.3@20.5",
      "A1.0@0.5 P1.0>0@4.5 P1.1@5.5 A2.1>0@6.5 A1.2@10.5 P1.2>0@14.5 P1.3@15.5 A2.3>0@16.5"}},
    {"e",
     2,
     4,
     2,
     4,
     {"P0.0>1@0 P0.1>1@0.5 P0.2@1 A1.2>1@1.5 P0.3@5.5 A1.3>1@6 A2.0@10 P2.0>1@14 A2.1@15 P2.1>1@19 "
      "P2.2@20 A3.2>1@21 P2.3@25 A3.3>1@26 A4.0@30 P4.0@34 A4.1@34.5 P4.1@38.5 P4.2@39 P4.3@40.5",
      "A1.0@0.5 P1.0>0@4.5 A1.1@5.5 P1.1>0@9.5 P1.2@10.5 A2.2>0@11.5 P1.3@15.5 A2.3>0@16.5 A3.0@20.5 "
      "P3.0>0@24.5 A3.1@25.5 P3.1>0@29.5 P3.2@30.5 A4.2>0@31.5 P3.3@35.5 A4.3>0@36.5"}},
};

Schedule build_helixpipe(int ranks, int layers, int folds, int microbatches) {
  return build_schedule("helixpipe", {.ranks = ranks, .microbatches = microbatches, .layers = layers, .folds = folds})
      .value();
}

std::vector<Op> ops_of_row(const Row& row) {
  std::vector<Op> ops;
  for (const Instr& instr : row) ops.push_back(std::get<Op>(instr));
  return ops;
}

std::string card_name(const Op& op) {
  const int stage = op.stage.value();
  return fmt::format("{}{}.{}", stage % 2 == 0 ? 'P' : 'A', (stage + 1) / 2, op.microbatch.value());
}

/// Start times of the forwards with pre = post = 0.5 and attn = 4, each op after the one before it and its input.
std::vector<std::vector<double>> forward_starts(const Schedule& schedule) {
  std::map<std::pair<int, int>, double> done;
  std::vector<std::vector<double>> starts(schedule.rows.size());
  std::vector<double> clock(schedule.rows.size(), 0);
  const int last = schedule.layout.num_stages() - 1;
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t rank = 0; rank < schedule.rows.size(); ++rank) {
      const std::size_t at = starts[rank].size();
      if (2 * at >= schedule.rows[rank].size()) continue;
      const Op& op = std::get<Op>(schedule.rows[rank][at]);
      const int stage = op.stage.value();
      double ready = clock[rank];
      if (stage > 0) {
        const auto input = done.find({stage - 1, op.microbatch.value()});
        if (input == done.end()) continue;
        ready = std::max(ready, input->second);
      }
      starts[rank].push_back(ready);
      const double duration = stage % 2 == 1 ? 4 : stage == 0 || stage == last ? 0.5 : 1;
      clock[rank] = done[{stage, op.microbatch.value()}] = ready + duration;
      progress = true;
    }
  }
  return starts;
}

TEST(HelixPipe, OrdersDestinationsAndStartsOfTheWorkedExamples) {
  for (const Example& example : kExamples) {
    const Schedule schedule = build_helixpipe(example.ranks, example.layers, example.folds, example.microbatches);
    std::map<std::pair<int, int>, std::size_t> place;
    for (std::size_t rank = 0; rank < schedule.rows.size(); ++rank)
      for (const Op& op : ops_of_row(schedule.rows[rank]))
        if (op.kind == OpKind::kForward) place[{op.stage.value(), op.microbatch.value()}] = rank;
    const auto starts = forward_starts(schedule);
    for (std::size_t rank = 0; rank < schedule.rows.size(); ++rank) {
      const bool has_destinations = example.name == std::string("b");
      const std::vector<Op> ops = ops_of_row(schedule.rows[rank]);
      std::istringstream words(example.rows[rank]);
      std::size_t at = 0;
      for (std::string word; words >> word; ++at) {
        SCOPED_TRACE(fmt::format("({}) rank {} {}", example.name, rank, word));
        ASSERT_LT(at, ops.size() / 2);
        EXPECT_EQ(ops[at].kind, OpKind::kForward);
        EXPECT_EQ(word.substr(0, word.find_first_of(">@")), card_name(ops[at]));
        const std::size_t leaves = word.find('>');
        const auto reader = place.find({ops[at].stage.value() + 1, ops[at].microbatch.value()});
        const bool is_remote = reader != place.end() && reader->second != rank;
        if (leaves != std::string::npos) {
          ASSERT_TRUE(is_remote);
          EXPECT_EQ(reader->second, std::stoul(word.substr(leaves + 1)));
        } else if (has_destinations) {
          EXPECT_FALSE(is_remote);
        }
        const std::size_t start = word.find('@');
        if (start != std::string::npos) {
          ASSERT_LT(at, starts[rank].size());
          EXPECT_EQ(starts[rank][at], std::stod(word.substr(start + 1)));
        }
      }
      EXPECT_EQ(at, ops.size() / 2) << example.name << " rank " << rank;
    }
  }
}

TEST(HelixPipe, BackwardIsTheReverseAndEveryOpRunsOnceWithoutDeadlock) {
  for (int p = 2; p <= 8; ++p)
    for (int depth = 1; depth <= 3; ++depth)
      for (int folds = 1; folds <= 3; ++folds)
        for (int repeats = 1; repeats <= 3; ++repeats) {
          SCOPED_TRACE(fmt::format("p {} layers {} folds {} repeats {}", p, depth * p, folds, repeats));
          const int m = repeats * folds * p;
          const Schedule schedule = build_helixpipe(p, depth * p, folds, m);
          std::map<std::pair<int, int>, int> runs;
          for (std::size_t rank = 0; rank < schedule.rows.size(); ++rank) {
            const std::vector<Op> ops = ops_of_row(schedule.rows[rank]);
            const std::size_t forwards = ops.size() / 2;
            EXPECT_EQ(ops.size(), 2 * forwards);
            for (std::size_t i = 0; i < forwards; ++i) {
              const Op& op = ops[i];
              const int stage = op.stage.value();
              const int offset = op.microbatch.value() / folds % p;
              EXPECT_EQ(static_cast<int>(rank), ((stage + 1) / 2 + (stage % 2 == 1 ? offset : 0)) % p);
              EXPECT_EQ(op, forward(stage, op.microbatch.value()));
              EXPECT_EQ(ops[ops.size() - 1 - i], backward(stage, op.microbatch.value()));
              ++runs[{stage, op.microbatch.value()}];
            }
          }
          EXPECT_EQ(runs.size(), static_cast<std::size_t>((2 * depth * p + 1) * m));
          EXPECT_TRUE(replay(schedule, {}));
          if (HasFailure()) return;
        }
}

TEST(HelixPipe, Counts) {
  const Schedule schedule = build_helixpipe(4, 8, 2, 8);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    int first = 0, last = 0, modules = 0, attentions = 0;
    for (const Op& op : ops_of_row(schedule.rows[rank])) {
      if (op.kind != OpKind::kForward) continue;
      first += op.stage.value() == 0 ? 1 : 0;
      last += op.stage.value() == 16 ? 1 : 0;
      (op.stage.value() % 2 == 0 ? modules : attentions) += 1;
    }
    EXPECT_EQ(modules, rank == 0 ? 24 : 16);
    EXPECT_EQ(first, rank == 0 ? 8 : 0);
    EXPECT_EQ(last, rank == 0 ? 8 : 0);
    EXPECT_EQ(attentions, 16);
  }
}

/// Who a rank exchanges with between two neighbouring ops of one fold; transfers belong to the op that they stand behind.
void expect_one_peer_per_gap(const Program& program, int folds) {
  for (std::size_t rank = 0; rank < program.rows.size(); ++rank) {
    std::map<int, std::vector<int>> peers;  // per fold, since its last op
    int fold = 0;
    bool forward_only = true;
    for (const Instr& instr : program.rows[rank]) {
      if (const Op* op = std::get_if<Op>(&instr)) {
        fold = op->microbatch.value() % folds;
        peers[fold].clear();
        forward_only = op->kind == OpKind::kForward;
      }
      const Send* send = std::get_if<Send>(&instr);
      const Recv* recv = std::get_if<Recv>(&instr);
      if (send == nullptr && recv == nullptr) continue;
      peers[fold].push_back(send != nullptr ? send->peer.value() : recv->peer.value());
      ASSERT_EQ(std::set<int>(peers[fold].begin(), peers[fold].end()).size(), 1U)
          << "rank " << rank << (forward_only ? " forward" : " backward");
    }
  }
}

TEST(HelixPipe, ExchangesAreTwoWaySwapsThatNeverDeadlock) {
  for (int p = 2; p <= 8; ++p)
    for (int depth = 1; depth <= 3; ++depth)
      for (int folds = 1; folds <= 3; ++folds)
        for (int repeats = 1; repeats <= 3; ++repeats) {
          SCOPED_TRACE(fmt::format("p {} layers {} folds {} repeats {}", p, depth * p, folds, repeats));
          const Program program = lower(build_helixpipe(p, depth * p, folds, repeats * folds * p)).value();
          for (const TransferRule rule : {TransferRule::kBuffered, TransferRule::kBounded, TransferRule::kRendezvous})
            EXPECT_THAT(verify(program, {.transfers = rule}), testing::IsEmpty()) << static_cast<int>(rule);
          expect_one_peer_per_gap(program, folds);
          // Module l of offset d is swapped for attention l of offset d + 1, the last module of a repeat counting with the
          // first of the next; what is left of the first module of the first repeat and the last of the last goes one way.
          // The same backwards, and each exchange stands on two ranks.
          std::map<int, int> batches;  // by count
          for (const Row& row : program.rows)
            for (const Instr& instr : row)
              if (const Batch* batch = std::get_if<Batch>(&instr)) ++batches[batch->count];
          const int per_layer = 2 * 2 * folds * (p - 1);
          EXPECT_EQ(batches, (std::map<int, int>{{1, 2 * per_layer}, {2, per_layer * (repeats * depth * p - 1)}}));
          if (HasFailure()) return;
        }
}

TEST(HelixPipe, ShippedWeightsAndDirectResidualsAreProved) {
  for (const WeightTrips weights : {WeightTrips::kPerMicrobatch, WeightTrips::kOnce})
    for (const ResidualPath residual : {ResidualPath::kThrough, ResidualPath::kDirect})
      for (const QkvPlace qkv : {QkvPlace::kPre, QkvPlace::kAttn})
        for (const Recompute recompute : {Recompute::kNone, Recompute::kFull, Recompute::kNoAttention})
          for (const HeadTying tying : {HeadTying::kUntied, HeadTying::kTied})
            for (const int p : {1, 2, 4})
              for (const int folds : {1, 2})
                for (const int repeats : {1, 2}) {
                  if (qkv == QkvPlace::kPre && weights == WeightTrips::kOnce) continue;
                  const ScheduleShape shape{.ranks = p,
                                            .microbatches = repeats * folds * p,
                                            .layers = 2 * p,
                                            .folds = folds,
                                            .tying = tying,
                                            .recompute = recompute,
                                            .qkv = qkv,
                                            .residual = residual,
                                            .weights = weights};
                  const Program program = lower(build_schedule("helixpipe", shape).value()).value();
                  for (const TransferRule rule :
                       {TransferRule::kBuffered, TransferRule::kBounded, TransferRule::kRendezvous})
                    EXPECT_THAT(verify(program, {.transfers = rule}), testing::IsEmpty())
                        << fmt::format("rule {} weights {} residual {} qkv {} recompute {} p {} folds {} repeats {}",
                                       static_cast<int>(rule), static_cast<int>(weights), static_cast<int>(residual),
                                       static_cast<int>(qkv), static_cast<int>(recompute), p, folds, repeats);
                  std::int64_t sends = 0;
                  for (const Row& row : program.rows)
                    sends += std::count_if(row.begin(), row.end(),
                                           [](const Instr& instr) { return std::holds_alternative<Send>(instr); });
                  EXPECT_EQ(sends, (*find_schedule("helixpipe"))->expect(shape).sends);
                  if (HasFailure()) return;
                }
}

TEST(HelixPipe, RefusesShapesThatDoNotDivideNamingTheValues) {
  const auto refusal = [](const ScheduleShape& shape) {
    const auto schedule = build_schedule("helixpipe", shape);
    return schedule ? std::string() : schedule.error().message;
  };
  const std::string layers = refusal({.ranks = 4, .microbatches = 8, .layers = 6});
  EXPECT_THAT(layers, testing::AllOf(testing::HasSubstr("--layers 6"), testing::HasSubstr("--ranks 4")));
  const std::string microbatches = refusal({.ranks = 4, .microbatches = 12, .layers = 8, .folds = 2});
  EXPECT_THAT(microbatches, testing::AllOf(testing::HasSubstr("2 x 4"), testing::HasSubstr("--microbatches 12")));
  const std::string repeats = refusal({.ranks = 4, .microbatches = 8, .layers = 8, .folds = 2, .repeats = 2});
  EXPECT_THAT(repeats, testing::AllOf(testing::HasSubstr("2 x 4"), testing::HasSubstr("--repeats 2")));
  ScheduleShape once{.ranks = 4, .microbatches = 8, .weights = WeightTrips::kOnce};
  EXPECT_THAT(refusal(once), testing::HasSubstr("--qkv pre"));
}

}  // namespace
}  // namespace plait
