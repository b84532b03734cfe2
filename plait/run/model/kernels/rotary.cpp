#include "plait/run/model/kernels/rotary.h"

#include "plait/run/model/kernels/dispatch.h"
#include "plait/run/model/kernels/reference.h"
#include "plait/run/model/kernels/timing.h"
#include "plait/run/model/kernels/types.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace plait::kernels {
namespace {

cpu::HeadStrides strides_of(const at::Tensor& heads) {
  return {.batch = heads.stride(0), .token = heads.stride(1), .head = heads.stride(2)};
}

/// Heads of one type that the loops know, dense inside, in host memory.
bool can_loop(const at::Tensor& out, const at::Tensor& heads, const RotaryTable::Rows& rows) {
  return heads.is_cpu() && out.is_cpu() && heads.stride(3) == 1 && out.stride(3) == 1 &&
         heads.scalar_type() == out.scalar_type() && rows.cos.scalar_type() == statistics_type(heads) &&
         (heads.scalar_type() == at::kFloat || heads.scalar_type() == at::kDouble ||
          heads.scalar_type() == at::kBFloat16);
}

/// out = heads turned by the angles whose cosine is cos and whose sine is direction * sin.
void rotate_by(const at::Tensor& out, const at::Tensor& heads, const RotaryTable::Rows& rows, double direction) {
  const KernelScope timed(KernelKind::kRotary);
  if (!can_loop(out, heads, rows)) return reference::rotate(out, heads, rows, direction);
  const cpu::HeadShape shape{
      .batch = heads.size(0), .tokens = heads.size(1), .heads = heads.size(2), .size = heads.size(3)};
  with_loops(heads.scalar_type(), [&](const auto& loops, auto element) {
    using T = decltype(element);
    using Wide = typename cpu::WideOf<T>::Type;
    loops.rotate(mutable_data_of<T>(out), strides_of(out), data_of<T>(heads), strides_of(heads), shape,
                 data_of<Wide>(rows.cos), data_of<Wide>(rows.sin), static_cast<Wide>(direction));
  });
}

}  // namespace

std::vector<double> rotary_frequencies(const ModelConfig& config) {
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < config.head_dim; i += 2) {
    const double exponent = static_cast<double>(i) / static_cast<double>(config.head_dim);
    double frequency = std::pow(config.rope_theta, -exponent);
    if (config.rope_scaling) {
      const Llama3RopeScaling& s = *config.rope_scaling;
      // Long waves are stretched by the factor, short ones kept, those between blended.
      const double context = static_cast<double>(s.original_max_position_embeddings);
      const double wavelength = 2.0 * std::numbers::pi / frequency;
      if (wavelength > context / s.low_freq_factor) {
        frequency /= s.factor;
      } else if (wavelength >= context / s.high_freq_factor) {
        const double smooth = (context / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
        frequency = (1.0 - smooth) * frequency / s.factor + smooth * frequency;
      }
    }
    frequencies.push_back(frequency);
  }
  return frequencies;
}

RotaryTable::RotaryTable(const ModelConfig& config, at::ScalarType type, at::Device device)
    : frequencies_(rotary_frequencies(config)), type_(type), device_(device) {}

RotaryTable::Rows RotaryTable::rows(std::int64_t first, std::int64_t count) {
  const std::int64_t known = cos_.defined() ? cos_.size(0) : 0;
  if (first + count > known) grow(std::max(first + count, 2 * known));
  return {.cos = cos_.narrow(0, first, count), .sin = sin_.narrow(0, first, count)};
}

void RotaryTable::grow(std::int64_t positions) {
  const auto half = static_cast<std::int64_t>(frequencies_.size());
  const at::Tensor cos = at::empty({positions, half}, at::TensorOptions().dtype(at::kDouble));
  const at::Tensor sin = at::empty({positions, half}, at::TensorOptions().dtype(at::kDouble));
  auto* cos_values = cos.mutable_data_ptr<double>();
  auto* sin_values = sin.mutable_data_ptr<double>();
  for (std::int64_t position = 0; position < positions; ++position)
    for (const double frequency : frequencies_) {
      const double angle = static_cast<double>(position) * frequency;
      *cos_values++ = std::cos(angle);
      *sin_values++ = std::sin(angle);
    }
  cos_ = cos.to(type_).to(device_);
  sin_ = sin.to(type_).to(device_);
}

void rotate(const at::Tensor& out, const at::Tensor& heads, const RotaryTable::Rows& rows) {
  rotate_by(out, heads, rows, 1.0);
}

void rotate_back(const at::Tensor& out, const at::Tensor& heads, const RotaryTable::Rows& rows) {
  rotate_by(out, heads, rows, -1.0);
}

}  // namespace plait::kernels
