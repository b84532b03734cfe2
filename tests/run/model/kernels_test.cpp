// Kernels against independent compositions of plain operators.
#include "plait/run/model/kernels/attention.h"
#include "plait/run/model/kernels/rotary.h"

#include "support.h"
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace plait::kernels {
namespace {

using test::relative_error;

struct Operands {
  at::Tensor q, k, v, dout;
};
Operands random_operands(std::int64_t groups, std::int64_t queries, std::int64_t keys, at::ScalarType type,
                         std::int64_t head_size = 8) {
  const auto make = [&](std::int64_t tokens, std::int64_t heads) {
    return at::randn({2, tokens, heads, head_size}, at::TensorOptions().dtype(at::kDouble)).to(type).transpose(1, 2);
  };
  return {.q = make(queries, 4), .k = make(keys, groups), .v = make(keys, groups), .dout = make(queries, 4)};
}

TEST(Attention, EqualsPlainMatrixProducts) {
  for (const auto& [type, tolerance] :
       {std::pair(at::kDouble, 1e-13), std::pair(at::kFloat, 1e-5), std::pair(at::kBFloat16, 2e-2)})
    for (const std::int64_t groups : {1, 2, 4})
      for (const auto& [queries, keys, size, mask] :
           {std::tuple(40, 40, 8, Mask::kCausal), std::tuple(40, 70, 8, Mask::kNone), std::tuple(1, 33, 8, Mask::kNone),
            // Sizes of the loops: one block and less, several blocks and spans, their last rows and keys.
            std::tuple(2, 2, 16, Mask::kCausal), std::tuple(97, 97, 64, Mask::kCausal),
            std::tuple(600, 600, 32, Mask::kCausal), std::tuple(100, 530, 48, Mask::kNone),
            std::tuple(130, 65, 256, Mask::kNone)}) {
        SCOPED_TRACE(
            fmt::format("{} groups, {} queries, {} keys of {}, {}", groups, queries, keys, size, at::toString(type)));
        const Operands x = random_operands(groups, queries, keys, type, size);
        const AttentionResult expected = attention_reference(x.q, x.k, x.v, mask);
        const AttentionResult result = attention(x.q, x.k, x.v, mask);
        EXPECT_LT(relative_error(result.out, expected.out), tolerance);
        EXPECT_LT(relative_error(result.lse, expected.lse), tolerance);
        const AttentionGrads expected_grads =
            attention_grad_reference(x.dout, x.q, x.k, x.v, expected.out, expected.lse, mask);
        const AttentionGrads grads = attention_grad(x.dout, x.q, x.k, x.v, expected.out, expected.lse, mask);
        EXPECT_LT(relative_error(grads.q, expected_grads.q), tolerance);
        EXPECT_LT(relative_error(grads.k, expected_grads.k), tolerance);
        EXPECT_LT(relative_error(grads.v, expected_grads.v), tolerance);
      }
}

TEST(AttentionSum, BlocksEqualAllKeysAtOnce) {
  const Operands x = random_operands(2, 6, 15, at::kDouble);
  const AttentionResult expected = attention_reference(x.q, x.k, x.v, Mask::kNone);
  AttentionSum sum;
  std::int64_t first = 0;
  for (const std::int64_t count : {4, 1, 10}) {
    sum.add(attention(x.q, x.k.narrow(2, first, count), x.v.narrow(2, first, count), Mask::kNone));
    first += count;
  }
  const AttentionResult result = std::move(sum).finish();
  EXPECT_LT(relative_error(result.out, expected.out), 1e-14);
  EXPECT_LT(relative_error(result.lse, expected.lse), 1e-14);
  EXPECT_TRUE(result.out.transpose(1, 2).is_contiguous());
}

TEST(Rotary, TurnsPairsByPositionTimesFrequency) {
  ModelConfig config;
  config.head_dim = 6;
  config.rope_theta = 100.0;
  RotaryTable table(config, at::kDouble);
  const at::Tensor heads = at::randn({1, 4, 2, 6}, at::TensorOptions().dtype(at::kDouble));
  const at::Tensor turned = heads.clone();
  rotate(turned, turned, table.rows(5, 4));
  for (std::int64_t t = 0; t < 4; ++t)
    for (std::int64_t head = 0; head < 2; ++head)
      for (std::int64_t i = 0; i < 3; ++i) {
        const double angle = static_cast<double>(t + 5) * std::pow(100.0, -static_cast<double>(2 * i) / 6.0);
        const auto at = [&](const at::Tensor& x, std::int64_t j) { return x[0][t][head][j].item<double>(); };
        EXPECT_NEAR(at(turned, i), at(heads, i) * std::cos(angle) - at(heads, i + 3) * std::sin(angle), 1e-14);
        EXPECT_NEAR(at(turned, i + 3), at(heads, i + 3) * std::cos(angle) + at(heads, i) * std::sin(angle), 1e-14);
      }
  rotate_back(turned, turned, table.rows(5, 4));
  EXPECT_LT(relative_error(turned, heads), 1e-15);
}

// Llama 3.1 (factor 8, 1, 4, 8192; theta 500000, head size 128), the rule written out: wavelengths below 8192/4 stay,
// above 8192/1 are divided by 8, between are blended. Pair i has wavelength 2 pi 500000^(i/64): i = 29 .. 34 lie between.
TEST(Rotary, Llama3Scaling) {
  ModelConfig config;
  config.head_dim = 128;
  config.rope_theta = 500000.0;
  const std::vector<double> plain = rotary_frequencies(config);
  config.rope_scaling = Llama3RopeScaling{};
  const std::vector<double> scaled = rotary_frequencies(config);
  ASSERT_EQ(scaled.size(), 64U);
  int blended = 0;
  for (std::size_t i = 0; i < 64; ++i) {
    const double wavelength = 2 * std::numbers::pi / plain[i];
    if (wavelength < 2048) {
      EXPECT_EQ(scaled[i], plain[i]);
    } else if (wavelength > 8192) {
      EXPECT_EQ(scaled[i], plain[i] / 8);
    } else {
      const double smooth = (8192 / wavelength - 1) / 3;
      EXPECT_NEAR(scaled[i], plain[i] * ((1 - smooth) / 8 + smooth), 1e-18);
      ++blended;
    }
  }
  EXPECT_EQ(blended, 6);
}

}  // namespace
}  // namespace plait::kernels
