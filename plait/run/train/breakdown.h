#pragma once

#include "plait/ir/instr.h"
#include "plait/ir/parts.h"
#include "plait/ir/program.h"
#include "plait/run/engine/engine.h"
#include "plait/run/model/kernels/timing.h"

#include <cstdint>
#include <string>
#include <vector>

namespace plait {

/// Where one rank's time of one step went. All times of a table add up to what it breaks down.
struct Breakdown {
  Nanos duration;  ///< of the whole step
  Nanos begin;     ///< before the first instruction: gradients zeroed, the rank woken
  Nanos waiting;   ///< between instructions, until what an op reads had arrived, and behind the last one

  /// Instructions of one kind.
  struct InstrTotal {
    std::string kind;  ///< "F", "B", "W", "BW", "R", "step", "send", "wait_send", ...
    std::int64_t count = 0;
    Nanos time;
    Nanos in_kernels;  ///< of it
    bool is_transfer = false;
    friend bool operator==(const InstrTotal&, const InstrTotal&) = default;
  };
  std::vector<InstrTotal> instrs;  ///< by first occurrence

  /// Passes through parts of one kind by ops of one kind.
  struct PartTotal {
    PartKind part = PartKind::kEmbed;
    OpKind op = OpKind::kForward;
    std::int64_t count = 0;
    Nanos time;
    Nanos in_kernels;
    friend bool operator==(const PartTotal&, const PartTotal&) = default;
  };
  std::vector<PartTotal> parts;  ///< in the order of the chain

  /// Calls of one kernel.
  struct KernelTotal {
    KernelKind kernel = KernelKind::kGemm;
    std::int64_t count = 0;
    Nanos time;
    std::int64_t flops = 0;  ///< of weight products
    friend bool operator==(const KernelTotal&, const KernelTotal&) = default;
  };
  std::vector<KernelTotal> kernels;  ///< in the order of their kinds

  /// Weight products of one kind and size.
  struct GemmTotal {
    KernelKind kernel = KernelKind::kGemm;
    GemmShape shape;
    std::int64_t count = 0;
    Nanos time;
    friend bool operator==(const GemmTotal&, const GemmTotal&) = default;
  };
  std::vector<GemmTotal> gemms;  ///< by kernel and shape

  /// Neither in a kernel nor in a transfer nor waited for.
  Nanos uncovered;

  [[nodiscard]] double covered_ratio() const {
    return 1.0 - static_cast<double>(uncovered.value()) / static_cast<double>(duration.value());
  }
};

/// Of each rank, from a step that recorded its kernels.
std::vector<Breakdown> break_down(const Program& program, const StepResult& step);

/// "F", "send", ...: an op by its kind, any other instruction by its own name.
std::string kind_of(const Instr& instr);
/// "embed", "norm", "qkv", "attn", "post", "head".
std::string_view to_string(PartKind part);

}  // namespace plait
