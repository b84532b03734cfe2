#include "plait/run/engine/memory.h"
#include "plait/sim/engine_memory/engine_memory.h"
#include "plait/sim/simulate.h"

#include "tests/run/engine/engine_support.h"
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <vector>

/// The memory model against the engine's own allocator: no constant is fitted, nothing is timed.
namespace plait {
namespace {

struct Case {
  const char* schedule;
  ScheduleShape shape;
  MlpKind mlp = MlpKind::kGated;
  std::int64_t hidden = 96;
  std::int64_t batch = 4;
  std::int64_t tokens = 64;
  std::int64_t vocab = 320;
  ComputeType type = ComputeType::kFloat32;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.schedule << ", " << c.shape.ranks << " ranks, D " << c.hidden << ", T " << c.tokens;
}

std::int64_t bytes_of(ComputeType type) {
  return type == ComputeType::kFloat64 ? 8 : type == ComputeType::kFloat32 ? 4 : 2;
}

ModelShape shape_of(const Case& c, int layers) {
  const bool gated = c.mlp == MlpKind::kGated;
  return {.layers = layers,
          .hidden = c.hidden,
          .heads = 6,
          .kv_heads = gated ? 2 : 6,
          .head_dim = c.hidden / 6,
          .ffn = gated ? 8 * c.hidden / 3 : 4 * c.hidden,
          .vocab = c.vocab,
          .tokens = c.tokens,
          .batch = c.batch,
          .mlp = c.mlp,
          .attention = AttentionKernel::kFlash,
          .element_bytes = bytes_of(c.type),
          .positions = c.tokens,
          .tying = c.shape.tying};
}

ModelConfig config_of(const ModelShape& shape) {
  const bool gated = shape.mlp == MlpKind::kGated;
  return {.family = gated ? ModelFamily::kLlama : ModelFamily::kGpt2,
          .num_layers = shape.layers,
          .hidden_size = shape.hidden,
          .ffn_size = shape.ffn,
          .num_heads = shape.heads,
          .num_kv_heads = shape.kv_heads,
          .head_dim = shape.head_dim,
          .vocab_size = shape.vocab,
          .max_positions = shape.tokens,
          .activation = gated ? Activation::kSilu : Activation::kGeluTanh,
          .tied_head = shape.tying == HeadTying::kTied};
}

/// Per rank, the engine's peak after three steps and the model's.
struct Peaks {
  std::vector<std::int64_t> measured;
  std::vector<std::int64_t> predicted;
};

Peaks peaks_of(const Case& c) {
  at::set_num_threads(1);
  install_accounting_allocator();
  const VerifiedProgram program = testing::program_of(c.schedule, c.shape).value();
  const Layout& layout = program.program().layout;
  const ModelShape shape = shape_of(c, layout.num_layers);
  const auto engine = testing::make_engine(program, config_of(shape), {.type = c.type});
  const auto data = testing::make_data(layout.num_microbatches, c.batch, c.tokens, c.vocab, testing::Mask::kNone, 7);
  StepResult step;
  for (int i = 0; i < 3; ++i) step = engine->train_step(data, 1e-3).value();
  CostModel costs = zero_costs(layout);
  costs.known_memory = engine_memory(program.program(), shape).value();
  const SimResult result = simulate(program.program(), costs).value();
  Peaks peaks;
  for (std::size_t rank = 0; rank < step.peak_bytes.size(); ++rank) {
    peaks.measured.push_back(step.peak_bytes[rank].value());
    peaks.predicted.push_back(result.ranks[rank].peak_bytes);
    const MemoryOwners owners = memory_owners(program.program(), costs, RankId{static_cast<std::int32_t>(rank)},
                                              result.ranks[rank].peak_position);
    EXPECT_EQ(owners.total(), result.ranks[rank].peak_bytes) << "rank " << rank;
  }
  return peaks;
}

class PeakBytes : public ::testing::TestWithParam<Case> {};

TEST_P(PeakBytes, AreTheEngines) {
  const Peaks peaks = peaks_of(GetParam());
  if (GetParam().type != ComputeType::kBFloat16) {
    EXPECT_EQ(peaks.predicted, peaks.measured);
    return;
  }
  // The scratch space of bf16 products is the library's business.
  constexpr double kTolerance = 0.002;
  ASSERT_EQ(peaks.predicted.size(), peaks.measured.size());
  for (std::size_t rank = 0; rank < peaks.measured.size(); ++rank) {
    const auto measured = static_cast<double>(peaks.measured[rank]);
    EXPECT_NEAR(static_cast<double>(peaks.predicted[rank]), measured, kTolerance * measured) << "rank " << rank;
  }
}

/// Every rank has the same work but for rank 0, which also has embed and head in M_0 and M_L.
TEST(HelixPipe, HasOnePeakForAllRanksButTheFirst) {
  for (const int folds : {1, 2}) {
    const Case c{.schedule = "helixpipe", .shape = {.ranks = 4, .microbatches = 8, .layers = 8, .folds = folds}};
    const Peaks peaks = peaks_of(c);
    EXPECT_EQ(peaks.predicted, peaks.measured) << folds;
    EXPECT_EQ(std::set(peaks.measured.begin() + 1, peaks.measured.end()).size(), 1U) << folds;
  }
}

constexpr auto kAgain = Recompute::kNoAttention;

INSTANTIATE_TEST_SUITE_P(
    Pipelines, PeakBytes,
    ::testing::Values(
        Case{"1f1b", {.ranks = 1, .microbatches = 4, .layers = 4}},
        Case{"1f1b", {.ranks = 2, .microbatches = 6, .layers = 4}},
        Case{"1f1b", {.ranks = 2, .microbatches = 6, .layers = 4, .recompute = kAgain}},
        Case{"1f1b", {.ranks = 2, .microbatches = 6, .layers = 4, .recompute = Recompute::kFull}},
        Case{"gpipe", {.ranks = 2, .microbatches = 4, .layers = 4}},
        Case{.schedule = "gpipe", .shape = {.ranks = 2, .microbatches = 4, .layers = 6}, .hidden = 192, .tokens = 200},
        Case{"gpipe", {.ranks = 2, .microbatches = 4, .layers = 4, .recompute = kAgain}},
        Case{"zb-h1", {.ranks = 2, .microbatches = 5, .layers = 4}},
        Case{.schedule = "zb-h1", .shape = {.ranks = 2, .microbatches = 5, .layers = 4}, .hidden = 192, .tokens = 256},
        Case{"interleaved-1f1b", {.ranks = 2, .microbatches = 4, .chunks = 2, .layers = 4}},
        Case{"seq1f1b", {.ranks = 2, .microbatches = 4, .slices = 2, .layers = 4}},
        Case{.schedule = "1f1b", .shape = {.ranks = 2, .microbatches = 4, .layers = 2}, .batch = 8, .vocab = 6000},
        Case{.schedule = "1f1b",
             .shape = {.ranks = 1, .microbatches = 3, .layers = 3, .tying = HeadTying::kTied},
             .mlp = MlpKind::kPlain},
        Case{.schedule = "1f1b",
             .shape = {.ranks = 2, .microbatches = 4, .layers = 4, .tying = HeadTying::kTied},
             .mlp = MlpKind::kPlain},
        Case{.schedule = "zb-h1",
             .shape = {.ranks = 2, .microbatches = 4, .layers = 4},
             .mlp = MlpKind::kPlain,
             .hidden = 192,
             .tokens = 192},
        Case{.schedule = "1f1b", .shape = {.ranks = 2, .microbatches = 4, .layers = 4}, .type = ComputeType::kBFloat16},
        Case{
            .schedule = "1f1b", .shape = {.ranks = 2, .microbatches = 4, .layers = 4}, .type = ComputeType::kFloat64}));

INSTANTIATE_TEST_SUITE_P(
    Helix, PeakBytes,
    ::testing::Values(
        Case{"helixpipe", {.ranks = 2, .microbatches = 4, .layers = 4, .folds = 1}},
        Case{"helixpipe", {.ranks = 2, .microbatches = 4, .layers = 4, .folds = 2}},
        Case{"helixpipe", {.ranks = 2, .microbatches = 4, .layers = 4, .folds = 2, .qkv = QkvPlace::kAttn}},
        Case{"helixpipe", {.ranks = 2, .microbatches = 4, .layers = 4, .folds = 2, .recompute = kAgain}},
        Case{.schedule = "helixpipe",
             .shape = {.ranks = 2, .microbatches = 4, .layers = 4, .folds = 2, .recompute = kAgain},
             .hidden = 192,
             .tokens = 256},
        Case{"helixpipe",
             {.ranks = 2, .microbatches = 4, .layers = 4, .folds = 1, .residual = ResidualPath::kDirect}}));

INSTANTIATE_TEST_SUITE_P(Travelling, PeakBytes,
                         ::testing::Values(Case{"weipipe", {.ranks = 2, .microbatches = 4, .layers = 4}},
                                           Case{"weipipe", {.ranks = 4, .microbatches = 8, .layers = 4}},
                                           Case{"tawpipe", {.ranks = 2, .microbatches = 4, .layers = 4}},
                                           Case{"tawpipe", {.ranks = 4, .microbatches = 8, .layers = 4, .groups = 1}},
                                           Case{"fsdp", {.ranks = 2, .microbatches = 4, .layers = 4}},
                                           Case{"fsdp", {.ranks = 4, .microbatches = 8, .layers = 4}},
                                           Case{.schedule = "fsdp",
                                                .shape = {.ranks = 2, .microbatches = 4, .layers = 4},
                                                .hidden = 192,
                                                .tokens = 256},
                                           Case{.schedule = "weipipe",
                                                .shape = {.ranks = 2, .microbatches = 4, .layers = 4},
                                                .hidden = 192,
                                                .tokens = 256}));

}  // namespace
}  // namespace plait
