#pragma once

#include "plait/base/ids.h"
#include "plait/ir/parts.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace plait {

/// What the time inside an op is counted under.
enum class KernelKind : std::uint8_t {
  kGemm,            ///< x W^T
  kGemmInputGrad,   ///< dy W
  kGemmWeightGrad,  ///< dy^T x
  kBiasGrad,
  kAttention,
  kAttentionGrad,
  kNorm,
  kNormInputGrad,
  kNormWeightGrad,
  kActivation,
  kActivationGrad,
  kRotary,  ///< and its gradient
  kCrossEntropy,
  kCrossEntropyGrad,
  kEmbedding,
  kEmbeddingGrad,
  kCopy,  ///< and sums of tensors
  kZeroGrads,
  kSquareSum,  ///< of the gradients, for the global norm
  kClip,
  kOptimizer,  ///< and rounding the weights to the compute type
};
inline constexpr int kNumKernelKinds = static_cast<int>(KernelKind::kOptimizer) + 1;

/// "gemm", "gemm_input_grad", ..., "optimizer".
std::string_view to_string(KernelKind kind);

/// Sizes of a weight product: [rows, inputs] times [inputs, outputs], or one of its gradients.
struct GemmShape {
  std::int64_t rows = 0;
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  [[nodiscard]] std::int64_t flops() const { return 2 * rows * inputs * outputs; }
  friend auto operator<=>(const GemmShape&, const GemmShape&) = default;
};

/// One kernel call, or one pass through a part. A part comes before the kernels that run in it.
struct KernelEvent {
  static constexpr int kBeforeRow = -1;
  int position = kBeforeRow;         ///< of the instruction, as in a trace
  std::optional<Part> part;          ///< in which it runs; none outside of the model's parts
  std::optional<KernelKind> kernel;  ///< none: the part as a whole
  GemmShape gemm;                    ///< of weight products; zero for others
  Nanos start;                       ///< since the start of the step
  Nanos end;
  friend bool operator==(const KernelEvent&, const KernelEvent&) = default;
};

/// What one rank's kernels did in one step.
class KernelLog {
 public:
  /// Forgets what it holds; times count from `origin`.
  void begin(std::chrono::steady_clock::time_point origin);
  /// Events from here on belong to this instruction.
  void set_position(int position) { position_ = position; }
  [[nodiscard]] const std::vector<KernelEvent>& events() const { return events_; }

 private:
  friend class KernelScope;
  friend class PartScope;
  [[nodiscard]] Nanos now() const;
  std::size_t open(std::optional<KernelKind> kernel, const GemmShape& gemm);

  std::chrono::steady_clock::time_point origin_;
  int position_ = KernelEvent::kBeforeRow;
  std::optional<Part> part_;
  bool in_kernel_ = false;
  std::vector<KernelEvent> events_;
};

/// Where kernels of this thread are written down; null, as it is at first, costs them a test and nothing else.
///
///     const RecordingScope recording(&log);   // or null: as it was
class RecordingScope {
 public:
  explicit RecordingScope(KernelLog* log) : outer_(active) {
    if (log != nullptr) active = log;
  }
  ~RecordingScope() { active = outer_; }
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;

  [[nodiscard]] static KernelLog* current() { return active; }

 private:
  static inline thread_local constinit KernelLog* active = nullptr;
  KernelLog* outer_;
};

/// The time of one kernel. Of kernels that call others, the outer one alone is written down.
class KernelScope {
 public:
  explicit KernelScope(KernelKind kind, const GemmShape& gemm = {}) : log_(RecordingScope::current()) {
    if (log_ != nullptr) [[unlikely]]
      begin(kind, gemm);
  }
  ~KernelScope() {
    if (log_ != nullptr) [[unlikely]]
      end();
  }
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

 private:
  void begin(KernelKind kind, const GemmShape& gemm);
  void end();
  KernelLog* log_;
  std::size_t event_ = 0;
};

/// The time of one pass through a part.
class PartScope {
 public:
  explicit PartScope(const Part& part) : log_(RecordingScope::current()) {
    if (log_ != nullptr) [[unlikely]]
      begin(part);
  }
  ~PartScope() {
    if (log_ != nullptr) [[unlikely]]
      end();
  }
  PartScope(const PartScope&) = delete;
  PartScope& operator=(const PartScope&) = delete;

 private:
  void begin(const Part& part);
  void end();
  KernelLog* log_;
  std::size_t event_ = 0;
};

}  // namespace plait
