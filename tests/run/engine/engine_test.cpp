// What an engine promises besides right numbers: the same bits every time, named failures, bounded memory, a full trace.

#include "plait/run/engine/engine.h"

#include "plait/run/engine/delayed_transport.h"
#include "plait/run/engine/memory.h"

#include "tests/run/engine/engine_support.h"
#include "tests/run/engine/forwarding_transport.h"
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <thread>
#include <utility>

namespace plait {
namespace {

using namespace plait::testing;

constexpr std::int64_t kRows = 2;
constexpr std::int64_t kLength = 6;

VerifiedProgram program(std::string_view name, int ranks, int microbatches, int layers,
                        HeadTying tying = HeadTying::kUntied) {
  auto proved =
      program_of(name, ScheduleShape{.ranks = ranks, .microbatches = microbatches, .layers = layers, .tying = tying});
  EXPECT_TRUE(proved) << proved.error().message;
  return *std::move(proved);
}

std::vector<Microbatch> data_of(int microbatches, std::uint64_t seed = 5) {
  return make_data(microbatches, kRows, kLength, 29, Mask::kUneven, seed);
}

/// Hands everything on but one message.
class LosingTransport final : public ForwardingTransport {
 public:
  LosingTransport(std::unique_ptr<Transport> inner, Value lost) : ForwardingTransport(std::move(inner)), lost_(lost) {}
  void send(TransferId id, Message&& message) override {
    if (message.value != lost_) ForwardingTransport::send(id, std::move(message));
  }

 private:
  Value lost_;
};

/// Changes one message on its way.
class DamagingTransport final : public ForwardingTransport {
 public:
  using Damage = std::function<void(Message&)>;
  DamagingTransport(std::unique_ptr<Transport> inner, Damage damage)
      : ForwardingTransport(std::move(inner)), damage_(std::move(damage)) {}
  void send(TransferId id, Message&& message) override {
    damage_(message);
    ForwardingTransport::send(id, std::move(message));
  }

 private:
  Damage damage_;
};

TEST(Engine, ASilentRankIsNamedAndTheEngineIsDeadAfterwards) {
  const Value lost = Value::activation(EdgeId{0}, MicrobatchId{1}, SliceId{0});
  EngineOptions options{.type = ComputeType::kFloat64, .timeout_seconds = 0.2};
  options.wrap_transport = [&](std::unique_ptr<Transport> inner, ProcessGroup*) -> std::unique_ptr<Transport> {
    return std::make_unique<LosingTransport>(std::move(inner), lost);
  };
  const auto engine = make_engine(program("1f1b", 3, 4, 3), tiny_config(3, HeadTying::kUntied), options);
  const auto result = engine->train_step(data_of(4), 0.1);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kTimeout);
  EXPECT_EQ(result.error().rule, "engine.timeout");
  EXPECT_NE(result.error().message.find("rank 1, position"), std::string::npos) << result.error().message;
  EXPECT_NE(result.error().message.find("op 1F1: rank 0 has been silent for 0."), std::string::npos)
      << result.error().message;
  EXPECT_NE(result.error().message.find("it did send, so the message was lost on its way"), std::string::npos)
      << result.error().message;
  const auto again = engine->train_step(data_of(4), 0.1);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().rule, "engine.dead");
  EXPECT_NE(again.error().message.find(result.error().message), std::string::npos) << again.error().message;
}

TEST(Engine, ARankThatHangsIsNamedByTheOneThatWaitsForIt) {
  // Ranks 0, 2 and 3 wait in a chain for rank 1, whose second forward lasts longer than the others' patience.
  struct SlowKernels final : StageKernels {
    explicit SlowKernels(bool is_slow) : slow(is_slow) {}
    ForwardResult forward(const SliceData&, Payload, Stash*, KvCache*, StashRule) override {
      if (slow && ++calls == 2) std::this_thread::sleep_for(std::chrono::milliseconds(600));
      return {};
    }
    Stash recompute(const SliceData&, Stash, KvCache*, int, StashRule) override { return {}; }
    BackwardResult backward_input(const SliceData&, Payload, Stash, WeightStash*, KvCache*, int) override { return {}; }
    void backward_weight(WeightStash) override {}
    [[nodiscard]] std::vector<std::int64_t> input_widths() const override { return {}; }
    [[nodiscard]] std::vector<std::int64_t> output_widths() const override { return {}; }
    bool slow;
    int calls = 0;
  };
  EngineOptions options{.timeout_seconds = 0.2};
  options.kernels = [](const ModelConfig&, PartRange parts, ParameterSet&) {
    return std::make_unique<SlowKernels>(parts.begin == 5);
  };
  const auto engine = make_engine(program("gpipe", 4, 4, 4), tiny_config(4, HeadTying::kUntied), options);
  const auto result = engine->train_step(data_of(4), 0.1);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kTimeout);
  EXPECT_NE(result.error().message.find("rank 1 has been silent for 0."), std::string::npos) << result.error().message;
  EXPECT_NE(result.error().message.find("see why it hangs"), std::string::npos) << result.error().message;
}

Error damaged(const DamagingTransport::Damage& damage) {
  EngineOptions options{.type = ComputeType::kFloat64};
  options.wrap_transport = [&](std::unique_ptr<Transport> inner, ProcessGroup*) -> std::unique_ptr<Transport> {
    return std::make_unique<DamagingTransport>(std::move(inner), damage);
  };
  const auto engine = make_engine(program("gpipe", 2, 2, 2), tiny_config(2, HeadTying::kUntied), options);
  const auto result = engine->train_step(data_of(2), 0.1);
  EXPECT_FALSE(result);
  return result ? Error{} : result.error();
}

TEST(Engine, AMessageOfTheWrongTypeShapeOrNameIsRefusedNamingBoth) {
  const Error type = damaged([](Message& message) { message.tensors[0] = message.tensors[0].to(at::kFloat); });
  EXPECT_EQ(type.code, ErrorCode::kTransport);
  EXPECT_EQ(type.rule, "engine.message");
  EXPECT_EQ(type.message,
            "rank 1, position 1, op 1F0: from rank 0: the activation of edge 0, micro-batch 0 should be 1 tensors: "
            "Double [2, 6, 16]; got 1 tensors: Float [2, 6, 16]");
  const Error shape = damaged([](Message& message) { message.tensors[0] = message.tensors[0].narrow(1, 0, 5); });
  EXPECT_EQ(shape.rule, "engine.message");
  const Error name =
      damaged([](Message& message) { message.value = Value::activation(EdgeId{0}, MicrobatchId{1}, SliceId{0}); });
  EXPECT_EQ(name.rule, "engine.message");
}

TEST(Engine, AFailingOpIsNamed) {
  struct FailingKernels final : StageKernels {
    ForwardResult forward(const SliceData&, Payload, Stash*, KvCache*, StashRule) override {
      throw std::runtime_error("no room");
    }
    Stash recompute(const SliceData&, Stash, KvCache*, int, StashRule) override { return {}; }
    BackwardResult backward_input(const SliceData&, Payload, Stash, WeightStash*, KvCache*, int) override { return {}; }
    void backward_weight(WeightStash) override {}
    [[nodiscard]] std::vector<std::int64_t> input_widths() const override { return {}; }
    [[nodiscard]] std::vector<std::int64_t> output_widths() const override { return {}; }
  };
  EngineOptions options;
  options.kernels = [](const ModelConfig&, PartRange, ParameterSet&) { return std::make_unique<FailingKernels>(); };
  const auto engine = make_engine(program("gpipe", 2, 2, 2), tiny_config(2, HeadTying::kUntied), options);
  const auto result = engine->train_step(data_of(2), 0.1);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().rule, "engine.op_failed");
  EXPECT_EQ(result.error().message, "rank 0, position 0, op 0F0: no room");
}

/// Bits of all weights after three AdamW steps in fp32.
std::map<std::string, at::Tensor> trained(std::string_view name, int ranks, HeadTying tying,
                                          const TransportWrapper& wrap) {
  EngineOptions options;
  options.wrap_transport = wrap;
  const auto engine = make_engine(program(name, ranks, 4, 4, tying), tiny_config(4, tying), options);
  for (std::uint64_t step = 0; step < 3; ++step) {
    const auto result = engine->train_step(data_of(4, step), 0.01);
    EXPECT_TRUE(result) << result.error().message;
  }
  return weights_of(*engine);
}

class SameBits : public ::testing::TestWithParam<std::pair<std::string, int>> {};

TEST_P(SameBits, UnderASlowReorderingTransportAndNaNInFreedBuffers) {
  const auto& [name, ranks] = GetParam();
  const auto expected = trained(name, ranks, HeadTying::kTied, {});
  set_freed_memory(FreedMemory::kFillWithNaN);
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const auto result = trained(name, ranks, HeadTying::kTied, delay_at_random(seed, Nanos{2'000'000}));
    ASSERT_EQ(result.size(), expected.size());
    for (const auto& [tensor, value] : expected)
      EXPECT_TRUE(at::equal(result.at(tensor), value)) << tensor << ", seed " << seed;
  }
  set_freed_memory(FreedMemory::kLeaveAsIs);
}

INSTANTIATE_TEST_SUITE_P(Schedules, SameBits,
                         ::testing::Values(std::pair<std::string, int>{"gpipe", 2},
                                           std::pair<std::string, int>{"1f1b", 4}));

TEST(Engine, MemoryOfOneForwardOneBackwardDoesNotDependOnTheNumberOfMicrobatches) {
  std::vector<std::vector<Bytes>> peaks;
  for (const int microbatches : {4, 8, 16}) {
    const auto engine = make_engine(program("1f1b", 4, microbatches, 4), tiny_config(4, HeadTying::kUntied), {});
    const auto result = engine->train_step(data_of(microbatches), 0.1);
    ASSERT_TRUE(result) << result.error().message;
    peaks.push_back(result->peak_bytes);
  }
  EXPECT_EQ(peaks[1], peaks[0]);
  EXPECT_EQ(peaks[2], peaks[0]);
}

TEST(Engine, PeakBytesAreTheSameInEveryRun) {
  std::vector<std::vector<Bytes>> peaks;
  for (std::uint64_t run = 0; run < 4; ++run) {
    EngineOptions options;
    if (run > 0) options.wrap_transport = delay_at_random(run, Nanos{500'000});
    const auto engine = make_engine(program("gpipe", 3, 4, 3), tiny_config(3, HeadTying::kUntied), options);
    peaks.push_back(engine->train_step(data_of(4), 0.1)->peak_bytes);
  }
  for (const auto& peak : peaks) EXPECT_EQ(peak, peaks[0]);
}

TEST(Engine, StashesPeakAsTheScheduleSays) {
  const auto peak = [](std::string_view name) {
    const auto engine = make_engine(program(name, 4, 8, 4), tiny_config(4, HeadTying::kUntied), {});
    return engine->train_step(data_of(8), 0.1)->peak_stashes;
  };
  EXPECT_EQ(peak("1f1b"), (std::vector<int>{4, 3, 2, 1}));
  EXPECT_EQ(peak("gpipe"), (std::vector<int>{8, 8, 8, 8}));
}

TEST(Engine, ASteadyStepTakesNothingFromTheSystem) {
  const auto engine = make_engine(program("1f1b", 2, 6, 4), tiny_config(4, HeadTying::kUntied), {});
  for (int step = 0; step < 5; ++step) ASSERT_TRUE(engine->train_step(data_of(6), 0.1));
  const Bytes before = reserved_memory();
  for (int step = 0; step < 5; ++step) ASSERT_TRUE(engine->train_step(data_of(6), 0.1));
  // Messages in flight differ from step to step, so a block may still be missing: never more than one of each kind.
  EXPECT_LE((reserved_memory() - before).value(), 64 * 1024);
}

TEST(Engine, TheTraceHoldsEveryInstructionInOrderAndTheBytesThatMoved) {
  const auto engine = make_engine(program("1f1b", 2, 3, 2), tiny_config(2, HeadTying::kUntied), {});
  const auto result = engine->train_step(data_of(3), 0.1);
  ASSERT_TRUE(result) << result.error().message;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const Row& row = engine->program().rows[rank];
    ASSERT_EQ(result->trace[rank].size(), row.size());
    Nanos end{0};
    std::int64_t sent = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const TraceEvent& event = result->trace[rank][i];
      EXPECT_EQ(event.position, static_cast<int>(i));
      EXPECT_LE(end, event.start);
      EXPECT_LE(event.start, event.end);
      end = event.end;
      if (std::holds_alternative<Send>(row[i])) {
        EXPECT_EQ(event.moved, Bytes{kRows * kLength * 16 * 4});
        sent += event.moved.value();
      }
    }
    EXPECT_EQ(sent, 3 * kRows * kLength * 16 * 4);
    EXPECT_GE(result->bytes_moved[rank], Bytes{sent});
  }
}

TEST(Engine, StateMovesBetweenLayoutsByName) {
  const ModelConfig config = tiny_config(4, HeadTying::kTied);
  const auto source =
      make_engine(program("1f1b", 4, 4, 4, HeadTying::kTied), config, {.type = ComputeType::kFloat64}, 3);
  ASSERT_TRUE(source->train_step(data_of(4, 1), 0.01));
  const auto state = *source->save();
  EXPECT_EQ(state.size(), parameter_specs(config).size());
  for (const auto& [name, parameter] : state) EXPECT_EQ(parameter.moments.size(), 2U) << name;
  const auto next = source->train_step(data_of(4, 2), 0.01);
  ASSERT_TRUE(next);
  for (const int ranks : {1, 2, 3}) {
    const auto target =
        make_engine(program("gpipe", ranks, 4, 4, HeadTying::kTied), config, {.type = ComputeType::kFloat64}, 77);
    const auto loaded = target->load(state, 1);
    ASSERT_TRUE(loaded) << loaded.error().message;
    const auto result = target->train_step(data_of(4, 2), 0.01);
    ASSERT_TRUE(result);
    EXPECT_NEAR(result->loss, next->loss, 1e-12);
    expect_equal(weights_of(*target), weights_of(*source), 1e-9,
                 "weight");  // AdamW amplifies the rounding of small gradients
  }
}

TEST(Engine, ABadStateIsRefusedByName) {
  const ModelConfig config = tiny_config(2, HeadTying::kUntied);
  const auto engine = make_engine(program("gpipe", 2, 1, 2), config, {});
  const auto good = *engine->save();
  auto missing = good;
  missing.erase("model.norm.weight");
  EXPECT_EQ(engine->load(missing, 0).error().message,
            "model.norm.weight is missing; the state should hold all 21 tensors of the model");
  auto unknown = good;
  unknown["model.extra"] = good.at("model.norm.weight");
  EXPECT_EQ(engine->load(unknown, 0).error().message, "model.extra is no tensor of the model");
  auto misshapen = good;
  misshapen["model.norm.weight"].master = at::zeros({3, 4});
  EXPECT_EQ(engine->load(misshapen, 0).error().message,
            "model.norm.weight: the weight has shape [3, 4]; the model's is [16]");
  auto half = good;
  half["model.norm.weight"].moments.erase("exp_avg_sq");
  EXPECT_EQ(engine->load(half, 0).error().message,
            "model.norm.weight: exp_avg_sq is missing; AdamW needs both moments or none");
  EXPECT_TRUE(engine->load(good, 0));
}

class TiedCopies : public ::testing::TestWithParam<std::string> {};

TEST_P(TiedCopies, StayBitIdenticalAndEqualOneRank) {
  const ModelConfig config = tiny_config(8, HeadTying::kTied);
  const EngineOptions options{.type = ComputeType::kFloat64};
  const auto many = make_engine(program(GetParam(), 4, 8, 8, HeadTying::kTied), config, options);
  const auto one = make_engine(program("gpipe", 1, 8, 8, HeadTying::kTied), config, options);
  for (std::uint64_t step = 0; step < 5; ++step) {
    const auto a = many->train_step(data_of(8, step), 0.01);
    const auto b = one->train_step(data_of(8, step), 0.01);
    ASSERT_TRUE(a && b);
    EXPECT_NEAR(a->loss, b->loss, 1e-11);
    EXPECT_NEAR(a->grad_norm, b->grad_norm, 1e-10 * b->grad_norm);
    EXPECT_EQ(*many->diverged_copies(), std::vector<std::string>());
  }
}

// Two homes, replicas of every stage, and both uses on one rank.
INSTANTIATE_TEST_SUITE_P(Schedules, TiedCopies, ::testing::Values("1f1b", "dualpipe", "chimera", "zb-v"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Engine, SlicesMayHaveAnyLengths) {
  const auto sliced_program =
      program_of("seq1f1b", ScheduleShape{.ranks = 2, .microbatches = 3, .slices = 3, .layers = 4});
  ASSERT_TRUE(sliced_program) << sliced_program.error().message;
  const ModelConfig config = tiny_config(4, HeadTying::kUntied);
  EngineOptions options{.type = ComputeType::kFloat64, .optimizer = {.kind = OptimizerKind::kSgd}};
  const auto whole = make_engine(program("gpipe", 1, 3, 4), config, options);
  options.slice_lengths = {1, 3, 2};
  const auto sliced = make_engine(*sliced_program, config, options);
  const auto a = sliced->train_step(data_of(3), 0.1);
  const auto b = whole->train_step(data_of(3), 0.1);
  ASSERT_TRUE(a && b);
  EXPECT_NEAR(a->loss, b->loss, 1e-12);
  expect_equal(weights_of(*sliced), weights_of(*whole), 1e-10, "weight");
  options.slice_lengths = {1, 3, 1};
  const auto wrong = make_engine(*sliced_program, config, options)->train_step(data_of(3), 0.1);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().message,
            "micro-batch 0: slice lengths 1, 3, 1; there should be 3, all positive, with the sum 6");
}

TEST(Engine, BFloat16KeepsMastersInFp32AndLearns) {
  EngineOptions options{.type = ComputeType::kBFloat16};
  const auto engine = make_engine(program("1f1b", 2, 4, 4), tiny_config(4, HeadTying::kUntied), options);
  EXPECT_EQ(engine->save()->at("model.norm.weight").master.scalar_type(), at::kFloat);
  std::vector<double> losses;
  for (int step = 0; step < 10; ++step) {
    const auto result = engine->train_step(data_of(4), 0.01);
    ASSERT_TRUE(result) << result.error().message;
    losses.push_back(result->loss);
  }
  EXPECT_LT(losses.back(), losses.front() - 0.5);
}

TEST(Engine, BadDataIsRefusedBeforeAnythingRuns) {
  const auto engine = make_engine(program("gpipe", 2, 2, 2), tiny_config(2, HeadTying::kUntied), {});
  const auto message_of = [&](const std::vector<Microbatch>& data) {
    const auto result = engine->train_step(data, 0.1);
    EXPECT_FALSE(result);
    return result ? std::string() : result.error().rule + ": " + result.error().message;
  };
  EXPECT_EQ(message_of(data_of(3)), "engine.data: 3 micro-batches; the program takes 2");
  auto beyond = data_of(2);
  beyond[1].tokens.view(-1)[3].fill_(29);
  EXPECT_EQ(message_of(beyond), "engine.data: micro-batch 1: tokens hold id 29; the vocabulary has 29 entries");
  auto negative = data_of(2);
  negative[0].targets.view(-1)[0].fill_(-5);
  EXPECT_EQ(message_of(negative), "engine.data: micro-batch 0: targets hold id -5; the vocabulary has 29 entries");
  auto masked = data_of(2);
  for (Microbatch& microbatch : masked) microbatch.targets.fill_(kIgnoredTarget);
  EXPECT_EQ(message_of(masked), "engine.data: all targets of the step are masked: there is nothing to learn from");
  EXPECT_TRUE(engine->train_step(data_of(2), 0.1));
}

TEST(Engine, AProgramForAnotherModelIsRefused) {
  const auto layers = Engine::create(program("gpipe", 2, 2, 2), tiny_config(3, HeadTying::kUntied), {});
  ASSERT_FALSE(layers);
  EXPECT_EQ(layers.error().message, "the program is for 2 layers, the model has 3; build it with --layers 3");
  EXPECT_FALSE(Engine::create(program("gpipe", 2, 2, 2), tiny_config(2, HeadTying::kTied), {}));
}

TEST(Engine, EveryRankComputesOnOneThread) {
  const auto count_threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
  };
  std::thread([] {}).join();  // a sanitizer starts a thread of its own with the first one
  const auto before = count_threads();
  ModelConfig config = tiny_config(3, HeadTying::kUntied);
  config.hidden_size = 256;  // large enough that an intra-op pool would be used
  config.ffn_size = 1024;
  const auto engine = make_engine(program("1f1b", 3, 2, 3), config, {});
  ASSERT_TRUE(engine->train_step(make_data(2, 4, 64, 29, Mask::kNone, 1), 0.1));
  EXPECT_EQ(count_threads() - before, 3);
}

}  // namespace
}  // namespace plait
