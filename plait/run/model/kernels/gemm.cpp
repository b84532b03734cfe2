#include "plait/run/model/kernels/gemm.h"

#include "plait/run/model/kernels/timing.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>

// MKL's, exported by libtorch_cpu where it was built with it. Row-major C (m,n) = alpha op(A) op(B) + beta C.
extern "C" [[gnu::weak]] void cblas_gemm_bf16bf16f32(int layout, int transpose_a, int transpose_b, int m, int n, int k,
                                                     float alpha, const void* a, int lda, const void* b, int ldb,
                                                     float beta, float* c, int ldc);

namespace plait::kernels {
namespace {

/// MKL's bf16 GEMM is there, and the processor one for which MKL has bf16 code; elsewhere it converts to fp32 first.
bool has_fast_bf16_gemm() {
#if defined(__x86_64__)
  static const bool kHas =
      &cblas_gemm_bf16bf16f32 != nullptr && __builtin_cpu_is("intel") && __builtin_cpu_supports("avx512bf16");
  return kHas;
#else
  return false;
#endif
}

/// The weight as the right factor of x: [K,O], a view.
at::Tensor as_right_factor(const at::Tensor& weight, WeightLayout layout) {
  return layout == WeightLayout::kOutIn ? weight.t() : weight;
}

/// Of a product of `rows` rows with a weight.
GemmShape shape_of(std::int64_t rows, const at::Tensor& weight, WeightLayout layout) {
  const bool out_first = layout == WeightLayout::kOutIn;
  return {.rows = rows, .inputs = weight.size(out_first ? 1 : 0), .outputs = weight.size(out_first ? 0 : 1)};
}

/// grad = beta grad + rows^T columns with bf16 factors and fp32 sums, by the GEMM of MKL inside libtorch.
/// \returns false if this processor has none, or the tensors are not such
bool accumulate_bf16_product(const at::Tensor& grad, const at::Tensor& rows, const at::Tensor& columns, float beta) {
  constexpr int kRowMajor = 101;
  constexpr int kNoTranspose = 111;
  constexpr int kTranspose = 112;
  if (!has_fast_bf16_gemm() || grad.scalar_type() != at::kFloat || rows.scalar_type() != at::kBFloat16 ||
      columns.scalar_type() != at::kBFloat16 || !grad.is_contiguous() || !rows.is_contiguous() ||
      !columns.is_contiguous())
    return false;
  const auto m = static_cast<int>(grad.size(0));
  const auto n = static_cast<int>(grad.size(1));
  const auto k = static_cast<int>(rows.size(0));
  cblas_gemm_bf16bf16f32(kRowMajor, kTranspose, kNoTranspose, m, n, k, 1.0F, rows.const_data_ptr(), m,
                         columns.const_data_ptr(), n, beta, static_cast<float*>(grad.mutable_data_ptr()), n);
  return true;
}

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, WeightLayout layout) {
  const KernelScope timed(KernelKind::kGemm, shape_of(x.size(0), weight, layout));
  const at::Tensor right = as_right_factor(weight, layout);
  return bias.defined() ? at::addmm(bias, x, right) : at::mm(x, right);
}

at::Tensor linear_plus(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight,
                       const at::Tensor& bias, WeightLayout layout) {
  const KernelScope timed(KernelKind::kGemm, shape_of(x.size(0), weight, layout));
  at::Tensor y = at::addmm(residual, x, as_right_factor(weight, layout));
  if (bias.defined()) y.add_(bias);
  return y;
}

void linear_plus_into(at::Tensor& y, const at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight,
                      const at::Tensor& bias, WeightLayout layout) {
  const KernelScope timed(KernelKind::kGemm, shape_of(x.size(0), weight, layout));
  at::addmm_out(y, residual, x, as_right_factor(weight, layout));
  if (bias.defined()) y.add_(bias);
}

at::Tensor linear_input_grad(const at::Tensor& dy, const at::Tensor& weight, WeightLayout layout) {
  const KernelScope timed(KernelKind::kGemmInputGrad, shape_of(dy.size(0), weight, layout));
  return at::mm(dy, layout == WeightLayout::kOutIn ? weight : weight.t());
}

void linear_input_grad_into(at::Tensor& dx, const at::Tensor& dy, const at::Tensor& weight, WeightLayout layout) {
  const KernelScope timed(KernelKind::kGemmInputGrad, shape_of(dy.size(0), weight, layout));
  at::mm_out(dx, dy, layout == WeightLayout::kOutIn ? weight : weight.t());
}

void accumulate_weight_grad(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& dy, WeightLayout layout,
                            Accumulate how) {
  const KernelScope timed(KernelKind::kGemmWeightGrad, shape_of(x.size(0), grad, layout));
  const at::Tensor& rows = layout == WeightLayout::kOutIn ? dy : x;
  const at::Tensor& columns = layout == WeightLayout::kOutIn ? x : dy;
  const int beta = how == Accumulate::kAdd ? 1 : 0;
  if (grad.scalar_type() == rows.scalar_type()) {
    grad.addmm_(rows.t(), columns, beta);
    return;
  }
  if (grad.is_cpu() && accumulate_bf16_product(grad, rows, columns, static_cast<float>(beta))) return;
  const at::Tensor product = grad.is_cuda() ? at::mm(rows.t(), columns, grad.scalar_type())  // not rounded on its way
                                            : at::mm(rows.t(), columns);
  if (how == Accumulate::kOverwrite)
    grad.copy_(product);
  else
    grad.add_(product);
}

void accumulate_bias_grad(const at::Tensor& grad, const at::Tensor& dy) {
  const KernelScope timed(KernelKind::kBiasGrad);
  grad.add_(at::sum(dy, {0}, /*keepdim=*/false, grad.scalar_type()));
}

}  // namespace plait::kernels
