#pragma once

#include "plait/base/result.h"
#include "plait/cli/schedule_flags.h"
#include "plait/sim/cost_model.h"
#include "plait/sim/model_shape.h"

#include <cstdint>
#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace plait {

/// The flags that say what an op costs where --times does not: shapes on a device, or a measured step.
struct CostFlags {
  std::optional<std::string> model;
  std::optional<std::string> device;
  std::optional<std::string> calibration;
  std::optional<std::string> cluster;
  std::optional<std::string> costs;
  std::optional<std::int64_t> seq;
  std::optional<std::int64_t> batch;
  std::optional<int> tensor;
  std::optional<int> context;
  std::optional<int> data;
  std::optional<std::string> dtype;
  std::string attention = "flash";
  bool sequence_parallel = false;
  std::optional<int> optimizer_shards;
};
void add_cost_flags(CLI::App& app, CostFlags& flags);

/// The model as --model, --seq, --batch, --dtype and --attention describe it; none without --model.
/// \errors those of read_model; kInvalidArgument "flags.conflict": a flag that needs --model
Result<std::optional<ModelShape>> resolve_model(const CostFlags& flags);

/// Takes the layers and the head from the model, so that the schedule is cut for it.
/// \errors kInvalidArgument "flags.conflict": --layers or --head say otherwise
Result<> shape_for_model(const ModelShape& model, ScheduleFlags& flags);

/// Costs from --device or --costs, with bytes where there is a model. One of --model and --costs must be there.
///
/// \errors kInvalidArgument "flags.conflict", "flags.missing", "device.*", "cluster.*", "calibration.*", "costs.*"; kIo
Result<CostModel> resolve_costs(const Program& program, const ScheduleFlags& schedule, const CostFlags& flags,
                                const std::optional<ModelShape>& model);

}  // namespace plait
