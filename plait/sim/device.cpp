#include "plait/sim/device.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace plait {
namespace {

constexpr double kNanos = 1e9;

// Passes over memory of what is no matrix product (add_times).
constexpr double kWholePasses = 10;
constexpr double kInnerPasses = 2;
constexpr double kLogitPasses = 6;
constexpr double kScorePasses = 6;
constexpr double kScorePassesBack = 8;
/// Bytes an Adam step moves per parameter: fp32 weight, two moments and gradient read, three written, 16-bit copy written.
constexpr double kStepBytes = 36;

struct PartSeconds {
  double forward = 0, backward = 0, weight = 0;
  double core = 0;  ///< share of forward that selective recompute repeats
};

class Clock {
 public:
  Clock(const ModelShape& shape, const Sharding& sharding, const Device& device, const Calibration& calibration,
        const DeviceOptions& options)
      : shape_(shape), sharding_(sharding), device_(device), calibration_(calibration), options_(options) {}

  [[nodiscard]] double link(Hops hops) const {
    return hops == Hops::kInsideNode ? device_.link_bytes_per_second * calibration_.link_efficiency
                                     : calibration_.network_bytes_per_second;
  }

  [[nodiscard]] PartSeconds of(PartKind part) const {
    const double t = sharding_.tensor;
    const double rows = static_cast<double>(shape_.batch) * static_cast<double>(shape_.tokens) / sharding_.context;
    const auto element = static_cast<double>(shape_.element_bytes);
    const double whole = element * rows * static_cast<double>(shape_.hidden);
    const double cut_whole = whole / (sharding_.sequence == SequenceParallel::kOn ? t : 1);
    const double inner =
        element * rows * static_cast<double>(shape_.ffn) / t * (shape_.mlp == MlpKind::kGated ? 1.5 : 1);
    const double flops = forward_flops(shape_, sharding_, part);
    const double all_reduce = t > 1 ? 2 * (t - 1) / t * whole / link(options_.tensor) : 0;
    PartSeconds s;
    const double width = static_cast<double>(shape_.hidden) / t;
    const double gemm_rate =
        device_.peak_flops * calibration_.gemm_efficiency * width / (width + calibration_.gemm_half_width);
    const auto gemms = [&](double count) {
      const double once = flops / gemm_rate + count * calibration_.gemm_seconds;
      s.forward += once;
      s.backward += once;
      s.weight += once;
    };
    const auto passes = [&](double bytes, double back) {
      const double once = bytes / (device_.memory_bytes_per_second * calibration_.memory_efficiency);
      s.forward += once;
      s.backward += back * once;
    };
    switch (part) {
      case PartKind::kEmbed: passes(2 * whole, 2); break;
      case PartKind::kNorm: passes(kWholePasses / 2 * cut_whole, 2); break;
      case PartKind::kQkv:
        gemms(1);
        s.backward += all_reduce;
        break;
      case PartKind::kAttn: {
        const bool flash = shape_.attention == AttentionKernel::kFlash;
        const double core =
            flops / (device_.peak_flops * calibration_.attention_efficiency) + 2 * calibration_.gemm_seconds;
        s.forward += core;
        s.backward += (flash ? 2.5 : 2) * core;
        if (!flash) {
          const double scores =
              element * rows * static_cast<double>(shape_.tokens) * static_cast<double>(shape_.heads) / t;
          passes(kScorePasses * scores, kScorePassesBack / kScorePasses);
        }
        s.core = s.forward;
        break;
      }
      case PartKind::kPost:
        gemms(shape_.mlp == MlpKind::kGated ? 4 : 3);
        passes(kWholePasses / 2 * cut_whole + kInnerPasses * inner, 2);
        s.forward += 2 * all_reduce;
        s.backward += all_reduce;
        break;
      case PartKind::kHead:
        gemms(1);
        passes(kLogitPasses * 4 * rows * static_cast<double>(shape_.vocab) / t, 1);
        s.backward += all_reduce;
        break;
    }
    return s;
  }

 private:
  const ModelShape& shape_;
  const Sharding& sharding_;
  const Device& device_;
  const Calibration& calibration_;
  const DeviceOptions& options_;
};

std::int64_t nanos(double seconds) {
  return std::llround(seconds * kNanos);
}

}  // namespace

Result<Device> parse_device(std::string_view text) {
  const auto refuse = [](const std::string& why) {
    return make_error(ErrorCode::kInvalidArgument, "device.json", "device description: {}", why);
  };
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object()) return refuse("not a JSON object");
  Device device;
  if (!json.contains("name") || !json["name"].is_string()) return refuse("\"name\" is missing");
  device.name = json["name"].get<std::string>();
  const std::pair<const char*, double*> numbers[] = {{"peak_flops", &device.peak_flops},
                                                     {"memory_bytes", &device.memory_bytes},
                                                     {"memory_bytes_per_second", &device.memory_bytes_per_second},
                                                     {"link_bytes_per_second", &device.link_bytes_per_second}};
  for (const auto& [key, number] : numbers) {
    const auto entry = json.find(key);
    if (entry == json.end() || !entry->is_object() || !entry->contains("value") || !(*entry)["value"].is_number())
      return refuse(fmt::format("\"{}\" has no number \"value\"", key));
    if (!entry->contains("source") || !(*entry)["source"].is_string() || (*entry)["source"].get<std::string>().empty())
      return refuse(fmt::format("\"{}\" has no \"source\"", key));
    *number = (*entry)["value"].get<double>();
    if (!(*number > 0) || !std::isfinite(*number))
      return refuse(fmt::format("\"{}\" is {}; it must be positive", key, *number));
  }
  return device;
}

namespace {

std::vector<std::pair<std::string, double*>> fields(Calibration& c) {
  return {{"gemm_efficiency", &c.gemm_efficiency},
          {"gemm_half_width", &c.gemm_half_width},
          {"gemm_seconds", &c.gemm_seconds},
          {"attention_efficiency", &c.attention_efficiency},
          {"memory_efficiency", &c.memory_efficiency},
          {"link_efficiency", &c.link_efficiency},
          {"network_bytes_per_second", &c.network_bytes_per_second}};
}

}  // namespace

Result<Calibration> parse_calibration(std::string_view text) {
  const auto refuse = [](const std::string& why) {
    return make_error(ErrorCode::kInvalidArgument, "calibration.json", "calibration: {}", why);
  };
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object()) return refuse("not a JSON object");
  Calibration calibration;
  for (const auto& [key, number] : fields(calibration)) {
    if (!json.contains(key) || !json[key].is_number()) return refuse(fmt::format("\"{}\" is missing", key));
    *number = json[key].get<double>();
    if (!(*number > 0) || !std::isfinite(*number))
      return refuse(fmt::format("\"{}\" is {}; it must be positive", key, *number));
  }
  return calibration;
}

std::string calibration_json(const Calibration& calibration) {
  nlohmann::ordered_json json;
  Calibration copy = calibration;
  for (const auto& [key, number] : fields(copy)) json[key] = *number;
  return json.dump(2) + "\n";
}

Result<> add_times(const Layout& layout, const ModelShape& shape, const Sharding& sharding, const Device& device,
                   const Calibration& calibration, const DeviceOptions& options, CostModel& costs) {
  PLAIT_TRY_VOID(check_shape(shape));
  if (sharding.tensor < 1 || sharding.context < 1 || sharding.data < 1)
    return make_error(ErrorCode::kInvalidArgument, "shape.sharding",
                      "tensor {}, context {}, data {}; none may be below 1", sharding.tensor, sharding.context,
                      sharding.data);
  const Clock clock(shape, sharding, device, calibration, options);
  costs.ticks_per_unit = static_cast<std::int64_t>(kNanos);
  costs.unit = "s";
  const double slices = layout.num_slices;
  const bool explicit_again = layout.recompute != Recompute::kNone;  // an R stands before each backward
  for (std::size_t s = 0; s < layout.stages.size(); ++s) {
    PartSeconds sum;
    double again = 0;
    for (int part = layout.stages[s].parts.begin; part < layout.stages[s].parts.end; ++part) {
      const PartKind kind = part_at(layout.num_layers, part).kind;
      const PartSeconds seconds = clock.of(kind);
      sum.forward += seconds.forward;
      sum.backward += seconds.backward;
      sum.weight += seconds.weight;
      const bool in_layer = kind != PartKind::kEmbed && kind != PartKind::kHead;
      if (explicit_again) {
        again += kind == PartKind::kAttn && layout.recompute == Recompute::kNoAttention ? 0 : seconds.forward;
        continue;
      }
      if (sharding.stash == StashPolicy::kKeepInput && in_layer) again += seconds.forward;
      if (sharding.stash == StashPolicy::kSelective) again += seconds.core;
    }
    for (int q = 0; q < layout.num_slices; ++q) {
      const auto set = [&](OpKind kind, double seconds) {
        costs.op(kind, StageId{static_cast<std::int32_t>(s)}, SliceId{q}).ticks = nanos(seconds / slices);
      };
      set(OpKind::kForward, sum.forward);
      set(OpKind::kRecompute, again);
      const double in_backward = explicit_again ? 0 : again;
      set(OpKind::kBackwardInput, sum.backward + in_backward);
      set(OpKind::kBackwardWeight, sum.weight);
      set(OpKind::kBackward, sum.backward + in_backward + sum.weight);
    }
  }
  const double replicas = static_cast<double>(sharding.data) * sharding.context;
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    double parameters = 0;
    for (const int part : layout.groups[g].parts)
      parameters +=
          static_cast<double>(parameter_count(shape, part_at(layout.num_layers, part).kind, Parameters::kAll));
    parameters /= sharding.tensor;
    const double step = parameters * kStepBytes / (device.memory_bytes_per_second * calibration.memory_efficiency);
    const double reduce = 2 * (replicas - 1) / replicas * parameters * static_cast<double>(shape.element_bytes) /
                          clock.link(options.data);
    costs.groups[g].step_ticks = nanos(step + reduce);
  }
  const Link link{
      .latency_ticks = nanos(calibration.gemm_seconds),
      .bytes_per_second = std::max<std::int64_t>(1, static_cast<std::int64_t>(clock.link(options.pipeline)))};
  costs.cluster = make_cluster(layout.num_ranks, 1, link, link, static_cast<std::int64_t>(kNanos));
  return {};
}

}  // namespace plait
