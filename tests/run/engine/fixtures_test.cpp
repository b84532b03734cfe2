// The reference models of ../shared/fixtures/models: losses of four AdamW and four SGD steps, and gradients, on 1, 2 and 4
// ranks; and on the deepest of them every registered system.

#include "plait/sim/slice_lengths.h"

#include "tests/run/engine/engine_support.h"
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <tuple>

namespace plait {
namespace {

using namespace plait::testing;
namespace fs = std::filesystem;

const fs::path kModels = fs::path(PLAIT_SHARED_DIR) / "fixtures" / "models";

nlohmann::json read_json(const fs::path& file) {
  std::ifstream in(file);
  return nlohmann::json::parse(in);
}

/// All tensors of a safetensors file as fp64: an 8-byte length, a JSON header, the data.
std::map<std::string, at::Tensor> read_tensors(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  const auto header = nlohmann::json::parse(bytes.substr(8, length));
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const at::ScalarType type = entry.at("dtype") == "F64" ? at::kDouble : at::kFloat;
    const auto begin = entry.at("data_offsets").at(0).get<std::uint64_t>();
    const auto shape = entry.at("shape").get<std::vector<std::int64_t>>();
    std::string copy = bytes.substr(8 + length + begin);  // from_blob wants writable memory
    tensors.emplace(name, at::from_blob(copy.data(), shape, type).to(at::kDouble, false, true));
  }
  return tensors;
}

struct Fixture {
  ModelConfig config;
  nlohmann::json reference;
  std::map<std::string, ParameterState> state;
  std::vector<Microbatch> rows;  ///< one micro-batch per row
};

Fixture read_fixture(const std::string& name) {
  const fs::path dir = kModels / name;
  Fixture fixture;
  auto config = read_model_config(dir);
  EXPECT_TRUE(config) << config.error().message;
  fixture.config = *config;
  fixture.reference = read_json(dir / "reference.json");
  const auto tensors = read_tensors(dir / "model.safetensors");
  for (const ParameterSpec& spec : parameter_specs(fixture.config)) {
    const auto found = tensors.find(spec.name);
    EXPECT_NE(found, tensors.end()) << spec.name;
    if (found != tensors.end()) fixture.state[spec.name].master = found->second;
  }
  for (const auto& row : fixture.reference.at("tokens")) {
    const auto ids = row.get<std::vector<std::int64_t>>();
    const auto length = static_cast<std::int64_t>(ids.size()) - 1;
    Microbatch microbatch{.tokens = at::empty({1, length}, at::kLong), .targets = at::empty({1, length}, at::kLong)};
    std::copy(ids.begin(), ids.end() - 1, microbatch.tokens.data_ptr<std::int64_t>());
    std::copy(ids.begin() + 1, ids.end(), microbatch.targets.data_ptr<std::int64_t>());
    fixture.rows.push_back(std::move(microbatch));
  }
  return fixture;
}

std::unique_ptr<Engine> engine_of(const Fixture& fixture, std::string_view schedule, int ranks,
                                  const OptimizerOptions& optimizer) {
  const HeadTying tying = fixture.config.tied_head ? HeadTying::kTied : HeadTying::kUntied;
  const auto program = program_of(schedule, ScheduleShape{.ranks = ranks,
                                                          .microbatches = static_cast<int>(fixture.rows.size()),
                                                          .layers = fixture.config.num_layers,
                                                          .tying = tying});
  EXPECT_TRUE(program) << program.error().message;
  auto engine =
      make_engine(*program, fixture.config, EngineOptions{.type = ComputeType::kFloat64, .optimizer = optimizer});
  const auto loaded = engine->load(fixture.state, 0);
  EXPECT_TRUE(loaded) << loaded.error().message;
  return engine;
}

const OptimizerOptions kAdamW{.kind = OptimizerKind::kAdamW,
                              .beta1 = 0.9,
                              .beta2 = 0.95,
                              .eps = 1e-8,
                              .weight_decay = 0.1,
                              .decay = DecayRule::kAll,
                              .clip = std::nullopt};
const OptimizerOptions kSgd{.kind = OptimizerKind::kSgd, .weight_decay = 0, .clip = std::nullopt};

class Fixtures : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!fs::exists(kModels)) GTEST_SKIP() << "the shared folder with the reference models is absent: " << kModels;
  }
  void expect_losses(const OptimizerOptions& optimizer, const char* key) {
    const Fixture fixture = read_fixture(GetParam());
    const auto expected = fixture.reference.at(key).at("losses_fp64").get<std::vector<double>>();
    for (const char* schedule : {"gpipe", "1f1b"}) {
      for (const int ranks : {1, 2, 4}) {
        if (ranks > fixture.config.num_layers) continue;
        const auto engine = engine_of(fixture, schedule, ranks, optimizer);
        for (const double loss : expected) {
          const auto result = engine->train_step(fixture.rows, fixture.reference.at(key).at("lr").get<double>());
          ASSERT_TRUE(result) << result.error().message;
          EXPECT_NEAR(result->loss, loss, 1e-9) << schedule << " on " << ranks << " ranks";
        }
      }
    }
  }
};

TEST_P(Fixtures, AdamWLosses) {
  expect_losses(kAdamW, "adamw");
}

TEST_P(Fixtures, SgdLosses) {
  expect_losses(kSgd, "sgd");
}

TEST_P(Fixtures, GradientsAndNorm) {
  const Fixture fixture = read_fixture(GetParam());
  const auto grads = read_tensors(kModels / GetParam() / "grads.safetensors");
  double largest = 0;
  for (const auto& [name, grad] : grads) largest = std::max(largest, grad.abs().max().item<double>());
  for (const int ranks : {1, 2, 4}) {
    if (ranks > fixture.config.num_layers) continue;
    const auto engine = engine_of(fixture, "1f1b", ranks, kSgd);
    const auto result = engine->train_step(fixture.rows, 0);
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_NEAR(result->grad_norm, fixture.reference.at("grad_norm_fp64").get<double>(), 1e-10);
    const auto gradients = *engine->last_gradients();
    EXPECT_EQ(gradients.size(), grads.size());
    for (const auto& [name, gradient] : gradients) {
      ASSERT_TRUE(grads.contains(name)) << name;
      EXPECT_LE(gradient.sub(grads.at(name)).abs().max().item<double>(), 1e-10 * largest)
          << name << " on " << ranks << " ranks";
    }
  }
}

/// Every system that takes the 12 layers and 12 rows on so many ranks. Those that cut sequences do so in slices of equal
/// numbers of tokens, and of equal compute, which are of unequal length.
class EverySystem : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  void SetUp() override {
    if (!fs::exists(kModels)) GTEST_SKIP() << "the shared folder with the reference models is absent: " << kModels;
  }
  void expect_losses(const Fixture& fixture, const VerifiedProgram& program, const std::vector<std::int64_t>& lengths) {
    for (const auto& [key, optimizer] : {std::pair{"adamw", kAdamW}, std::pair{"sgd", kSgd}}) {
      const auto engine =
          make_engine(program, fixture.config,
                      EngineOptions{.type = ComputeType::kFloat64, .optimizer = optimizer, .slice_lengths = lengths});
      ASSERT_NE(engine, nullptr);
      ASSERT_TRUE(engine->load(fixture.state, 0));
      const auto& reference = fixture.reference.at(key);
      for (const double loss : reference.at("losses_fp64").get<std::vector<double>>()) {
        const auto result = engine->train_step(fixture.rows, reference.at("lr").get<double>());
        ASSERT_TRUE(result) << result.error().message;
        EXPECT_NEAR(result->loss, loss, 1e-9) << key;
      }
    }
  }
};

TEST_P(EverySystem, GivesTheReferenceLosses) {
  const auto& [name, ranks] = GetParam();
  const ScheduleInfo& info = **find_schedule(name);
  const Fixture fixture = read_fixture("llama-deep-tiny");
  const auto num_tokens = static_cast<int>(fixture.rows.front().tokens.size(1));
  for (const std::optional<int> slices : {std::optional<int>{}, std::optional{3}}) {
    for (const SliceCut cut : {SliceCut::kEqualTokens, SliceCut::kEqualCompute}) {
      const ScheduleShape shape{.ranks = ranks,
                                .microbatches = static_cast<int>(fixture.rows.size()),
                                .slices = slices,
                                .layers = fixture.config.num_layers,
                                .tying = fixture.config.tied_head ? HeadTying::kTied : HeadTying::kUntied,
                                .slice_cut = cut};
      if (!info.supports(shape)) continue;
      const auto program = program_of(name, shape);
      ASSERT_TRUE(program) << program.error().message;
      const Layout& layout = program->program().layout;
      if (layout.mode == Mode::kForward) continue;
      std::vector<std::int64_t> lengths;
      if (cut == SliceCut::kEqualCompute) {
        // As in a model whose attention costs as much as all the rest.
        const auto balanced = balanced_slice_lengths(num_tokens, layout.num_slices,
                                                     SliceCost{.per_token = 1, .per_pair = 2.0 / num_tokens});
        ASSERT_TRUE(balanced) << balanced.error().message;
        lengths.assign(balanced->begin(), balanced->end());
        EXPECT_GT(lengths.front(), lengths.back() + 1);
      }
      SCOPED_TRACE(::testing::Message() << name << " ranks " << ranks << " slices " << layout.num_slices << " lengths "
                                        << ::testing::PrintToString(lengths));
      expect_losses(fixture, *program, lengths);
      if (HasFatalFailure()) return;
    }
  }
}

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const ScheduleInfo* info : all_schedules()) names.emplace_back(info->name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(LlamaDeepTiny, EverySystem,
                         ::testing::Combine(::testing::ValuesIn(schedule_names()), ::testing::Values(2, 3, 4)),
                         [](const auto& test) {
                           std::string name =
                               std::get<0>(test.param) + "_ranks_" + std::to_string(std::get<1>(test.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

INSTANTIATE_TEST_SUITE_P(Models, Fixtures,
                         ::testing::Values("gpt2-tiny", "llama-deep-tiny", "llama-gqa-tied-tiny", "llama-tiny",
                                           "qwen2-tiny"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace plait
