#include "plait/base/files.h"
#include "plait/ir/lower.h"
#include "plait/schedules/schedule_info.h"
#include "plait/sim/cluster.h"
#include "plait/sim/host.h"
#include "plait/sim/model_json.h"
#include "plait/sim/named_data.h"
#include "plait/sim/simulate.h"
#include "plait/sim/trace_costs.h"

#include <gtest/gtest.h>

#include <array>

namespace plait {
namespace {

Program program_of(const ScheduleShape& shape) {
  return lower(build_schedule("1f1b", shape).value()).value();
}

TEST(NamedData, EveryDescriptionThatComesAlongIsWhole) {
  int count = 0;
  for (const NamedData& data : named_data()) {
    if (data.kind == "cluster") {
      EXPECT_TRUE(parse_cluster(data.json)) << data.name;
    }
    if (data.kind == "model") {
      EXPECT_TRUE(parse_model(data.json)) << data.name;
    }
    ++count;
  }
  EXPECT_GE(count, 28);
}

TEST(NamedData, TakesUnambiguousBeginnings) {
  EXPECT_EQ(read_named("device", "h100").value(), read_named("device", "h100-80gb-sxm").value());
  EXPECT_EQ(read_named("device", "h").error().rule, "device.unknown");
  EXPECT_EQ(read_named("device", "").error().rule, "device.unknown");
  EXPECT_EQ(read_named("cluster", "h100").error().rule, "cluster.unknown");
  EXPECT_EQ(read_named("device", "missing/file.json").error().rule, "io.read");
}

// Parameters as the papers count them: 6.7 billion, 8.0 billion and 174.6 billion (Brown et al. 2020, table 2.1).
TEST(Models, HaveThePublishedNumbersOfParameters) {
  const auto parameters = [](const char* name) {
    const ModelShape shape = read_model(name).value();
    std::int64_t sum = 0;
    for (int part = 0; part < num_parts(shape.layers); ++part)
      sum += parameter_count(shape, part_at(shape.layers, part).kind, Parameters::kAll);
    return static_cast<double>(sum) / 1e9;
  };
  EXPECT_NEAR(parameters("llama-7b"), 6.738, 0.001);
  EXPECT_NEAR(parameters("llama-3.1-8b"), 8.030, 0.001);
  EXPECT_NEAR(parameters("gpt3-175b"), 174.6, 0.1);
  EXPECT_NEAR(parameters("gpt2"), 0.1244, 0.0001);
}

TEST(Models, RefuseWhatIsNoModel) {
  EXPECT_EQ(parse_model("[]").error().rule, "model.config");
  EXPECT_EQ(parse_model(R"({"model_type": "bert"})").error().rule, "model.type");
  EXPECT_EQ(parse_model(R"({"model_type": "llama", "hidden_size": -4})").error().rule, "model.config");
  EXPECT_EQ(read_model("llama-9b").error().rule, "model.unknown");
}

TEST(Clusters, PlaceRanksOfSeveralDevices) {
  const ClusterSpec spec = parse_cluster(read_named("cluster", "dgx-h100").value()).value();
  EXPECT_EQ(place_ranks(spec, 4, 4, 1, 1'000'000'000).node_of, (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(place_ranks(spec, 3, 16, 1, 1'000'000'000).node_of, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(place_ranks(spec, 4, 1, 0.5, 1'000'000'000).inner.bytes_per_second, 225'000'000'000);
  for (const int devices : {1, 2, 8, 16}) {
    const Cluster cluster = place_ranks(spec, 16, devices, 1, 1'000'000'000);
    EXPECT_TRUE(check_cluster(cluster, 16)) << devices;
  }
  EXPECT_EQ(parse_cluster("{}").error().rule, "cluster.json");
}

constexpr const char* kTrace = R"({"format": "plait-trace", "ops": [
  {"kind": "F", "stage": 0, "slice": 0, "start": 0, "end": 10}, {"kind": "F", "stage": 0, "slice": 0, "start": 10, "end": 22},
  {"kind": "F", "stage": 0, "slice": 0, "start": 22, "end": 122}, {"kind": "BW", "stage": 0, "slice": 0, "start": 200, "end": 225}],
  "transfers": [{"kind": "step", "group": "stage.0", "start": 300, "end": 307}]})";

TEST(TraceCosts, AreMediansOfTheOps) {
  const Program program = program_of({.ranks = 1, .microbatches = 3});
  const CostModel costs = trace_costs(program, kTrace).value();
  EXPECT_EQ(costs.op(OpKind::kForward, StageId{0}, SliceId{0}).ticks, 12);
  EXPECT_EQ(costs.op(OpKind::kBackward, StageId{0}, SliceId{0}).ticks, 25);
  EXPECT_EQ(costs.groups[0].step_ticks, 7);
  EXPECT_EQ(simulate(program, costs).value().makespan, 3 * (12 + 25) + 7);
  EXPECT_EQ(trace_costs(program_of({.ranks = 2, .microbatches = 3}), kTrace).error().rule, "costs.missing");
  EXPECT_EQ(trace_costs(program, "{}").error().rule, "costs.trace");
}

TEST(HostGrid, IsLinearInLogarithmsBetweenItsPoints) {
  const host::Grid grid{.axes = {{1, 100}, {2, 8}}, .values = {1, 2, 3, 4}};
  const auto at = [&](double x, double y) { return grid.at(std::array<double, 2>{x, y}); };
  EXPECT_DOUBLE_EQ(at(1, 2), 1);
  EXPECT_DOUBLE_EQ(at(100, 8), 4);
  EXPECT_DOUBLE_EQ(at(10, 2), 2);
  EXPECT_DOUBLE_EQ(at(10, 4), 2.5);
  EXPECT_DOUBLE_EQ(at(1e6, 1e6), 4);
  EXPECT_DOUBLE_EQ(at(0.1, 0.1), 1);
}

/// A machine on which every operation takes a picosecond alone and two in company, and nothing but products takes time.
host::Calibration ideal() {
  host::TypeCosts type;
  for (host::Grid& grid : type.products.alone) grid = {.axes = {{1}, {1}, {1}}, .values = {1e-12}};
  for (host::Grid& grid : type.products.shared) grid = {.axes = {{1}, {1}, {1}}, .values = {2e-12}};
  type.step_alone = type.step_shared = {.axes = {{1}}, .values = {0}};
  host::PartCosts& parts = type.mlps["gated"];
  for (auto& part : parts.parts)
    for (host::PartCost& cost : part) cost.alone = cost.shared = {.axes = {{1}, {1}}, .values = {0}};
  for (host::PartCost& cost : parts.parts[static_cast<std::size_t>(PartKind::kQkv)])
    cost.alone = cost.shared = {.axes = {{1}, {1}}, .values = {1}};
  return {.name = "ideal", .source = "a test", .cores = 2, .hand_over_seconds = 0, .types = {{"fp32", type}}};
}

ModelShape host_model() {
  return {.layers = 2,
          .hidden = 64,
          .heads = 4,
          .kv_heads = 4,
          .head_dim = 16,
          .ffn = 128,
          .vocab = 256,
          .tokens = 32,
          .batch = 4,
          .mlp = MlpKind::kGated,
          .element_bytes = 4};
}

TEST(Host, AddsUpItsParts) {
  const Program program = program_of({.ranks = 1, .microbatches = 1, .layers = 2});
  const CostModel costs = host::blended_costs(program, host_model(), ideal()).value();
  // Two layers, three products of 2 x 128 rows x 64 x 192 operations, a picosecond each.
  EXPECT_EQ(simulate(program, costs).value().makespan, 2 * 3 * 2 * 128 * 64 * 192 / 1000);
}

TEST(Host, CountsCompanyOnlyWhereThereIsSome) {
  // Two ranks, one micro-batch: never at work at once.
  const Program program = program_of({.ranks = 2, .microbatches = 1, .layers = 2});
  const CostModel costs = host::blended_costs(program, host_model(), ideal()).value();
  EXPECT_NEAR(static_cast<double>(simulate(program, costs).value().makespan), 2 * 3 * 2 * 128 * 64 * 192 / 1000.0, 4);
}

TEST(Host, FilesComeBackAsTheyWere) {
  const host::Calibration calibration = ideal();
  const std::string json = host::calibration_json(calibration);
  EXPECT_TRUE(host::is_calibration(json));
  EXPECT_EQ(host::parse_calibration(json).value(), calibration);
  EXPECT_FALSE(host::is_calibration("{}"));
  EXPECT_EQ(host::parse_calibration("{}").error().rule, "host.json");
}

TEST(Host, RefusesWhatWasNotMeasured) {
  const Program two = program_of({.ranks = 2, .microbatches = 2, .layers = 2});
  ModelShape half = host_model();
  half.element_bytes = 2;
  EXPECT_EQ(host::blended_costs(two, half, ideal()).error().rule, "host.type");
  host::Calibration one_core = ideal();
  one_core.cores = 1;
  EXPECT_EQ(host::blended_costs(two, host_model(), one_core).error().rule, "host.cores");
}

}  // namespace
}  // namespace plait
