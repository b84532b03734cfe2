// The single-pass loops, through the kernels that call them, against the ATen compositions; and every instruction set's
// loops against the plain ones.
#include "plait/run/model/kernels/cpu/loops.h"

#include "plait/run/model/kernels/embedding.h"
#include "plait/run/model/kernels/gemm.h"
#include "plait/run/model/kernels/reference.h"
#include "plait/run/model/stage_module.h"

#include "support.h"
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace plait::kernels {
namespace {

using test::relative_error;

struct Type {
  at::ScalarType type;
  double tolerance;
};
/// bf16 results may round to the neighbour: 2^-8 of the value.
const std::vector<Type> kTypes = {{at::kDouble, 1e-14}, {at::kFloat, 2e-6}, {at::kBFloat16, 8e-3}};
/// Widths around the lengths of the vectors, and one that is long.
const std::vector<std::int64_t> kWidths = {1, 2, 7, 8, 15, 16, 17, 33, 500};
constexpr std::int64_t kRows = 5;

at::Tensor random(at::IntArrayRef shape, at::ScalarType type) {
  return at::randn(shape, at::TensorOptions().dtype(at::kDouble)).to(type);
}

template <class Body>
void for_shapes(Body body) {
  for (const Type& type : kTypes)
    for (const std::int64_t width : kWidths) {
      SCOPED_TRACE(fmt::format("{} of width {}", at::toString(type.type), width));
      body(type, width);
    }
}

TEST(Loops, RmsNorm) {
  for_shapes([](const Type& t, std::int64_t width) {
    const at::Tensor x = random({kRows, width}, t.type);
    const at::Tensor w = random({width}, t.type);
    const at::Tensor dy = random({kRows, width}, t.type);
    const RmsNormResult expected = reference::rms_norm(x, w, 1e-5);
    const RmsNormResult result = rms_norm(x, w, 1e-5);
    EXPECT_LT(relative_error(result.y, expected.y), t.tolerance);
    EXPECT_LT(relative_error(result.rstd, expected.rstd), 2e-6);
    EXPECT_TRUE(rms_norm_apply(x, result.rstd, w).equal(result.y));
    for (const at::Tensor& residual : {at::Tensor(), random({kRows, width}, t.type)}) {
      const at::Tensor expected_dx = reference::rms_norm_input_grad(dy, x, expected.rstd, w, residual);
      const at::Tensor dx = rms_norm_input_grad(dy, x, expected.rstd, w, residual);
      // Of the terms that cancel, not of what is left: a single number's gradient is zero but for eps.
      const double terms = (dy * w * expected.rstd.reshape({kRows, 1})).abs().max().item<double>();
      const double scale = std::max(terms, expected_dx.abs().max().item<double>());
      EXPECT_LT((dx - expected_dx).abs().max().item<double>(), 2 * t.tolerance * scale);
    }
    const at::Tensor grad = random({width}, expected.rstd.scalar_type());
    const at::Tensor expected_grad = grad.clone();
    rms_norm_weight_grad(grad, dy, x, expected.rstd);
    reference::rms_norm_weight_grad(expected_grad, dy, x, expected.rstd);
    EXPECT_LT(relative_error(grad, expected_grad), 2e-6);
  });
}

TEST(Loops, LayerNorm) {
  for_shapes([](const Type& t, std::int64_t width) {
    const at::Tensor x = random({kRows, width}, t.type) + 3;
    const at::Tensor w = random({width}, t.type);
    const at::Tensor b = random({width}, t.type);
    const at::Tensor dy = random({kRows, width}, t.type);
    const LayerNormResult expected = reference::layer_norm(x, w, b, 1e-2);
    const LayerNormResult result = layer_norm(x, w, b, 1e-2);
    EXPECT_LT(relative_error(result.y, expected.y), 4 * t.tolerance);
    EXPECT_LT(relative_error(result.mean, expected.mean), 2e-6);
    EXPECT_LT(relative_error(result.rstd, expected.rstd), 2e-5);
    EXPECT_TRUE(layer_norm_apply(x, result.mean, result.rstd, w, b).equal(result.y));
    for (const at::Tensor& residual : {at::Tensor(), random({kRows, width}, t.type)}) {
      const at::Tensor expected_dx = reference::layer_norm_input_grad(dy, x, expected.mean, expected.rstd, w, residual);
      const at::Tensor dx = layer_norm_input_grad(dy, x, expected.mean, expected.rstd, w, residual);
      // Of the terms that cancel, not of what is left: a single number's gradient is zero.
      EXPECT_LT((dx - expected_dx).abs().max().item<double>(), 100 * t.tolerance);
    }
    const at::Tensor weight_grad = random({width}, expected.rstd.scalar_type());
    const at::Tensor bias_grad = weight_grad.clone();
    const at::Tensor expected_weight_grad = weight_grad.clone();
    const at::Tensor expected_bias_grad = weight_grad.clone();
    layer_norm_weight_grad(weight_grad, bias_grad, dy, x, expected.mean, expected.rstd);
    reference::layer_norm_weight_grad(expected_weight_grad, expected_bias_grad, dy, x, expected.mean, expected.rstd);
    EXPECT_LT(relative_error(weight_grad, expected_weight_grad), 1e-5);
    EXPECT_LT(relative_error(bias_grad, expected_bias_grad), 1e-5);
  });
}

TEST(Loops, Swiglu) {
  for_shapes([](const Type& t, std::int64_t width) {
    const at::Tensor gate_up = random({kRows, 2 * width}, t.type) * 4;
    const at::Tensor dy = random({kRows, width}, t.type);
    EXPECT_LT(relative_error(swiglu(gate_up), reference::swiglu(gate_up)), t.tolerance);
    const ActivationGrad expected = reference::swiglu_grad(dy.clone(), gate_up.clone());
    const ActivationGrad result = swiglu_grad(dy.clone(), gate_up.clone());
    EXPECT_LT(relative_error(result.input_grad, expected.input_grad), t.tolerance);
    EXPECT_LT(relative_error(result.output, expected.output), t.tolerance);
  });
}

TEST(Loops, GeluTanh) {
  for_shapes([](const Type& t, std::int64_t width) {
    const at::Tensor x = random({kRows, width}, t.type);
    const at::Tensor dy = random({kRows, width}, t.type);
    const at::Tensor wide = x.to(at::kDouble);
    EXPECT_LT(relative_error(gelu_tanh(x), reference::gelu_tanh(wide)), t.tolerance);
    const ActivationGrad expected = reference::gelu_tanh_grad(dy.to(at::kDouble), wide);
    const ActivationGrad result = gelu_tanh_grad(dy.clone(), x.clone());
    EXPECT_LT(relative_error(result.input_grad, expected.input_grad), t.tolerance);
    EXPECT_LT(relative_error(result.output, expected.output), t.tolerance);
  });
}

TEST(Loops, GeluTanhFarFromZero) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const at::Tensor x = at::linspace(-100, 100, 401, at::TensorOptions().dtype(type)).view({1, 401});
    EXPECT_LT((gelu_tanh(x) - reference::gelu_tanh(x)).abs().max().item<double>(), 1e-5);
    const ActivationGrad grad = gelu_tanh_grad(at::ones_like(x), x.clone());
    EXPECT_LT((grad.input_grad - reference::gelu_tanh_grad(at::ones_like(x), x).input_grad).abs().max().item<double>(),
              1e-5);
  }
}

TEST(Loops, SwigluFarFromZero) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const at::Tensor gate = at::linspace(-200, 200, 401, at::TensorOptions().dtype(type)).view({1, 401});
    const at::Tensor gate_up = at::cat({gate, at::ones_like(gate)}, 1);
    const at::Tensor result = swiglu(gate_up);
    EXPECT_TRUE(at::isfinite(result).all().item<bool>());
    EXPECT_LT((result - reference::swiglu(gate_up)).abs().max().item<double>(), 1e-5);
  }
}

TEST(Loops, Rotate) {
  for (const Type& t : kTypes)
    for (const std::int64_t size : {2, 6, 32, 34, 64}) {
      ModelConfig config;
      config.head_dim = size;
      RotaryTable table(config, t.type == at::kDouble ? at::kDouble : at::kFloat);
      const RotaryTable::Rows rows = table.rows(3, 4);
      const at::Tensor heads = random({2, 4, 3, size}, t.type).narrow(2, 0, 2);  // not dense
      const at::Tensor expected = at::empty_like(heads);
      const at::Tensor result = at::empty_like(heads.transpose(1, 2)).transpose(1, 2);  // other strides
      reference::rotate(expected, heads, rows, 1.0);
      rotate(result, heads, rows);
      EXPECT_LT(relative_error(result, expected), t.tolerance);
      const at::Tensor in_place = heads.clone();
      rotate(in_place, in_place, rows);
      EXPECT_TRUE(in_place.equal(result));
    }
}

TEST(Loops, CrossEntropy) {
  for_shapes([](const Type& t, std::int64_t width) {
    const at::Tensor logits = (random({kRows, width}, t.type) * 5 - 20).to(t.type);
    at::Tensor targets = at::randint(width, {kRows}, at::TensorOptions().dtype(at::kLong));
    targets[2] = kIgnoredTarget;
    const CrossEntropyResult expected = reference::cross_entropy(logits, targets);
    const CrossEntropyResult result = cross_entropy(logits, targets);
    EXPECT_LT(relative_error(result.lse, expected.lse), 1e-6);
    EXPECT_NEAR(result.loss.item<double>(), expected.loss.item<double>(), 1e-4);
    const at::Tensor expected_grad = reference::cross_entropy_grad(logits.clone(), expected.lse, targets, 0.25);
    const at::Tensor grad = cross_entropy_grad(logits.clone(), expected.lse, targets, 0.25);
    EXPECT_LT((grad - expected_grad).abs().max().item<double>(), t.tolerance);
    EXPECT_EQ(grad[2].abs().max().item<double>(), 0);
  });
}

TEST(Loops, CrossEntropyShowsNaN) {
  at::Tensor logits = random({2, 40}, at::kFloat);
  logits[1][33] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor targets = at::zeros({2}, at::TensorOptions().dtype(at::kLong));
  EXPECT_TRUE(std::isnan(cross_entropy(logits, targets).loss.item<double>()));
}

TEST(Loops, AccumulateRows) {
  for_shapes([](const Type& t, std::int64_t width) {
    const at::Tensor ids = at::randint(4, {2, 9}, at::TensorOptions().dtype(at::kLong));
    const at::Tensor dx = random({2, 9, width}, t.type);
    const at::Tensor grad = random({4, width}, t.type == at::kDouble ? at::kDouble : at::kFloat);
    const at::Tensor expected = grad.clone();
    accumulate_rows(grad, ids, dx);
    reference::accumulate_rows(expected, ids, dx);
    EXPECT_LT(relative_error(grad, expected), 1e-6);
  });
}

TEST(Gemm, WeightGradientsAddUpOrOverwrite) {
  for (const auto& [type, tolerance] : {std::pair(at::kDouble, 1e-14), {at::kFloat, 1e-5}, {at::kBFloat16, 5e-3}})
    for (const WeightLayout layout : {WeightLayout::kOutIn, WeightLayout::kInOut}) {
      const at::Tensor x = random({37, 21}, type);
      const at::Tensor dy = random({37, 50}, type);
      const at::Tensor first = layout == WeightLayout::kOutIn ? dy : x;
      const at::Tensor second = layout == WeightLayout::kOutIn ? x : dy;
      const at::Tensor grad = random({first.size(1), second.size(1)}, type == at::kDouble ? at::kDouble : at::kFloat);
      const at::Tensor product = at::mm(first.to(at::kDouble).t(), second.to(at::kDouble));
      const at::Tensor expected = grad.to(at::kDouble) + product;
      accumulate_weight_grad(grad, x, dy, layout);
      EXPECT_LT(relative_error(grad, expected), tolerance);
      const at::Tensor blank = at::full_like(grad, std::numeric_limits<double>::quiet_NaN());
      accumulate_weight_grad(blank, x, dy, layout, Accumulate::kOverwrite);
      EXPECT_LT(relative_error(blank, product), tolerance);
    }
}

#if defined(__x86_64__)
/// Attention and its gradients in fp32: out, lse, dq, dk, dv.
std::vector<at::Tensor> attend(const cpu::LoopTables& tables) {
  constexpr std::int64_t kTokens = 70;
  constexpr std::int64_t kSize = 48;
  const cpu::AttentionShape shape{
      .batch = 1, .heads = 2, .kv_heads = 1, .queries = kTokens, .keys = kTokens, .size = kSize, .causal = true};
  const at::Tensor wave = at::linspace(0, 300, 5 * kTokens * kSize).sin().view({5, kTokens * kSize});
  const auto heads = [](const at::Tensor& x) {
    return cpu::HeadData<float>{.data = x.mutable_data_ptr<float>(),
                                .strides = {.token = kSize, .head = kTokens * kSize}};
  };
  const auto given = [&](const at::Tensor& x) {
    const cpu::HeadData<float> data = heads(x);
    return cpu::HeadData<const float>{.data = data.data, .strides = data.strides};
  };
  const at::Tensor q = wave.narrow(0, 0, 2);
  const at::Tensor k = wave.narrow(0, 2, 1);
  const at::Tensor v = wave.narrow(0, 3, 1);
  const at::Tensor dout = wave.narrow(0, 3, 2);
  std::vector<at::Tensor> results{at::empty_like(q), at::zeros({2, kTokens}), at::empty_like(q), at::empty_like(k),
                                  at::empty_like(v)};
  const at::Tensor scratch = at::zeros({cpu::kAttentionScratch});
  tables.f32.attention(shape, given(q), given(k), given(v), heads(results[0]), results[1].mutable_data_ptr<float>(),
                       scratch.mutable_data_ptr<float>());
  tables.f32.attention_grad(shape, given(dout), given(q), given(k), given(v), given(results[0]),
                            results[1].const_data_ptr<float>(), heads(results[2]), heads(results[3]), heads(results[4]),
                            nullptr, scratch.mutable_data_ptr<float>());
  return results;
}

/// Every instruction set gives the numbers of the plain one, up to fused multiply-adds.
TEST(Loops, InstructionSetsAgree) {
  std::vector<cpu::LoopTables> sets;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) sets.push_back(cpu::avx2::tables());
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    sets.push_back(cpu::avx512::tables());
  if (__builtin_cpu_supports("avx512bf16")) sets.push_back(cpu::avx512bf16::tables());
  const cpu::LoopTables plain = cpu::base::tables();
  constexpr std::int64_t kWidth = 45;
  const at::Tensor gate_up = random({kRows, 2 * kWidth}, at::kFloat);
  const at::Tensor weight = random({2 * kWidth}, at::kFloat);
  const auto run = [&](const cpu::LoopTables& tables) {
    const auto* in = gate_up.const_data_ptr<float>();
    const at::Tensor act = at::zeros({kRows, kWidth});
    tables.f32.swiglu(in, act.mutable_data_ptr<float>(), kRows, kWidth);
    const at::Tensor normed = at::empty_like(gate_up);
    const at::Tensor rstd = at::zeros({kRows});
    tables.f32.rms_norm(in, weight.const_data_ptr<float>(), normed.mutable_data_ptr<float>(),
                        rstd.mutable_data_ptr<float>(), kRows, 2 * kWidth, 1e-5);
    const at::Tensor lse = at::zeros({kRows});
    const at::Tensor targets = at::zeros({kRows}, at::TensorOptions().dtype(at::kLong));
    tables.f32.cross_entropy(in, targets.const_data_ptr<std::int64_t>(), lse.mutable_data_ptr<float>(), kRows,
                             2 * kWidth);
    std::vector<at::Tensor> results{act, normed, rstd, lse};
    for (const at::Tensor& result : attend(tables)) results.push_back(result);
    return results;
  };
  const std::vector<at::Tensor> expected = run(plain);
  for (const cpu::LoopTables& tables : sets) {
    const std::vector<at::Tensor> results = run(tables);
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_LT(relative_error(results[i], expected[i]), 1e-6) << i;
  }
}
#endif

}  // namespace
}  // namespace plait::kernels
