#include "plait/run/model/kernels/timing.h"

#include "plait/base/check.h"

namespace plait {

std::string_view to_string(KernelKind kind) {
  switch (kind) {
    case KernelKind::kGemm: return "gemm";
    case KernelKind::kGemmInputGrad: return "gemm_input_grad";
    case KernelKind::kGemmWeightGrad: return "gemm_weight_grad";
    case KernelKind::kBiasGrad: return "bias_grad";
    case KernelKind::kAttention: return "attention";
    case KernelKind::kAttentionGrad: return "attention_grad";
    case KernelKind::kNorm: return "norm";
    case KernelKind::kNormInputGrad: return "norm_input_grad";
    case KernelKind::kNormWeightGrad: return "norm_weight_grad";
    case KernelKind::kActivation: return "activation";
    case KernelKind::kActivationGrad: return "activation_grad";
    case KernelKind::kRotary: return "rotary";
    case KernelKind::kCrossEntropy: return "cross_entropy";
    case KernelKind::kCrossEntropyGrad: return "cross_entropy_grad";
    case KernelKind::kEmbedding: return "embedding";
    case KernelKind::kEmbeddingGrad: return "embedding_grad";
    case KernelKind::kCopy: return "copy";
    case KernelKind::kZeroGrads: return "zero_grads";
    case KernelKind::kSquareSum: return "square_sum";
    case KernelKind::kClip: return "clip";
    case KernelKind::kOptimizer: return "optimizer";
  }
  PLAIT_CHECK(false, "kernel kind {}", static_cast<int>(kind));
}

void KernelLog::begin(std::chrono::steady_clock::time_point origin) {
  origin_ = origin;
  position_ = KernelEvent::kBeforeRow;
  part_.reset();
  in_kernel_ = false;
  events_.clear();
}

Nanos KernelLog::now() const {
  const auto elapsed = std::chrono::steady_clock::now() - origin_;
  return Nanos{std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count()};
}

std::size_t KernelLog::open(std::optional<KernelKind> kernel, const GemmShape& gemm) {
  events_.push_back(KernelEvent{.position = position_, .part = part_, .kernel = kernel, .gemm = gemm});
  events_.back().start = now();
  return events_.size() - 1;
}

void KernelScope::begin(KernelKind kind, const GemmShape& gemm) {
  if (log_->in_kernel_) {
    log_ = nullptr;
    return;
  }
  log_->in_kernel_ = true;
  event_ = log_->open(kind, gemm);
}

void KernelScope::end() {
  log_->events_[event_].end = log_->now();
  log_->in_kernel_ = false;
}

void PartScope::begin(const Part& part) {
  log_->part_ = part;
  event_ = log_->open(std::nullopt, {});
}

void PartScope::end() {
  log_->events_[event_].end = log_->now();
  log_->part_.reset();
}

}  // namespace plait
