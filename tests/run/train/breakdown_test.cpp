#include "plait/run/train/breakdown.h"

#include "plait/ir/parts.h"

#include <gmock/gmock.h>

#include <vector>

namespace plait {
namespace {

constexpr Part kQkv{.kind = PartKind::kQkv, .layer = 3};
constexpr Part kAttn{.kind = PartKind::kAttn, .layer = 3};

TraceEvent instr(int position, std::int64_t start, std::int64_t end) {
  return {.position = position, .start = Nanos{start}, .end = Nanos{end}};
}
KernelEvent pass(int position, const Part& part, std::int64_t start, std::int64_t end) {
  return {.position = position, .part = part, .start = Nanos{start}, .end = Nanos{end}};
}
KernelEvent kernel(int position, std::optional<Part> part, KernelKind kind, std::int64_t start, std::int64_t end,
                   const GemmShape& gemm = {}) {
  return {.position = position, .part = part, .kernel = kind, .gemm = gemm, .start = Nanos{start}, .end = Nanos{end}};
}

// Costs in different digits, so that what is counted in the wrong place shows.
TEST(Breakdown, TimesAddUpToTheStep) {
  const GemmShape gemm{.rows = 2, .inputs = 3, .outputs = 5};
  Program program;
  program.rows = {{Op{.kind = OpKind::kForward}, Send{}, Op{.kind = OpKind::kForward}, Step{}}, {}};
  StepResult step{
      .duration = Nanos{100'000},
      .trace = {{instr(0, 7'000, 20'000), instr(1, 20'000, 20'400), instr(2, 30'000, 40'000), instr(3, 40'000, 90'000)},
                {}}};
  step.kernel_events = {{kernel(-1, std::nullopt, KernelKind::kZeroGrads, 1'000, 6'000), pass(0, kQkv, 7'100, 12'000),
                         kernel(0, kQkv, KernelKind::kGemm, 8'000, 11'000, gemm), pass(0, kAttn, 12'000, 19'000),
                         kernel(0, kAttn, KernelKind::kAttention, 12'500, 18'500), pass(2, kQkv, 30'000, 40'000),
                         kernel(2, kQkv, KernelKind::kGemm, 31'000, 36'000, gemm),
                         kernel(3, std::nullopt, KernelKind::kOptimizer, 40'000, 89'000)},
                        {}};
  const std::vector<Breakdown> ranks = break_down(program, step);
  ASSERT_EQ(ranks.size(), 2U);
  const Breakdown& rank = ranks[0];
  EXPECT_EQ(rank.begin, Nanos{7'000});
  EXPECT_EQ(rank.waiting, Nanos{9'600 + 10'000});  // in front of the second op, and behind the row
  EXPECT_EQ(rank.instrs, (std::vector<Breakdown::InstrTotal>{
                             {.kind = "F", .count = 2, .time = Nanos{23'000}, .in_kernels = Nanos{14'000}},
                             {.kind = "send", .count = 1, .time = Nanos{400}, .is_transfer = true},
                             {.kind = "step", .count = 1, .time = Nanos{50'000}, .in_kernels = Nanos{49'000}}}));
  EXPECT_EQ(rank.parts, (std::vector<Breakdown::PartTotal>{{.part = PartKind::kQkv,
                                                            .op = OpKind::kForward,
                                                            .count = 2,
                                                            .time = Nanos{14'900},
                                                            .in_kernels = Nanos{8'000}},
                                                           {.part = PartKind::kAttn,
                                                            .op = OpKind::kForward,
                                                            .count = 1,
                                                            .time = Nanos{7'000},
                                                            .in_kernels = Nanos{6'000}}}));
  EXPECT_EQ(rank.kernels, (std::vector<Breakdown::KernelTotal>{
                              {.kernel = KernelKind::kGemm, .count = 2, .time = Nanos{8'000}, .flops = 2 * 60},
                              {.kernel = KernelKind::kAttention, .count = 1, .time = Nanos{6'000}},
                              {.kernel = KernelKind::kZeroGrads, .count = 1, .time = Nanos{5'000}},
                              {.kernel = KernelKind::kOptimizer, .count = 1, .time = Nanos{49'000}}}));
  EXPECT_EQ(rank.gemms, (std::vector<Breakdown::GemmTotal>{
                            {.kernel = KernelKind::kGemm, .shape = gemm, .count = 2, .time = Nanos{8'000}}}));
  // 2000 before the row, 9000 in the ops, 1000 in the step.
  EXPECT_EQ(rank.uncovered, Nanos{12'000});
  EXPECT_DOUBLE_EQ(rank.covered_ratio(), 0.88);
  Nanos sum = rank.begin + rank.waiting;
  for (const auto& total : rank.instrs) sum += total.time;
  EXPECT_EQ(sum, step.duration);
  // A rank that has nothing to do waits.
  EXPECT_EQ(ranks[1].waiting, step.duration);
  EXPECT_EQ(ranks[1].uncovered, Nanos{0});
}

/// What a rank did in front of an op's own time, while it took what had arrived, is no part of the op.
TEST(Breakdown, KernelsInFrontOfAnOpDoNotCountInIt) {
  Program program;
  program.rows = {{Op{.kind = OpKind::kBackwardWeight}}};
  StepResult step{.duration = Nanos{100}, .trace = {{instr(0, 50, 100)}}};
  step.kernel_events = {
      {kernel(0, std::nullopt, KernelKind::kCopy, 10, 40), kernel(0, std::nullopt, KernelKind::kCopy, 60, 90)}};
  const Breakdown rank = break_down(program, step).front();
  EXPECT_EQ(
      rank.instrs,
      (std::vector<Breakdown::InstrTotal>{{.kind = "W", .count = 1, .time = Nanos{50}, .in_kernels = Nanos{30}}}));
  EXPECT_EQ(rank.begin, Nanos{50});
}

}  // namespace
}  // namespace plait
