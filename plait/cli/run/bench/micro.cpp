#include "plait/cli/run/bench/micro.h"

#include "plait/base/table.h"
#include "plait/cli/run/bench/gemm_rate.h"
#include "plait/cli/run/bench/samples.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <utility>

namespace plait::bench {
namespace {

constexpr double kGiga = 1e9;
constexpr double kMicro = 1e-6;
constexpr int kLeastRepetitions = 5;
constexpr int kMostRepetitions = 2000;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double time_once(const MicroSide& side) {
  if (side.prepare) side.prepare();
  const double start = now();
  const std::vector<at::Tensor> results = side.run();
  return now() - start;
}

std::vector<at::Tensor> results_of(const MicroSide& side) {
  if (side.prepare) side.prepare();
  std::vector<at::Tensor> results;
  for (const at::Tensor& result : side.run()) results.push_back(result.clone());
  return results;
}

/// Largest difference over the largest element.
double difference_of(const std::vector<at::Tensor>& ours, const std::vector<at::Tensor>& theirs) {
  double worst = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const at::Tensor a = ours[i].to(at::kDouble);
    const at::Tensor b = theirs[i].to(at::kDouble);
    const double largest = std::max(b.abs().max().item<double>(), 1e-30);
    const double difference = (a - b).abs().max().item<double>() / largest;
    worst = std::isnan(difference) ? difference : std::max(worst, difference);
  }
  return worst;
}

/// Sums of a few thousand products in another order, and results rounded to the type.
double tolerance_of(ComputeType type) {
  switch (type) {
    case ComputeType::kFloat64: return 1e-10;
    case ComputeType::kBFloat16: return 5e-2;
    case ComputeType::kFloat32: break;
  }
  return 2e-4;
}

/// Bandwidth of copies by what they move, in powers of two.
class CopyBandwidths {
 public:
  double of(double bytes) {
    constexpr double kLeast = 1 << 16;
    const auto size = static_cast<std::int64_t>(std::exp2(std::ceil(std::log2(std::max(bytes, kLeast)))));
    const auto [at, is_new] = known_.try_emplace(size, 0.0);
    if (is_new) at->second = copy_bandwidth(size);
    return at->second;
  }

 private:
  std::map<std::int64_t, double> known_;
};

MicroTiming time_case(const MicroCase& each, ComputeType type, const MicroOptions& options) {
  MicroTiming timing{.kernel = each.kernel, .shape = each.shape, .bytes = each.bytes, .flops = each.flops};
  const std::vector<at::Tensor> ours = results_of(each.ours);
  if (each.aten) {
    timing.difference = difference_of(ours, results_of(*each.aten));
    timing.agrees = *timing.difference <= tolerance_of(type);
  }
  const double begin = now();
  for (int i = 0; i < kMostRepetitions; ++i) {
    if (i >= kLeastRepetitions && now() - begin > options.seconds_per_kernel) break;
    timing.seconds.push_back(time_once(each.ours));
    if (each.aten) timing.aten.push_back(time_once(*each.aten));
  }
  return timing;
}

std::string microseconds(double seconds) {
  return fmt::format("{:.1f}", seconds / kMicro);
}

}  // namespace

double MicroTiming::roofline_seconds() const {
  return std::max(bytes / copy_bandwidth, flops / gemm_rate);
}

std::vector<MicroTiming> time_micro(std::vector<MicroCase> cases, ComputeType type, const MicroOptions& options) {
  CopyBandwidths bandwidths;
  const double gemm_rate = square_gemm_rate(type);
  std::vector<MicroTiming> timings;
  for (MicroCase& each : cases) {
    MicroTiming timing = time_case(each, type, options);
    timing.copy_bandwidth = bandwidths.of(each.bytes);
    timing.gemm_rate = gemm_rate;
    if (options.on_timed) options.on_timed(timing);
    timings.push_back(std::move(timing));
    each = {};  // operands that no later case shares go
  }
  return timings;
}

nlohmann::ordered_json micro_json(const std::vector<MicroTiming>& timings, nlohmann::ordered_json setup) {
  nlohmann::ordered_json document = std::move(setup);
  document["gemm_gflops"] = timings.empty() ? 0.0 : timings.front().gemm_rate / kGiga;
  document["kernels"] = nlohmann::ordered_json::array();
  for (const MicroTiming& timing : timings) {
    const double own = median(timing.seconds);
    nlohmann::ordered_json row{{"kernel", timing.kernel},
                               {"shape", timing.shape},
                               {"bytes", timing.bytes},
                               {"flops", timing.flops},
                               {"repetitions", timing.seconds.size()},
                               {"time_s", figures_of(timing.seconds, Better::kLower)},
                               {"aten_time_s", figures_of(timing.aten, Better::kLower)},
                               {"speedup", nullptr},
                               {"difference", nullptr},
                               {"agrees", timing.agrees},
                               {"gb_per_s", timing.bytes / own / kGiga},
                               {"gflops", timing.flops / own / kGiga},
                               {"copy_gb_per_s", timing.copy_bandwidth / kGiga},
                               {"roofline_s", timing.roofline_seconds()},
                               {"share_of_roofline", timing.roofline_seconds() / own}};
    if (!timing.aten.empty()) row["speedup"] = median(timing.aten) / own;
    if (timing.difference) row["difference"] = *timing.difference;
    document["kernels"].push_back(std::move(row));
  }
  return document;
}

std::string micro_table(const std::vector<MicroTiming>& timings) {
  TextTable table({{"kernel"},
                   {"shape"},
                   {"us", Align::kRight},
                   {"best us", Align::kRight},
                   {"ATen us", Align::kRight},
                   {"speedup", Align::kRight},
                   {"GB/s", Align::kRight},
                   {"GF/s", Align::kRight},
                   {"% of roofline", Align::kRight}});
  for (const MicroTiming& timing : timings) {
    const double own = median(timing.seconds);
    table.add_row({timing.kernel, timing.shape, microseconds(own),
                   microseconds(*std::min_element(timing.seconds.begin(), timing.seconds.end())),
                   timing.aten.empty() ? "" : microseconds(median(timing.aten)),
                   timing.aten.empty() ? "" : fmt::format("{:.2f}", median(timing.aten) / own),
                   fmt::format("{:.1f}", timing.bytes / own / kGiga),
                   timing.flops > 0 ? fmt::format("{:.1f}", timing.flops / own / kGiga) : "",
                   fmt::format("{:.0f}", 100 * timing.roofline_seconds() / own)});
  }
  return table.print();
}

}  // namespace plait::bench
