#include "plait/sim/device.h"

#include "plait/base/files.h"
#include "plait/ir/lower.h"
#include "plait/schedules/schedule_info.h"
#include "plait/sim/simulate.h"

#include <gmock/gmock.h>

#include <filesystem>

namespace plait {
namespace {

TEST(Devices, EveryFileIsCompleteAndNamesItsSources) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(PLAIT_SOURCE_DIR "/data/devices")) {
    const auto device = parse_device(read_file(entry.path().string()).value());
    EXPECT_TRUE(device) << entry.path();
    ++count;
  }
  EXPECT_EQ(count, 6);
}

TEST(Devices, RefuseWhatIsMissing) {
  EXPECT_EQ(parse_device("{").error().rule, "device.json");
  EXPECT_EQ(parse_device(R"({"name": "x"})").error().rule, "device.json");
  EXPECT_EQ(parse_device(R"({"name": "x", "peak_flops": {"value": 1}})").error().rule, "device.json");
  EXPECT_EQ(parse_device(R"({"name": "x", "peak_flops": {"value": -1, "source": "s"}})").error().rule, "device.json");
  EXPECT_EQ(parse_calibration("{}").error().rule, "calibration.json");
  const Calibration calibration{.gemm_efficiency = 0.5};
  EXPECT_EQ(parse_calibration(calibration_json(calibration)).value(), calibration);
}

// A device whose memory and links cost nothing, at full efficiency: the step of one rank is its FLOPs over its peak.
TEST(DeviceTimes, AreFlopsOverPeakWhenNothingElseCosts) {
  constexpr double kFree = 1e30;
  const Device device{.name = "ideal",
                      .peak_flops = 1e12,
                      .memory_bytes = 1e12,
                      .memory_bytes_per_second = kFree,
                      .link_bytes_per_second = kFree};
  const Calibration calibration{.gemm_efficiency = 1,
                                .gemm_half_width = 1e-12,
                                .gemm_seconds = 1e-30,
                                .attention_efficiency = 1,
                                .memory_efficiency = 1,
                                .link_efficiency = 1,
                                .network_bytes_per_second = 1e15};
  const ModelShape shape = gpt_shape(4, 1024, 16, 50000, 1024, 2);
  const Program program = lower(build_schedule("1f1b", {.ranks = 1, .microbatches = 3, .layers = 4}).value()).value();
  const auto step_of = [&](const Sharding& sharding) {
    CostModel costs = zero_costs(program.layout);
    EXPECT_TRUE(add_times(program.layout, shape, sharding, device, calibration, {}, costs));
    return static_cast<double>(simulate(program, costs).value().makespan) / 1e9;
  };
  double layers = 0;
  for (const PartKind part : {PartKind::kQkv, PartKind::kAttn, PartKind::kPost})
    layers += 4 * forward_flops(shape, {}, part);
  const double head = forward_flops(shape, {}, PartKind::kHead);
  EXPECT_NEAR(step_of({}), 3 * 3 * (layers + head) / 1e12, 1e-6);
  EXPECT_NEAR(step_of({.stash = StashPolicy::kKeepInput}), 3 * (4 * layers + 3 * head) / 1e12, 1e-6);
  EXPECT_NEAR(step_of({.tensor = 4}), 3 * 3 * (layers + head) / 4e12, 1e-6);
}

}  // namespace
}  // namespace plait
