#include "plait/cli/run/calibrate/times.h"

#include "plait/cli/run/calibrate/chain.h"
#include "plait/run/engine/doorbell.h"
#include "plait/run/engine/engine.h"
#include "plait/run/engine/optimizer.h"
#include "plait/run/model/kernels/gemm.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>
#include <utility>

namespace plait::calibrate {
namespace {

using host::Company;
using host::Grid;
using host::Phase;

/// Times of a few things, one list of repetitions each.
using Timings = std::vector<std::vector<double>>;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The median.
double typical(std::vector<double> times) {
  if (times.empty()) return 0;
  const auto at = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), at, times.end());
  return *at;
}

/// One repetition; returns the seconds of each thing.
using Pass = std::function<std::vector<double>()>;
/// Sets up what one thread repeats.
using MakePass = std::function<Pass()>;

constexpr int kLeastRepetitions = 2;  // of a pass, which averages over micro-batches itself
constexpr int kMostRepetitions = 200;

/// Repeats a pass for a while: as often on every thread, so that company lasts to the end.
std::vector<double> repeat(const MakePass& make, int num_threads, double seconds) {
  std::vector<Timings> all(static_cast<std::size_t>(num_threads));
  int repetitions = kLeastRepetitions;
  std::barrier gate(num_threads);
  const auto work = [&](int thread) {
    at::set_num_threads(1);  // as a rank's thread has it
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    const Pass pass = make();
    const double start = now();
    pass();
    if (thread == 0)
      repetitions =
          std::clamp(static_cast<int>(seconds / std::max(1e-7, now() - start)), kLeastRepetitions, kMostRepetitions);
    gate.arrive_and_wait();
    Timings& timings = all[static_cast<std::size_t>(thread)];
    for (int i = 0; i < repetitions; ++i) {
      const std::vector<double> times = pass();
      timings.resize(times.size());
      for (std::size_t k = 0; k < times.size(); ++k) timings[k].push_back(times[k]);
    }
    gate.arrive_and_wait();
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < num_threads; ++thread) threads.emplace_back(work, thread);
  for (std::thread& thread : threads) thread.join();
  std::vector<double> seconds_of;
  for (std::size_t k = 0; k < all.front().size(); ++k) {
    std::vector<double> times;
    for (const Timings& timings : all) times.insert(times.end(), timings[k].begin(), timings[k].end());
    seconds_of.push_back(typical(std::move(times)));
  }
  return seconds_of;
}

constexpr int kCompanions = 2;  // ranks that compute at once

void note(const TimeOptions& options, const std::string& what) {
  if (options.on_note) options.on_note(what);
}

}  // namespace

host::Products time_products(ComputeType type, const TimeOptions& options) {
  const std::vector<double> rows = {64, 256, 1024, 4096};
  const std::vector<double> widths = {64, 128, 256, 512, 1024, 2048};
  constexpr double kMostOperations = 5e9;  // larger products run at the speed of the largest that is timed
  host::Products products;
  for (auto* side : {&products.alone, &products.shared})
    for (Grid& grid : *side) grid = {.axes = {rows, widths, widths}, .values = {}};
  const at::TensorOptions element = at::TensorOptions().dtype(scalar_type(type));
  const at::TensorOptions wide = at::TensorOptions().dtype(master_type(type));
  const std::size_t plane = widths.size() * widths.size();
  for (const double m : rows) {
    note(options, fmt::format("matrix products of {} rows", m));
    for (const double k : widths) {
      for (const double n : widths) {
        const double operations = 2 * m * k * n;
        for (const int num_threads : {1, kCompanions}) {
          auto& side = num_threads == 1 ? products.alone : products.shared;
          if (operations > kMostOperations && side[0].values.size() >= plane) {
            for (Grid& grid : side) grid.values.push_back(grid.values[grid.values.size() - plane]);
            continue;
          }
          const auto make = [&]() -> Pass {
            const auto size = [](double x) { return static_cast<std::int64_t>(x); };
            // More than one of what streams through, so that no repetition finds it in the first cache.
            constexpr std::size_t kBuffers = 3;
            std::vector<at::Tensor> xs, dys;
            for (std::size_t i = 0; i < kBuffers; ++i) {
              xs.push_back(at::full({size(m), size(k)}, 0.01, element));
              dys.push_back(at::full({size(m), size(n)}, 0.01, element));
            }
            const at::Tensor weight = at::full({size(n), size(k)}, 0.01, element);
            const at::Tensor grad = at::full({size(n), size(k)}, 0.0, wide);
            auto next = std::make_shared<std::size_t>(0);
            return [=] {
              const std::size_t i = (*next)++ % kBuffers;
              const double t0 = now();
              const at::Tensor y = kernels::linear(xs[i], weight, {}, kernels::WeightLayout::kOutIn);
              const double t1 = now();
              const at::Tensor dx = kernels::linear_input_grad(dys[i], weight, kernels::WeightLayout::kOutIn);
              const double t2 = now();
              kernels::accumulate_weight_grad(grad, xs[i], dys[i], kernels::WeightLayout::kOutIn);
              return std::vector<double>{t1 - t0, t2 - t1, now() - t2};
            };
          };
          const std::vector<double> seconds = repeat(make, num_threads, options.seconds_per_point / 6);
          for (std::size_t i = 0; i < seconds.size(); ++i) side[i].values.push_back(seconds[i] / operations);
        }
      }
    }
  }
  return products;
}

void time_steps(ComputeType type, const TimeOptions& options, host::TypeCosts& costs) {
  note(options, "optimizer steps");
  costs.step_alone = {};
  costs.step_shared = {};
  std::vector<double>& parameters = costs.step_alone.axes.emplace_back();
  for (const std::int64_t hidden : {48, 160, 512, 1024}) {
    const ModelConfig config = one_layer({.hidden = hidden,
                                          .heads = 4,
                                          .kv_heads = 4,
                                          .head_dim = hidden / 4,
                                          .ffn = 3 * hidden,
                                          .vocab = 256,
                                          .tokens = 128,
                                          .mlp = MlpKind::kGated});
    double count = 0;
    for (const ParameterSpec& spec : parameter_specs(config)) {
      double size = 1;
      for (const std::int64_t extent : spec.shape) size *= static_cast<double>(extent);
      count += size;
    }
    parameters.push_back(count);
    const auto make = [&]() -> Pass {
      auto set = std::make_shared<ParameterSet>(ParameterSet::create(config, {0, 1, 2, 3, 4, 5}, type));
      set->initialize(1);
      auto options_of = std::make_shared<OptimizerOptions>();
      std::vector<Parameter*> all;
      for (auto& [name, parameter] : set->by_name()) all.push_back(&parameter);
      auto optimizer = std::make_shared<RankOptimizer>(*options_of, std::vector<std::vector<Parameter*>>{all});
      return [=] {
        const double start = now();
        set->empty_grads();
        optimizer->begin_step();
        double sum = 0;
        for (const Parameter* parameter : all) sum += square_sum(parameter->grads.front());
        for (const Parameter* parameter : all) parameter->grads.front().mul_(sum > 1 ? 0.5 : 1.0);
        optimizer->step(0, 1e-3);
        (void)options_of;
        return std::vector<double>{now() - start};
      };
    };
    for (const int num_threads : {1, kCompanions}) {
      const double seconds = repeat(make, num_threads, options.seconds_per_point).front();
      (num_threads == 1 ? costs.step_alone : costs.step_shared).values.push_back(seconds / count);
    }
  }
  costs.step_shared.axes = costs.step_alone.axes;
}

namespace {

/// Sizes over which the ratios of some parts are measured, and how these parts' grids are spanned.
struct Survey {
  std::vector<double> first;  ///< axes of the grid
  std::vector<double> second;
  std::vector<PartKind> parts;
  std::function<ModelShape(double, double)> shape;
};

std::vector<Survey> surveys(MlpKind mlp) {
  const bool gated = mlp == MlpKind::kGated;
  const auto ffn = [gated](std::int64_t hidden) { return gated ? (8 * hidden / 3 + 31) / 32 * 32 : 4 * hidden; };
  constexpr std::int64_t kTokens = 128;
  constexpr std::int64_t kBytes = 256;
  std::vector<Survey> all;
  all.push_back({.first = {256, 1024, 4096},
                 .second = {64, 128, 256, 512},
                 .parts = {PartKind::kEmbed, PartKind::kNorm, PartKind::kQkv, PartKind::kPost},
                 .shape = [=](double rows, double width) {
                   const auto hidden = static_cast<std::int64_t>(width);
                   const std::int64_t heads = std::max<std::int64_t>(2, hidden / 32);
                   return ModelShape{.hidden = hidden,
                                     .heads = heads,
                                     .kv_heads = heads,
                                     .head_dim = hidden / heads,
                                     .ffn = ffn(hidden),
                                     .vocab = kBytes,
                                     .tokens = kTokens,
                                     .batch = static_cast<std::int64_t>(rows) / kTokens,
                                     .mlp = mlp};
                 }});
  all.push_back({.first = {32, 64, 128, 256, 512, 1024},
                 .second = {16, 32, 64, 128},
                 .parts = {PartKind::kAttn},
                 .shape = [=](double tokens, double head_dim) {
                   constexpr std::int64_t kRows = 2048;
                   constexpr std::int64_t kHeads = 4;
                   const auto t = static_cast<std::int64_t>(tokens);
                   const auto h = static_cast<std::int64_t>(head_dim);
                   return ModelShape{.hidden = kHeads * h,
                                     .heads = kHeads,
                                     .kv_heads = kHeads,
                                     .head_dim = h,
                                     .ffn = 64,
                                     .vocab = kBytes,
                                     .tokens = t,
                                     .batch = kRows / t,
                                     .mlp = mlp};
                 }});
  all.push_back({.first = {256, 1024, 2048},
                 .second = {256, 1024, 8192},
                 .parts = {PartKind::kHead},
                 .shape = [=](double rows, double vocab) {
                   return ModelShape{.hidden = 128,
                                     .heads = 4,
                                     .kv_heads = 4,
                                     .head_dim = 32,
                                     .ffn = 64,
                                     .vocab = static_cast<std::int64_t>(vocab),
                                     .tokens = kTokens,
                                     .batch = static_cast<std::int64_t>(rows) / kTokens,
                                     .mlp = mlp};
                 }});
  return all;
}

std::vector<double> seconds_of(const PassSeconds& pass) {
  std::vector<double> seconds;
  for (const auto& part : pass) seconds.insert(seconds.end(), part.begin(), part.end());
  return seconds;
}

}  // namespace

void time_parts(ComputeType type, MlpKind mlp, const TimeOptions& options, const host::TypeCosts& type_costs,
                host::PartCosts& costs) {
  for (const Survey& survey : surveys(mlp)) {
    for (const PartKind part : survey.parts)
      for (host::PartCost& cost : costs.parts[static_cast<std::size_t>(part)])
        cost.alone = cost.shared = {.axes = {survey.first, survey.second}, .values = {}};
    for (const double first : survey.first) {
      note(options, fmt::format("parts, {} MLP, {}", mlp == MlpKind::kGated ? "gated" : "plain", first));
      for (const double second : survey.second) {
        const ModelShape shape = survey.shape(first, second);
        const ModelConfig config = one_layer(shape);
        const auto make = [&]() -> Pass {
          auto chain = std::make_shared<Chain>(config, type, shape.batch, shape.tokens);
          return [chain] { return seconds_of(chain->run()); };
        };
        for (const int num_threads : {1, kCompanions}) {
          const Company company = num_threads == 1 ? Company::kAlone : Company::kShared;
          const std::vector<double> seconds = repeat(make, num_threads, options.seconds_per_point * 2);
          for (const PartKind part : survey.parts) {
            for (int phase = 0; phase < host::kNumPhases; ++phase) {
              const auto index = static_cast<std::size_t>(part) * host::kNumPhases + static_cast<std::size_t>(phase);
              const double modelled =
                  host::work_seconds(type_costs, company, shape, shape.tokens, part, static_cast<Phase>(phase));
              host::PartCost& cost = costs.parts[static_cast<std::size_t>(part)][static_cast<std::size_t>(phase)];
              (num_threads == 1 ? cost.alone : cost.shared)
                  .values.push_back(modelled > 0 ? seconds[index] / modelled : 0);
            }
          }
        }
      }
    }
  }
}

double time_hand_over() {
  constexpr int kRounds = 2000;
  Doorbell bells[2];
  for (Doorbell& bell : bells) bell.set_spin(spin_time(2));
  std::atomic<int> round = 0;  // whose turn it is: even for the first thread
  const auto play = [&](int self) {
    for (int i = self; i < 2 * kRounds; i += 2) {
      const auto deadline = Clock::now() + std::chrono::seconds(10);
      if (!bells[self].wait([&] { return round.load(std::memory_order_acquire) >= i; }, deadline)) return;
      round.store(i + 1, std::memory_order_release);
      bells[1 - self].ring();
    }
  };
  std::vector<double> times;
  for (int repetition = 0; repetition < 5; ++repetition) {
    round = 0;
    const double start = now();
    std::thread other(play, 1);
    play(0);
    other.join();
    times.push_back((now() - start) / (2 * kRounds));
  }
  return typical(std::move(times));
}

}  // namespace plait::calibrate
