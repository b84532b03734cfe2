#pragma once

#include "plait/base/ids.h"
#include "plait/run/model/config.h"
#include "plait/run/model/parameters.h"

#include <ATen/core/TensorBody.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace plait::bench {

/// One implementation of a kernel on operands of its own.
struct MicroSide {
  std::function<std::vector<at::Tensor>()> run;  ///< what it wrote
  std::function<void()> prepare = nullptr;       ///< not timed: makes operands again that a run consumes
};

/// One kernel at one size.
struct MicroCase {
  std::string kernel;  ///< "rms_norm_input_grad", "linear.qkv"
  std::string shape;   ///< "[512, 1408]"
  double bytes = 0;    ///< the least it moves: operands read once, results written once
  double flops = 0;    ///< zero where memory alone counts
  MicroSide ours;
  std::optional<MicroSide> aten;  ///< the composition of ATen operators; none where it is one itself
};

struct MicroShape {
  ModelConfig model;                 ///< sizes of one layer and the head; its number of layers does not matter
  std::int64_t tokens = 512;         ///< of a sequence
  std::int64_t microbatch_size = 1;  ///< sequences
  ComputeType type = ComputeType::kFloat32;
};

/// Every kernel of a model's parts, optimizer included, at the sizes of a micro-batch. Operands are made when a case is
/// first run.
std::vector<MicroCase> micro_cases(const MicroShape& shape);

struct MicroTiming {
  std::string kernel;
  std::string shape;
  double bytes = 0;
  double flops = 0;
  double copy_bandwidth = 0;         ///< bytes per second of a copy that moves as much
  double gemm_rate = 0;              ///< operations per second of a large product
  std::vector<double> seconds;       ///< of each repetition, in turn with the other side
  std::vector<double> aten;          ///< empty where there is no other side
  std::optional<double> difference;  ///< of the two results, over the largest element
  bool agrees = true;                ///< within the rounding of the data type

  /// What the roofline allows: the longer of bytes over bandwidth and operations over rate.
  [[nodiscard]] double roofline_seconds() const;
};

struct MicroOptions {
  double seconds_per_kernel = 0.2;  ///< of repetitions, both sides together
  std::function<void(const MicroTiming&)> on_timed = nullptr;
};

/// Runs the cases one by one: both sides once to compare them, then in turn. One thread.
/// \source Williams et al. 2009, "Roofline", doi:10.1145/1498765.1498785
std::vector<MicroTiming> time_micro(std::vector<MicroCase> cases, ComputeType type, const MicroOptions& options);

nlohmann::ordered_json micro_json(const std::vector<MicroTiming>& timings, nlohmann::ordered_json setup);
std::string micro_table(const std::vector<MicroTiming>& timings);

}  // namespace plait::bench
