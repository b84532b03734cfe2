// Steps that go before the global norm and are validated behind it give the bits of those that wait for it: where the
// norm clips and where not, and where a loss or a gradient is not finite.

#include "plait/run/engine/optimizer.h"

#include "engine_support.h"
#include "poisoned_kernels.h"
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <tuple>

namespace plait::testing {
namespace {

constexpr std::int64_t kBadToken = 28;  // the last of the vocabulary
constexpr double kLearningRate = 0.05;
constexpr int kRanks = 4;

struct Programs {
  VerifiedProgram waits;
  VerifiedProgram validates;
};

Result<Programs> programs_of(const std::string& name) {
  PLAIT_TRY(Schedule schedule, build_schedule(name, {.ranks = kRanks, .microbatches = 8, .layers = 8}));
  PLAIT_TRY(Program waits, lower(schedule));
  schedule.layout.steps = StepOrder::kPostValidated;
  PLAIT_TRY(Program validates, lower(schedule));
  PLAIT_TRY(VerifiedProgram first, prove(std::move(waits)));
  PLAIT_TRY(VerifiedProgram second, prove(std::move(validates)));
  return Programs{.waits = std::move(first), .validates = std::move(second)};
}

/// The program without its norm.
Program without_norm(Program program) {
  for (Row& row : program.rows)
    std::erase_if(row, [](const Instr& instr) {
      const auto* entry = std::get_if<Collective>(&instr);
      const auto* wait = std::get_if<WaitCollective>(&instr);
      return (entry != nullptr && entry->value == Value::norm()) || (wait != nullptr && wait->value == Value::norm());
    });
  return program;
}

/// Masters, moments and gradients, to the bit.
void expect_same_bits(const Engine& result, const Engine& expected, const std::string& what) {
  const auto state = result.save();
  const auto expected_state = expected.save();
  ASSERT_TRUE(state && expected_state);
  for (const auto& [name, parameter] : *expected_state) {
    EXPECT_TRUE(at::equal(state->at(name).master, parameter.master)) << what << ": " << name;
    for (const auto& [moment, tensor] : parameter.moments)
      EXPECT_TRUE(at::equal(state->at(name).moments.at(moment), tensor)) << what << ": " << name << moment;
  }
  const auto gradients = result.last_gradients();
  const auto expected_gradients = expected.last_gradients();
  ASSERT_TRUE(gradients && expected_gradients);
  for (const auto& [name, gradient] : *expected_gradients)
    EXPECT_TRUE(at::equal(gradients->at(name), gradient) || !gradient.isfinite().all().item<bool>())
        << what << ": gradient of " << name;
  EXPECT_THAT(*result.diverged_copies(), ::testing::IsEmpty()) << what;
}

std::vector<Microbatch> data_of(std::uint64_t step, bool bad = false) {
  auto data = make_data(8, 2, 9, kBadToken, static_cast<Mask>(step % 3), 70 + step);
  if (bad) data[1].tokens.data_ptr<std::int64_t>()[3] = kBadToken;
  return data;
}

constexpr std::uint64_t kSteps = 6;
constexpr std::uint64_t kBadStep = 3;

/// Trains by both programs, and counts the steps whose norm is beyond the limit.
int train_both(const Programs& programs, const EngineOptions& options, bool with_bad_step, const std::string& what) {
  const ModelConfig config = tiny_config(8, HeadTying::kUntied);
  const auto result = make_engine(programs.validates, config, options);
  const auto expected = make_engine(programs.waits, config, options);
  int clipped = 0;
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    const bool bad = with_bad_step && step == kBadStep;
    const auto one = result->train_step(data_of(step, bad), kLearningRate);
    const auto other = expected->train_step(data_of(step, bad), kLearningRate);
    EXPECT_TRUE(one) << (one ? "" : one.error().message);
    EXPECT_TRUE(other) << (other ? "" : other.error().message);
    if (!one || !other) return clipped;
    EXPECT_EQ(one->not_finite, other->not_finite) << what;
    EXPECT_EQ(one->updated, !bad) << what;
    if (!bad) {
      EXPECT_EQ(one->loss, other->loss) << what << ", step " << step;
      EXPECT_EQ(one->grad_norm, other->grad_norm) << what << ", step " << step;
    }
    clipped += options.optimizer.clip && one->grad_norm > *options.optimizer.clip ? 1 : 0;
    expect_same_bits(*result, *expected, what);
  }
  return clipped;
}

/// A limit that some of the steps pass and some do not.
double limit_between(const Programs& programs, EngineOptions options) {
  options.optimizer.clip.reset();
  const auto engine = make_engine(programs.waits, tiny_config(8, HeadTying::kUntied), options);
  std::vector<double> norms;
  for (std::uint64_t step = 0; step < kSteps; ++step)
    norms.push_back(engine->train_step(data_of(step), kLearningRate)->grad_norm);
  std::sort(norms.begin(), norms.end());
  return (norms[kSteps / 2 - 1] + norms[kSteps / 2]) / 2;
}

class PostValidation : public ::testing::TestWithParam<std::tuple<std::string, ComputeType, OptimizerKind, HostReads>> {
 protected:
  [[nodiscard]] static EngineOptions options() {
    return {.type = std::get<1>(GetParam()),
            .optimizer = {.kind = std::get<2>(GetParam())},
            .placement = {.reads = std::get<3>(GetParam())}};
  }
};

TEST_P(PostValidation, HasTheBitsOfStepsThatWait) {
  const auto programs = programs_of(std::get<0>(GetParam()));
  ASSERT_TRUE(programs) << programs.error().message;
  EngineOptions some = options();
  some.optimizer.clip = limit_between(*programs, some);
  const int clipped = train_both(*programs, some, false, "some are clipped");
  EXPECT_GT(clipped, 0);
  EXPECT_LT(clipped, static_cast<int>(kSteps));
  EngineOptions all = options();
  all.optimizer.clip = 1e-3;  // below every rank's own norm: none steps in vain
  EXPECT_EQ(train_both(*programs, all, false, "all are clipped"), static_cast<int>(kSteps));
  EngineOptions none = options();
  none.optimizer.clip.reset();
  EXPECT_EQ(train_both(*programs, none, false, "none is clipped"), 0);
}

TEST_P(PostValidation, UndoesWhatIsNotFinite) {
  const auto programs = programs_of(std::get<0>(GetParam()));
  ASSERT_TRUE(programs) << programs.error().message;
  for (const Spoilt spoilt : {Spoilt::kLoss, Spoilt::kGradient}) {
    for (const std::optional<double> clip : {std::optional<double>(), std::optional(0.25)}) {
      EngineOptions with_bad = options();
      with_bad.optimizer.clip = clip;
      with_bad.kernels = poisoned_kernels(kBadToken, spoilt);
      train_both(*programs, with_bad, true, spoilt == Spoilt::kLoss ? "bad loss" : "bad gradient");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, PostValidation,
                         ::testing::Combine(::testing::Values("1f1b", "zb-h1", "zb-h2", "zb-v", "dualpipe", "weipipe",
                                                              "fsdp", "zero1", "chimera"),
                                            ::testing::Values(ComputeType::kFloat32),
                                            ::testing::Values(OptimizerKind::kAdamW),
                                            ::testing::Values(HostReads::kAtOnce)));
INSTANTIATE_TEST_SUITE_P(Types, PostValidation,
                         ::testing::Combine(::testing::Values("zb-h2"),
                                            ::testing::Values(ComputeType::kBFloat16, ComputeType::kFloat64),
                                            ::testing::Values(OptimizerKind::kAdamW, OptimizerKind::kSgd),
                                            ::testing::Values(HostReads::kAtOnce)));
INSTANTIATE_TEST_SUITE_P(LateReads, PostValidation,
                         ::testing::Combine(::testing::Values("zb-h2", "fsdp"),
                                            ::testing::Values(ComputeType::kFloat32, ComputeType::kBFloat16),
                                            ::testing::Values(OptimizerKind::kAdamW, OptimizerKind::kSgd),
                                            ::testing::Values(HostReads::kAtEndOfStep)));

// Programs without a norm, whose steps stand before the all-reduce begins.
TEST(AddValidation, MakesClippingAndSkippingPossible) {
  const auto schedule = build_schedule("zb-h1", {.ranks = kRanks, .microbatches = 8, .layers = 8});
  ASSERT_TRUE(schedule);
  const auto waits = lower(*schedule);
  ASSERT_TRUE(waits);
  const auto bare = prove(without_norm(*waits));
  ASSERT_TRUE(bare);
  EngineOptions options;
  options.kernels = poisoned_kernels(kBadToken, Spoilt::kGradient);
  options.optimizer.clip = 0.25;
  const auto refused = Engine::create(*bare, tiny_config(8, HeadTying::kUntied), options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().rule, "engine.no_norm");
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr("--post-validation"));

  auto validated = add_validation(bare->program());
  ASSERT_TRUE(validated);
  auto proved = prove(*std::move(validated));
  ASSERT_TRUE(proved);
  auto proved_waits = prove(*waits);
  ASSERT_TRUE(proved_waits);
  const Programs programs{.waits = *std::move(proved_waits), .validates = *std::move(proved)};
  EXPECT_GT(train_both(programs, options, true, "without a norm"), 0);
  options.optimizer.clip = limit_between(programs, options);
  EXPECT_GT(train_both(programs, options, false, "without a norm"), 0);
}

TEST(RankOptimizerUndo, GoesBackToTheBit) {
  for (const OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kSgd}) {
    Parameter parameter{.name = "p", .shape = {3, 5}};
    parameter.master = at::full({3, 5}, 0.3, at::kFloat);
    parameter.compute = parameter.master.to(at::kBFloat16);
    parameter.grads = {at::full({3, 5}, 0.7, at::kFloat)};
    const OptimizerOptions options{.kind = kind};
    RankOptimizer optimizer(options, {{&parameter}});
    optimizer.begin_step();
    optimizer.step(0, 0.1);
    const at::Tensor master = parameter.master.clone();
    const at::Tensor compute = parameter.compute.clone();
    const Moments moments = optimizer.moments(parameter);
    const bool has_moments = kind == OptimizerKind::kAdamW;
    const at::Tensor exp_avg = has_moments ? moments.exp_avg.clone() : at::Tensor();
    const at::Tensor exp_avg_sq = has_moments ? moments.exp_avg_sq.clone() : at::Tensor();
    const auto is_as_before = [&] {
      return at::equal(parameter.master, master) && at::equal(parameter.compute, compute) &&
             (!has_moments || (at::equal(moments.exp_avg, exp_avg) && at::equal(moments.exp_avg_sq, exp_avg_sq)));
    };
    optimizer.keep(0);
    optimizer.step(0, 0.1);
    EXPECT_FALSE(is_as_before());
    optimizer.undo(0, at::scalar_tensor(false, at::kBool));
    EXPECT_FALSE(is_as_before());
    optimizer.undo(0, at::scalar_tensor(true, at::kBool));
    EXPECT_TRUE(is_as_before());
    optimizer.step(0, 0.1);
    optimizer.undo(0);
    EXPECT_TRUE(is_as_before());
  }
}

}  // namespace
}  // namespace plait::testing
