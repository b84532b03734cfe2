#pragma once

#include "plait/base/result.h"
#include "plait/ir/parts.h"
#include "plait/ir/program.h"
#include "plait/sim/cost_model.h"
#include "plait/sim/model_shape.h"

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// What Plait's own engine costs on one machine, from a calibration of its single parts (`plait bench calibrate`).
namespace plait::host {

/// A part's work on one micro-batch.
enum class Phase : std::uint8_t {
  kForward,      ///< keeps its stash
  kForwardOnly,  ///< keeps nothing
  kBackward,     ///< gradient of the input
  kWeight,       ///< gradient of the weights
  kBoth,         ///< both gradients at once, part by part
};
inline constexpr int kNumPhases = 5;
inline constexpr int kNumPartKinds = 6;

/// Other ranks compute at the same time, or none does.
enum class Company : std::uint8_t { kAlone, kShared };

/// Values over a grid; between its points linear in the logarithms of the coordinates, outside as at the border.
struct Grid {
  std::vector<std::vector<double>> axes;  ///< ascending
  std::vector<double> values;             ///< the last axis runs fastest
  [[nodiscard]] double at(std::span<const double> point) const;
  friend bool operator==(const Grid&, const Grid&) = default;
};

/// How a part's time in one phase compares with work_seconds.
struct PartCost {
  Grid alone;  ///< measured over modelled time: over (R, D); attn (T, H), head (R, V)
  Grid shared;
  friend bool operator==(const PartCost&, const PartCost&) = default;
};

/// One type of elements, one kind of MLP.
struct PartCosts {
  std::array<std::array<PartCost, kNumPhases>, kNumPartKinds> parts;
  friend bool operator==(const PartCosts&, const PartCosts&) = default;
};

/// Matrix products of one type: seconds per floating-point operation over (R, inputs, outputs), for y = x W (forward),
/// dx = dy W (backward), dW += x dy (weight).
struct Products {
  std::array<Grid, 3> alone;
  std::array<Grid, 3> shared;
  friend bool operator==(const Products&, const Products&) = default;
};

struct TypeCosts {
  Products products;
  Grid step_alone;  ///< seconds per parameter of an optimizer step with all that belongs to it, over parameters
  Grid step_shared;
  std::map<std::string, PartCosts> mlps;  ///< "gated", "plain"
  friend bool operator==(const TypeCosts&, const TypeCosts&) = default;
};

struct Calibration {
  std::string name;    ///< of the processor
  std::string source;  ///< what measured it, and when
  int cores = 1;
  double hand_over_seconds = 0;            ///< from a send to the wake-up of its reader
  std::map<std::string, TypeCosts> types;  ///< "fp32", "bf16", "fp64"
  friend bool operator==(const Calibration&, const Calibration&) = default;
};

bool is_calibration(std::string_view json);
/// \errors kInvalidArgument "host.json"
Result<Calibration> parse_calibration(std::string_view json);
std::string calibration_json(const Calibration& calibration);

/// Modelled time of a part in one phase: its matrix products from the table, its other passes over memory at a fixed rate.
/// The measured ratio to it varies slowly with the sizes, so that it can be interpolated.
double work_seconds(const TypeCosts& type, Company company, const ModelShape& shape, std::int64_t tokens, PartKind part,
                    Phase phase);

/// Times and bytes of a program on the calibrated machine, one rank a core.
///
/// Bytes are those of engine_memory. Does not cover: more ranks than cores, emulated links.
///
/// \errors kInvalidArgument "host.type": not calibrated; "host.cores": more ranks than cores; those of check_shape
Result<CostModel> host_costs(const Program& program, const ModelShape& shape, const Calibration& calibration,
                             Company company);

/// host_costs for ranks that are not all at work all the time: each op takes between its time alone and in company, by the
/// share of it that falls into other ranks' ops. Found by simulating a few times.
/// \errors those of host_costs and simulate
Result<CostModel> blended_costs(const Program& program, const ModelShape& shape, const Calibration& calibration);

}  // namespace plait::host
