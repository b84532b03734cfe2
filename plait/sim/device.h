#pragma once

#include "plait/base/result.h"
#include "plait/sim/model_shape.h"

#include <string>
#include <string_view>

namespace plait {

/// What the data sheet of a device says; data/devices/NAME.json, where every number stands with its source.
struct Device {
  std::string name;
  double peak_flops = 0;  ///< per second, dense, the type that trains (bf16)
  double memory_bytes = 0;
  double memory_bytes_per_second = 0;
  double link_bytes_per_second = 0;  ///< to the other devices of its node, one direction
  friend bool operator==(const Device&, const Device&) = default;
};

/// \errors kInvalidArgument "device.json": no such thing, a number that is missing, not positive or without a source
Result<Device> parse_device(std::string_view json);

/// What a software stack makes of a device: fitted on few measured steps, or measured by a calibration run.
struct Calibration {
  double gemm_efficiency = 0.6;            ///< of peak_flops, for large matrix products
  double gemm_half_width = 64;             ///< D / t at which matrix products reach half of it
  double gemm_seconds = 10e-6;             ///< of every matrix product on top
  double attention_efficiency = 0.4;       ///< of peak_flops, in the attention core
  double memory_efficiency = 0.7;          ///< of the memory's bandwidth, in everything elementwise
  double link_efficiency = 0.7;            ///< of the links inside a node
  double network_bytes_per_second = 20e9;  ///< of one device to other nodes
  friend bool operator==(const Calibration&, const Calibration&) = default;
};

/// \errors kInvalidArgument "calibration.json": a number that is missing, unknown or not positive
Result<Calibration> parse_calibration(std::string_view json);
std::string calibration_json(const Calibration& calibration);

enum class Hops : std::uint8_t { kInsideNode, kBetweenNodes };

struct DeviceOptions {
  Hops pipeline = Hops::kInsideNode;  ///< where the neighbours of the pipeline are
  Hops data = Hops::kInsideNode;      ///< where the replicas are
  Hops tensor = Hops::kInsideNode;
};

/// Fills in the times of a cost model, in nanoseconds (unit "s"), from shapes and a device:
///
///   matrix products   flops / (peak x gemm_efficiency x w / (w + gemm_half_width)), w = D / t, + gemm_seconds each; twice for
///                     the backward (B and W once each)
///   attention core    flops / (peak x attention_efficiency); backward 2.5 times (flash makes the scores again) or 2;
///                     unfused also moves its scores: 6 passes forward, 8 backward
///   elementwise       bytes / (memory bandwidth x efficiency): 10 passes over B T D, 2 over the MLP's inner tensor, 6 over
///                     the logits; twice that backward
///   tensor parallel   2 all-reduces of B T D per layer and direction, ring: 2 (t-1)/t of the bytes
///   step              36 bytes per parameter through memory, and a ring all-reduce of its gradient over the replicas
///   recompute         selective: the attention core once more; full: the forward of the layers once more;
///                     where the layout recomputes, R takes it instead of the backward
///
/// Does not cover: overlap of any of these with each other, context parallelism's exchange of keys and values, contention,
/// clocks that drop under load.
/// \errors those of check_shape
Result<> add_times(const Layout& layout, const ModelShape& shape, const Sharding& sharding, const Device& device,
                   const Calibration& calibration, const DeviceOptions& options, CostModel& costs);

}  // namespace plait
