#pragma once

#include "plait/base/result.h"
#include "plait/cli/run/data_flags.h"
#include "plait/cli/run/flags.h"
#include "plait/cli/run/job.h"
#include "plait/cli/run/model_flags.h"
#include "plait/cli/run/schedule_choice.h"
#include "plait/run/train/trainer.h"

#include <cstdint>
#include <string>

namespace plait::cli {

/// All flags of `plait train`, with the values of the default run.
struct TrainFlags {
  DataFlags data;
  ModelFlags model;
  ScheduleChoice schedule;
  JobFlags job;
  std::string init_from;
  std::string out;
  bool resume = false;
  std::int64_t steps = 400;
  std::int64_t microbatch_size = 0;
  std::string dtype = "fp32";
  std::string device = "cpu";
  std::uint64_t seed = 1;
  bool no_shuffle = false;
  double val_fraction = -1;
  std::int64_t eval_every = 0;
  std::int64_t checkpoint_every = 100;
  int keep = 2;
  std::string checkpoint_async = "on";
  std::string optimizer = "adamw";
  double lr = 3e-3;
  double min_lr = 0;
  std::string lr_schedule = "cosine";
  std::int64_t warmup = 20;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  bool decay_all = false;
  std::int64_t mlp_chunk = 0;
  std::int64_t loss_chunk = 0;
  std::string clip = "1";
  std::string on_nan = "stop";
  double timeout = 60;
  std::string link;          ///< bandwidth between ranks, of a group where there are groups; empty: as it is
  std::string link_latency;  ///< empty: none
  std::string slow_link;     ///< between groups
  std::string slow_link_latency;
  int link_groups = 0;
  std::string profile;  ///< counts only where it is given; may be empty then
  std::int64_t profile_step = 0;
  std::int64_t log_every = 0;
  std::int64_t sample_tokens = 200;
  std::string format = "table";

  void add_to(FlagSet& flags);
};

/// The flags of who starts processes. \errors kInvalidArgument "train.flags"
Result<> check_launch(const TrainFlags& flags);

ComputeType compute_type(const std::string& dtype);
c10::DeviceType device_type(const std::string& device);

/// Everything of the options but the output folder. \errors kInvalidArgument "train.flags"
Result<TrainOptions> train_options(const TrainFlags& flags, const LoadedData& data);

}  // namespace plait::cli
