#include "plait/cli/run/bench/gemm_rate.h"

#include "plait/cli/run/bench/samples.h"
#include "plait/run/model/kernels/gemm.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <map>
#include <thread>

namespace plait::bench {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

kernels::WeightLayout layout_of(bool conv1d) {
  return conv1d ? kernels::WeightLayout::kInOut : kernels::WeightLayout::kOutIn;
}

constexpr double kValue = 0.01;  // of all operands: products neither overflow nor become denormal

}  // namespace

GemmReplay::GemmReplay(const std::vector<Breakdown>& ranks, const ModelConfig& config, ComputeType type) {
  const at::TensorOptions element = at::TensorOptions().dtype(scalar_type(type));
  const at::TensorOptions wide = at::TensorOptions().dtype(master_type(type));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    std::map<GemmShape, Tensors> of_shape;  // forward and gradients of one size share them
    for (const Breakdown::GemmTotal& gemm : ranks[rank].gemms) {
      const GemmShape& shape = gemm.shape;
      const bool conv1d = config.family == ModelFamily::kGpt2 && shape.outputs != config.vocab_size;
      Tensors& operands = of_shape[shape];
      if (!operands.x.defined()) {
        const auto weight = [&](const at::TensorOptions& options) {
          return conv1d ? at::full({shape.inputs, shape.outputs}, kValue, options)
                        : at::full({shape.outputs, shape.inputs}, kValue, options);
        };
        operands = {.x = at::full({shape.rows, shape.inputs}, kValue, element),
                    .dy = at::full({shape.rows, shape.outputs}, kValue, element),
                    .weight = weight(element),
                    .grad = weight(wide)};
      }
      products_.push_back({.rank = rank, .step = gemm, .seconds = {}, .seconds_in_memory = {}});
      tensors_.push_back(operands);
      conv1d_.push_back(conv1d);
      flops_ += static_cast<double>(gemm.count * shape.flops());
    }
  }
}

void GemmReplay::run_product(std::size_t index) const {
  const Tensors& operands = tensors_[index];
  const kernels::WeightLayout layout = layout_of(conv1d_[index]);
  switch (products_[index].step.kernel) {
    case KernelKind::kGemmInputGrad: kernels::linear_input_grad(operands.dy, operands.weight, layout); break;
    case KernelKind::kGemmWeightGrad:
      kernels::accumulate_weight_grad(operands.grad, operands.x, operands.dy, layout);
      break;
    default: kernels::linear(operands.x, operands.weight, {}, layout); break;
  }
}

/// \param eviction  large enough to push everything else out of the caches
void GemmReplay::time_product(std::size_t index, const at::Tensor& eviction) {
  constexpr int kRepetitions = 3;  // behind one that finds nothing in the caches; their median counts
  std::vector<double> seconds;
  eviction.add_(1);
  for (int i = 0; i <= kRepetitions; ++i) {
    const double start = now();
    run_product(index);
    seconds.push_back(now() - start);
  }
  products_[index].seconds_in_memory.push_back(seconds.front());
  seconds.erase(seconds.begin());
  products_[index].seconds.push_back(median(std::move(seconds)));
}

void GemmReplay::pass() {
  std::size_t num_ranks = 0;
  for (const Product& product : products_) num_ranks = std::max(num_ranks, product.rank + 1);
  std::barrier gate(static_cast<std::ptrdiff_t>(std::max<std::size_t>(num_ranks, 1)));
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < num_ranks; ++rank)
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);  // as a rank's thread has it
      const at::AutoDispatchBelowADInplaceOrView no_autograd;
      constexpr std::int64_t kElements = std::int64_t{1} << 25;  // 128 MiB
      const at::Tensor eviction = at::full({kElements}, kValue, at::TensorOptions().dtype(at::kFloat));
      gate.arrive_and_wait();
      for (std::size_t i = 0; i < products_.size(); ++i)
        if (products_[i].rank == rank) time_product(i, eviction);
    });
  for (std::thread& thread : threads) thread.join();
  double in_caches = 0;
  double in_memory = 0;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    in_caches += rate_of(rank, Operands::kInCaches);
    in_memory += rate_of(rank, Operands::kInMemory);
  }
  rates_.push_back(in_caches);
  rates_in_memory_.push_back(in_memory);
}

/// Of the last pass.
double GemmReplay::rate_of(std::size_t rank, Operands where) const {
  double seconds = 0;
  double flops = 0;
  for (const Product& product : products_) {
    if (product.rank != rank) continue;
    const auto count = static_cast<double>(product.step.count);
    seconds += count * (where == Operands::kInCaches ? product.seconds : product.seconds_in_memory).back();
    flops += count * static_cast<double>(product.step.shape.flops());
  }
  return seconds > 0 ? flops / seconds : 0;
}

double square_gemm_rate(ComputeType type) {
  constexpr std::int64_t kSize = 1024;
  constexpr int kRepetitions = 8;
  const at::TensorOptions element = at::TensorOptions().dtype(scalar_type(type));
  const at::Tensor x = at::full({kSize, kSize}, kValue, element);
  const at::Tensor weight = at::full({kSize, kSize}, kValue, element);
  double best = 0;
  for (int i = 0; i < kRepetitions; ++i) {
    const double start = now();
    kernels::linear(x, weight, {}, kernels::WeightLayout::kOutIn);
    best = std::max(best, 2.0 * kSize * kSize * kSize / (now() - start));
  }
  return best;
}

double copy_bandwidth(std::int64_t bytes) {
  constexpr int kLeastRepetitions = 4;
  constexpr double kSeconds = 0.02;
  const std::int64_t elements = std::max<std::int64_t>(1, bytes / 8);
  const at::TensorOptions element = at::TensorOptions().dtype(at::kFloat);
  const at::Tensor from = at::full({elements}, kValue, element);
  const at::Tensor to = at::full({elements}, 0.0, element);
  double best = 0;
  const double begin = now();
  for (int i = 0; i < kLeastRepetitions || now() - begin < kSeconds; ++i) {
    const double start = now();
    to.copy_(from);
    best = std::max(best, 2.0 * static_cast<double>(from.nbytes()) / (now() - start));
  }
  return best;
}

}  // namespace plait::bench
