#include "plait/run/engine/optimizer.h"

#include "plait/run/engine/engine.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>

namespace plait {
namespace {

Parameter make_parameter(const std::string& name, const at::Tensor& value) {
  return Parameter{.name = name,
                   .master = value.clone(),
                   .compute = {},
                   .grads = {at::zeros_like(value)},
                   .shape = value.sizes().vec()};
}

/// One number through AdamW, as the paper writes it (Loshchilov & Hutter 2019, algorithm 2), with torch's place of eps.
struct ReferenceAdamW {
  double m = 0;
  double v = 0;
  int t = 0;
  double step(double w, double g, const OptimizerOptions& o, double decay, double lr) {
    ++t;
    w -= lr * decay * w;
    m = o.beta1 * m + (1 - o.beta1) * g;
    v = o.beta2 * v + (1 - o.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(o.beta1, t));
    const double v_hat = v / (1 - std::pow(o.beta2, t));
    return w - lr * m_hat / (std::sqrt(v_hat) + o.eps);
  }
};

TEST(RankOptimizer, AdamWFollowsThePaperAndDecaysMatricesOnly) {
  Parameter matrix = make_parameter("matrix", at::linspace(-1, 1, 35, at::kDouble).view({5, 7}));
  Parameter vector = make_parameter("vector", at::linspace(1, 2, 11, at::kDouble));
  matrix.compute = matrix.master;
  vector.compute = vector.master;
  const OptimizerOptions options;
  RankOptimizer optimizer(options, {{&matrix, &vector}});
  std::vector<ReferenceAdamW> references(46);
  std::vector<double> expected;
  for (const Parameter* p : {&matrix, &vector})
    for (int i = 0; i < p->master.numel(); ++i) expected.push_back(p->master.view(-1)[i].item<double>());
  for (int step = 0; step < 3; ++step) {
    std::size_t at = 0;
    for (Parameter* p : {&matrix, &vector}) {
      for (int i = 0; i < p->master.numel(); ++i, ++at) {
        const double g = std::sin(static_cast<double>(at) + step);
        p->grads[0].view(-1)[i].fill_(g);
        expected[at] = references[at].step(expected[at], g, options, p == &matrix ? options.weight_decay : 0.0, 0.01);
      }
    }
    optimizer.begin_step();
    optimizer.step(0, 0.01);
  }
  std::size_t at = 0;
  for (const Parameter* p : {&matrix, &vector})
    for (int i = 0; i < p->master.numel(); ++i, ++at)
      EXPECT_NEAR(p->master.view(-1)[i].item<double>(), expected[at], 1e-13) << p->name << " " << i;
}

TEST(RankOptimizer, SgdTakesTheGradientAndDecay) {
  Parameter matrix = make_parameter("matrix", at::linspace(-1, 1, 6, at::kDouble).view({2, 3}));
  matrix.compute = matrix.master;
  const at::Tensor before = matrix.master.clone();
  const OptimizerOptions options{.kind = OptimizerKind::kSgd, .weight_decay = 0.5};
  RankOptimizer optimizer(options, {{&matrix}});
  matrix.grads[0].copy_(at::arange(6, at::kDouble).view({2, 3}));
  optimizer.begin_step();
  optimizer.step(0, 0.1);
  EXPECT_TRUE(matrix.master.allclose(before.sub(matrix.grads[0].add(before, 0.5), 0.1), 1e-15, 1e-15));
  EXPECT_FALSE(optimizer.moments(matrix).exp_avg.defined());
}

TEST(RankOptimizer, RefreshesTheCopyThatKernelsRead) {
  Parameter matrix = make_parameter("matrix", at::linspace(-1, 1, 6, at::kFloat).view({2, 3}));
  matrix.compute = matrix.master.to(at::kBFloat16);
  const OptimizerOptions options;
  RankOptimizer optimizer(options, {{&matrix}});
  matrix.grads[0].fill_(1);
  optimizer.begin_step();
  optimizer.step(0, 0.25);
  EXPECT_TRUE(matrix.compute.equal(matrix.master.to(at::kBFloat16)));
}

TEST(SquareSum, IsExactForSmallWholeNumbersInEveryType) {
  const at::Tensor numbers = at::arange(-5, 20, at::kDouble);  // sum of squares of -5..19: 55 + 2470
  EXPECT_EQ(square_sum(numbers), 2525.0);
  EXPECT_EQ(square_sum(numbers.to(at::kFloat)), 2525.0);
  EXPECT_NEAR(square_sum(numbers.view({5, 5}).t()), 2525.0, 1e-9);
}

}  // namespace
}  // namespace plait
