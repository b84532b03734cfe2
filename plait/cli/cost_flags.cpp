#include "plait/cli/cost_flags.h"

#include "plait/base/files.h"
#include "plait/sim/cluster.h"
#include "plait/sim/device.h"
#include "plait/sim/host.h"
#include "plait/sim/model_json.h"
#include "plait/sim/named_data.h"
#include "plait/sim/trace_costs.h"

#include <CLI/CLI.hpp>

#include <utility>

namespace plait {
namespace {

Error conflict(std::string_view what) {
  return make_error(ErrorCode::kInvalidArgument, "flags.conflict", "{}", what);
}

std::int64_t element_bytes(const std::string& dtype) {
  if (dtype == "fp64") return 8;
  return dtype == "fp32" ? 4 : 2;
}

/// The devices of one rank.
Sharding sharding_of(const CostFlags& flags) {
  return {.tensor = flags.tensor.value_or(1),
          .context = flags.context.value_or(1),
          .data = flags.data.value_or(1),
          .sequence = flags.sequence_parallel ? SequenceParallel::kOn : SequenceParallel::kOff};
}

/// Costs of the engine itself on a calibrated machine. Where several ranks compute at once only for a part of the time, an op
/// costs something between what it takes alone and in company.
Result<CostModel> costs_on_host(const Program& program, const CostFlags& flags, const ModelShape& model,
                                std::string_view text) {
  const std::pair<const char*, bool> foreign[] = {{"--calibration", flags.calibration.has_value()},
                                                  {"--cluster", flags.cluster.has_value()},
                                                  {"--tensor", flags.tensor.value_or(1) != 1},
                                                  {"--context", flags.context.value_or(1) != 1},
                                                  {"--data", flags.data.value_or(1) != 1},
                                                  {"--sequence-parallel", flags.sequence_parallel},
                                                  {"--optimizer-shards", flags.optimizer_shards.value_or(1) != 1}};
  for (const auto& [flag, given] : foreign)
    if (given) return conflict(std::string(flag) + " does not go with a calibrated machine, whose ranks are threads");
  PLAIT_TRY(const host::Calibration calibration, host::parse_calibration(text));
  return host::blended_costs(program, model, calibration);
}

Result<> add_device_times(const Program& program, const CostFlags& flags, const ModelShape& model, CostModel& costs) {
  constexpr std::int64_t kBf16 = 2;
  PLAIT_TRY(const std::string device_text, read_named("device", *flags.device));
  PLAIT_TRY(const Device device, parse_device(device_text));
  if (model.element_bytes != kBf16)
    return make_error(ErrorCode::kInvalidArgument, "device.dtype",
                      "--dtype {}: {} is described by its peak in bf16; leave the flag away", *flags.dtype,
                      device.name);
  Calibration calibration;
  if (flags.calibration) {
    PLAIT_TRY(const std::string text, read_named("calibration", *flags.calibration));
    PLAIT_TRY(calibration, parse_calibration(text));
  }
  const Sharding sharding = sharding_of(flags);
  DeviceOptions options;
  std::optional<ClusterSpec> cluster;
  if (flags.cluster) {
    PLAIT_TRY(const std::string text, read_named("cluster", *flags.cluster));
    PLAIT_TRY(cluster, parse_cluster(text));
    const auto hops = [&](int devices) {
      return devices > cluster->devices_per_node ? Hops::kBetweenNodes : Hops::kInsideNode;
    };
    options = {.data = hops(sharding.tensor * sharding.context * sharding.data), .tensor = hops(sharding.tensor)};
    if (!flags.calibration)
      calibration.network_bytes_per_second =
          cluster->outer_bytes_per_second * cluster->outer_ports / cluster->devices_per_node;
  }
  PLAIT_TRY_VOID(add_times(program.layout, model, sharding, device, calibration, options, costs));
  if (cluster)
    costs.cluster = place_ranks(*cluster, program.layout.num_ranks, sharding.tensor * sharding.context * sharding.data,
                                calibration.link_efficiency, costs.ticks_per_unit);
  return {};
}

}  // namespace

void add_cost_flags(CLI::App& app, CostFlags& flags) {
  constexpr const char* kGroup = "Costs";
  app.add_option("--model", flags.model,
                 "costs from shapes: a model that comes with plait (llama-7b), a config.json, its folder, or a run")
      ->group(kGroup);
  app.add_option("--device", flags.device,
                 "what runs it: a device that comes with plait (h100), a file, or what plait bench calibrate wrote")
      ->group(kGroup);
  app.add_option("--calibration", flags.calibration, "what software makes of the device (dgxc), or a file")
      ->group(kGroup);
  app.add_option("--cluster", flags.cluster, "nodes and links (dgx-h100), or a file; default: the device's own links")
      ->group(kGroup);
  app.add_option("--costs", flags.costs, "times of a measured step: the trace.json of a run")->group(kGroup);
  app.add_option("--seq", flags.seq, "tokens of a sequence; default: the model's longest")->group(kGroup);
  app.add_option("--batch", flags.batch, "sequences of a micro-batch (default: 1)")->group(kGroup);
  app.add_option("--tensor", flags.tensor, "devices that share each matrix product of a rank (default: 1)")
      ->group(kGroup);
  app.add_option("--context", flags.context, "devices that share each sequence of a rank (default: 1)")->group(kGroup);
  app.add_option("--data", flags.data, "replicas of the pipeline (default: 1)")->group(kGroup);
  app.add_option(
         "--dtype", flags.dtype,
         "bf16, fp32 or fp64; bf16 keeps fp32 weights and gradients (default: bf16, on a calibrated machine fp32)")
      ->check(CLI::IsMember({"bf16", "fp32", "fp64"}))
      ->group(kGroup);
  app.add_option("--attention", flags.attention, "flash, or unfused: writes the scores")
      ->check(CLI::IsMember({"flash", "unfused"}))
      ->capture_default_str()
      ->group(kGroup);
  app.add_flag("--sequence-parallel", flags.sequence_parallel, "cut what tensor parallelism leaves whole, too")
      ->group(kGroup);
  app.add_option("--optimizer-shards", flags.optimizer_shards, "replicas that share the optimizer's state (default: 1)")
      ->group(kGroup);
}

/// What --dtype says; a calibrated machine trains in fp32 where nothing else is asked for, as plait train does.
Result<std::int64_t> element_bytes_of(const CostFlags& flags) {
  if (flags.dtype || !flags.device) return element_bytes(flags.dtype.value_or("bf16"));
  PLAIT_TRY(const std::string text, read_named("device", *flags.device));
  return element_bytes(host::is_calibration(text) ? "fp32" : "bf16");
}

Result<std::optional<ModelShape>> resolve_model(const CostFlags& flags) {
  if (!flags.model) {
    const std::pair<const char*, bool> needy[] = {{"--device", flags.device.has_value()},
                                                  {"--cluster", flags.cluster.has_value()},
                                                  {"--calibration", flags.calibration.has_value()},
                                                  {"--seq", flags.seq.has_value()},
                                                  {"--batch", flags.batch.has_value()},
                                                  {"--tensor", flags.tensor.has_value()},
                                                  {"--context", flags.context.has_value()},
                                                  {"--data", flags.data.has_value()},
                                                  {"--sequence-parallel", flags.sequence_parallel},
                                                  {"--optimizer-shards", flags.optimizer_shards.has_value()}};
    for (const auto& [flag, given] : needy)
      if (given) return conflict(std::string(flag) + " needs --model, whose shapes it is about");
    return std::optional<ModelShape>();
  }
  PLAIT_TRY(ModelShape model, read_model(*flags.model));
  if (flags.seq) model.tokens = *flags.seq;
  model.batch = flags.batch.value_or(1);
  PLAIT_TRY(model.element_bytes, element_bytes_of(flags));
  model.attention = flags.attention == "flash" ? AttentionKernel::kFlash : AttentionKernel::kUnfused;
  PLAIT_TRY_VOID(check_shape(model));
  return std::optional(model);
}

Result<> shape_for_model(const ModelShape& model, ScheduleFlags& flags) {
  if (flags.layers && *flags.layers != model.layers)
    return make_error(ErrorCode::kInvalidArgument, "flags.conflict",
                      "--layers {} does not go with --model, which has {} layers", *flags.layers, model.layers);
  const std::string head = model.tying == HeadTying::kTied ? "tied" : "untied";
  if (flags.head && *flags.head != head)
    return make_error(ErrorCode::kInvalidArgument, "flags.conflict", "--head {} does not go with --model, whose is {}",
                      *flags.head, head);
  flags.layers = model.layers;
  flags.head = head;
  return {};
}

Result<CostModel> resolve_costs(const Program& program, const ScheduleFlags& schedule, const CostFlags& flags,
                                const std::optional<ModelShape>& model) {
  if (schedule.times || schedule.latency)
    return conflict("--times and --latency do not go with --model or --costs, which bring times of their own");
  if (flags.costs && flags.device) return conflict("--costs and --device both bring times; give one");
  if (model && !flags.costs && !flags.device)
    return make_error(ErrorCode::kInvalidArgument, "flags.missing",
                      "--model needs --device (or --costs) for the times of its shapes");
  if (flags.device) {
    PLAIT_TRY(const std::string text, read_named("device", *flags.device));
    if (host::is_calibration(text)) return costs_on_host(program, flags, *model, text);
  }
  CostModel costs = zero_costs(program.layout);
  if (flags.costs) {
    PLAIT_TRY(const std::string trace, read_file(*flags.costs));
    PLAIT_TRY(costs, trace_costs(program, trace));
  }
  if (!model) return costs;
  const MemoryOptions memory{.optimizer = adam_bytes(model->element_bytes),
                             .optimizer_shards = flags.optimizer_shards.value_or(1)};
  PLAIT_TRY_VOID(add_memory(program.layout, *model, sharding_of(flags), memory, costs));
  if (flags.device) PLAIT_TRY_VOID(add_device_times(program, flags, *model, costs));
  if (flags.costs && flags.cluster) {
    PLAIT_TRY(const std::string text, read_named("cluster", *flags.cluster));
    PLAIT_TRY(const ClusterSpec cluster, parse_cluster(text));
    const Sharding sharding = sharding_of(flags);
    costs.cluster = place_ranks(cluster, program.layout.num_ranks, sharding.tensor * sharding.context * sharding.data,
                                /*efficiency=*/1, costs.ticks_per_unit);
  }
  return costs;
}

}  // namespace plait
