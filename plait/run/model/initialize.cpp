#include "plait/run/data/random.h"
#include "plait/run/model/parameters.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <numbers>
#include <string_view>

namespace plait {
namespace {

/// \source Fowler, Noll, Vo: FNV-1a, 64 bits
std::uint64_t hash_name(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

/// Standard deviation of the initial values of a matrix.
double initial_deviation(const ModelConfig& config, std::string_view name) {
  // Radford et al. 2019 (GPT-2), section 2.3: residual projections scaled by 1/sqrt(number of residual layers).
  if (config.family == ModelFamily::kGpt2 && name.ends_with("c_proj.weight"))
    return config.initializer_range / std::sqrt(2.0 * config.num_layers);
  return config.initializer_range;
}

/// Elements first, first + 1, ... of a tensor. Elements 2i and 2i+1 come from the uniform numbers 2i and 2i+1 (Box & Muller
/// 1958), in fp64 for every type.
template <class T>
void fill_normal(T* values, std::int64_t first, std::int64_t size, std::uint64_t key, double deviation) {
  for (std::int64_t i = first - first % 2; i < first + size; i += 2) {
    const auto counter = static_cast<std::uint64_t>(i);
    const double radius = deviation * std::sqrt(-2.0 * std::log(1.0 - uniform_at(key, counter)));
    const double angle = 2.0 * std::numbers::pi * uniform_at(key, counter + 1);
    if (i >= first) values[i - first] = static_cast<T>(radius * std::cos(angle));
    if (i + 1 < first + size) values[i + 1 - first] = static_cast<T>(radius * std::sin(angle));
  }
}

}  // namespace

void ParameterSet::initialize(std::uint64_t seed) {
  for (auto& [name, parameter] : by_name_) {
    if (name.ends_with(".bias")) {
      parameter.master.zero_();
    } else if (parameter.shape.size() == 1) {
      parameter.master.fill_(1.0);
    } else {
      const std::uint64_t key = random_bits(seed, hash_name(name));
      const double deviation = initial_deviation(config_, name);
      // Drawn on the host whatever the device of the parameters is.
      const at::Tensor values =
          at::empty(parameter.master.sizes(), at::TensorOptions().dtype(parameter.master.dtype()));
      if (values.scalar_type() == at::kDouble)
        fill_normal(values.mutable_data_ptr<double>(), parameter.begin, values.numel(), key, deviation);
      else
        fill_normal(values.mutable_data_ptr<float>(), parameter.begin, values.numel(), key, deviation);
      parameter.master.copy_(values);
    }
  }
  refresh_compute();
}

}  // namespace plait
