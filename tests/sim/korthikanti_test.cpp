#include "plait/ir/lower.h"
#include "plait/schedules/schedule_info.h"
#include "plait/sim/model_shape.h"
#include "plait/sim/simulate.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

// Korthikanti et al. 2022: memory of the first rank from the replay of the program, GiB to all printed digits; FLOPs from
// their utilisation columns.
namespace plait {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

struct Row {
  std::string name;
  std::int64_t hidden, heads;
  int layers, t, p, v, microbatches;
  std::int64_t batch;
  double parameters_gib, none_gib, selective_gib;
  double digits;  ///< half a unit of the last printed digit
  double step_s, mfu, hfu;
};

class Korthikanti : public ::testing::TestWithParam<Row> {
 protected:
  static ModelShape shape(const Row& row) {
    ModelShape made = gpt_shape(row.layers, row.hidden, row.heads, 51200, 2048, row.batch);
    made.dropout = Dropout::kOn;
    return made;
  }
  /// Who owns rank 0's bytes when most stashes are alive.
  static MemoryOwners first_rank(const Row& row, const Sharding& sharding) {
    const ScheduleShape asked{.ranks = row.p, .microbatches = row.microbatches, .chunks = row.v, .layers = row.layers};
    const Program program = lower(build_schedule(row.v > 1 ? "interleaved-1f1b" : "1f1b", asked).value()).value();
    CostModel costs = zero_costs(program.layout);
    // The columns leave out the embedding and the head, and round nothing up.
    ModelShape layers_only = shape(row);
    if (!add_memory(program.layout, layers_only, sharding, {.parameters = Parameters::kMatrices, .block = Bytes{1}},
                    costs))
      throw std::runtime_error("memory");
    const Layout& layout = program.layout;
    const auto without_ends = [&](std::size_t s, std::int64_t per_part_sum) {
      const PartRange parts = layout.stages[s].parts;
      if (parts.contains(num_parts(row.layers) - 1))
        per_part_sum -= stash_bytes(layers_only, sharding, PartKind::kHead);
      return per_part_sum;
    };
    for (std::size_t s = 0; s < layout.stages.size(); ++s) {
      const std::int64_t whole = costs.stash_bytes[s].value();
      const std::int64_t layers = without_ends(s, whole);
      costs.stash_bytes[s] = Bytes{layers};
      costs.logit_bytes[s] = Bytes{0};
      costs.op(OpKind::kForward, StageId{static_cast<std::int32_t>(s)}, {}).alloc -= whole - layers;
      costs.op(OpKind::kBackward, StageId{static_cast<std::int32_t>(s)}, {}).freed -= whole - layers;
    }
    const SimResult result = simulate(program, costs).value();
    MemoryOwners owners = memory_owners(program, costs, RankId{0}, result.ranks[0].peak_position);
    EXPECT_EQ(owners.total(), result.ranks[0].peak_bytes);
    return owners;
  }
};

TEST_P(Korthikanti, ActivationsWithoutRecompute) {
  const Row& row = GetParam();
  EXPECT_NEAR(static_cast<double>(first_rank(row, {.tensor = row.t}).stash) / kGiB, row.none_gib, row.digits);
}

TEST_P(Korthikanti, ActivationsSelectiveWithSequenceParallel) {
  const Row& row = GetParam();
  const Sharding sharding{.tensor = row.t, .sequence = SequenceParallel::kOn, .stash = StashPolicy::kSelective};
  EXPECT_NEAR(static_cast<double>(first_rank(row, sharding).stash) / kGiB, row.selective_gib, row.digits);
}

TEST_P(Korthikanti, ParametersAndOptimizer) {
  const Row& row = GetParam();
  const ModelShape model = shape(row);
  const auto layer = parameter_count(model, PartKind::kQkv, Parameters::kMatrices) +
                     parameter_count(model, PartKind::kPost, Parameters::kMatrices);
  EXPECT_EQ(layer, 12 * row.hidden * row.hidden);
  const OptimizerBytes bytes;
  const double per_rank =
      static_cast<double>((bytes.weight + bytes.gradient + bytes.state) * layer) * row.layers / (row.t * row.p);
  EXPECT_NEAR(per_rank / kGiB, row.parameters_gib, 5e-7);
}

// Model FLOPs 72 B L s h^2 (1 + s/6h + V/12hL) (their eq. 7) give the printed utilisation of 312 TFLOP/s A100s.
TEST_P(Korthikanti, FlopsAgreeWithTheirFormulaAndColumns) {
  const Row& row = GetParam();
  const ModelShape model = shape(row);
  double forward = forward_flops(model, {}, PartKind::kHead);
  for (const PartKind part : {PartKind::kNorm, PartKind::kQkv, PartKind::kAttn, PartKind::kPost})
    forward += row.layers * forward_flops(model, {}, part);
  const auto h = static_cast<double>(row.hidden);
  const double formula = 72.0 * static_cast<double>(row.batch) * row.layers * 2048 * h * h *
                         (1 + 2048 / (6 * h) + 51200 / (12 * h * row.layers));
  EXPECT_NEAR(3 * forward / formula, 1, 1e-12);
  const double attention = row.layers * forward_flops(model, {}, PartKind::kAttn);
  const double peak = 312e12 * row.t * row.p * row.step_s;
  EXPECT_NEAR(100 * 3 * forward * row.microbatches / peak, row.mfu, 0.25);
  // Their hardware FLOPs count the attention core twice (s/3h), though selective recompute repeats only its forward.
  EXPECT_NEAR(100 * (3 * forward + 3 * attention) * row.microbatches / peak, row.hfu, 0.35);
}

INSTANTIATE_TEST_SUITE_P(
    Models, Korthikanti,
    ::testing::Values(
        Row{"22B", 6144, 64, 48, 8, 1, 1, 1, 4, 45.5625, 59.25, 9.5625, 5e-9, 1.10, 41.5, 43.7},
        Row{"175B", 12288, 96, 96, 8, 8, 3, 64, 1, 45.5625, 66.84375, 12.3515625, 5e-9, 13.75, 51.4, 52.8},
        Row{"530B", 20480, 128, 105, 8, 35, 3, 280, 1, 31.640625, 114.0234, 23.0762, 5e-5, 37.83, 56.0, 57.0},
        Row{"1T", 25600, 160, 128, 8, 64, 1, 512, 1, 32.958984, 131.25, 26.5625, 5e-9, 71.49, 56.3, 57.0}),
    [](const auto& row) { return "model_" + row.param.name; });

// Narayanan et al. 2021: 96 B s l h^2 (1 + s/6h + V/16lh) with the layers' forward recomputed.
TEST(Flops, AgreeWithMegatron) {
  const ModelShape model = gpt_shape(96, 12288, 96, 51200, 2048, 1536);
  double layers = 0;
  for (const PartKind part : {PartKind::kNorm, PartKind::kQkv, PartKind::kAttn, PartKind::kPost})
    layers += 96 * forward_flops(model, {}, part);
  const double head = forward_flops(model, {}, PartKind::kHead);
  const double formula =
      96.0 * 1536 * 2048 * 96 * 12288.0 * 12288 * (1 + 2048 / (6 * 12288.0) + 51200 / (16.0 * 96 * 12288));
  EXPECT_NEAR((4 * layers + 3 * head) / formula, 1, 1e-12);
}

// Causal flash: half of the scores and half a block more.
TEST(Flops, CausalKernelCountsWhatItDoes) {
  ModelShape model = gpt_shape(1, 1024, 8, 1000, 4096, 1);
  const double all = forward_flops(model, {}, PartKind::kAttn);
  model.attention = AttentionKernel::kFlash;
  EXPECT_DOUBLE_EQ(forward_flops(model, {}, PartKind::kAttn) / all, (32.0 + 1) / 64);
  model.tokens = 64;
  EXPECT_DOUBLE_EQ(attention_fraction(model), 1);
}

TEST(Shapes, RefuseAbsurdSizes) {
  EXPECT_EQ(check_shape(gpt_shape(1, 0, 1, 1, 1, 1)).error().rule, "shape.size");
  EXPECT_EQ(check_shape(gpt_shape(1, 64, 0, 1, 1, 1)).error().rule, "shape.size");
  EXPECT_EQ(check_shape(gpt_shape(1, std::int64_t{1} << 40, 8, 1, 1, 1)).error().rule, "shape.size");
  ModelShape shape = gpt_shape(2, 64, 6, 10, 10, 1);
  shape.head_dim = 8;
  shape.kv_heads = 4;
  EXPECT_EQ(check_shape(shape).error().rule, "shape.heads");
}

}  // namespace
}  // namespace plait
