#include "plait/cli/run/train_flags.h"

#include "plait/base/units.h"
#include "plait/run/engine/delayed_transport.h"
#include "plait/run/engine/rank_device.h"
#include "plait/run/processes/nccl_table.h"

#include <cmath>
#include <optional>

namespace plait::cli {
namespace {

Error refuse(const std::string& what) {
  return Error{ErrorCode::kInvalidArgument, "train.flags", what};
}

Result<std::optional<double>> parse_clip(const std::string& text) {
  if (text == "none") return std::optional<double>();
  try {
    std::size_t used = 0;
    const double value = std::stod(text, &used);
    if (used == text.size() && value > 0 && std::isfinite(value)) return std::optional<double>(value);
  } catch (const std::logic_error&) {
    // Falls through to the refusal: no number, or one out of range.
  }
  return refuse(fmt::format("--clip {}: a positive norm or `none` is needed", text));
}

std::optional<std::int64_t> chunk_of(std::int64_t flag) {
  return flag > 0 ? std::optional(flag) : std::nullopt;
}

Result<> check_numbers(const TrainFlags& f) {
  if (f.steps < 1) return refuse(fmt::format("--steps {}: at least one is needed", f.steps));
  if (f.microbatch_size < 0)
    return refuse(fmt::format("--microbatch-size {}: at least one row is needed", f.microbatch_size));
  if (!(f.lr >= 0) || !std::isfinite(f.lr))
    return refuse(fmt::format("--lr {}: a number of at least 0 is needed", f.lr));
  if (!(f.min_lr >= 0 && f.min_lr <= f.lr))
    return refuse(fmt::format("--min-lr {}: must lie between 0 and --lr", f.min_lr));
  if (!(f.beta1 >= 0 && f.beta1 < 1)) return refuse(fmt::format("--beta1 {}: must lie in [0, 1)", f.beta1));
  if (!(f.beta2 >= 0 && f.beta2 < 1)) return refuse(fmt::format("--beta2 {}: must lie in [0, 1)", f.beta2));
  if (!(f.eps > 0)) return refuse(fmt::format("--eps {}: must be positive", f.eps));
  if (!(f.weight_decay >= 0)) return refuse(fmt::format("--weight-decay {}: must not be negative", f.weight_decay));
  if (f.val_fraction >= 1) return refuse(fmt::format("--val-fraction {}: must lie in [0, 1)", f.val_fraction));
  if (f.mlp_chunk < 0) return refuse(fmt::format("--mlp-chunk {}: must not be negative", f.mlp_chunk));
  if (f.loss_chunk < 0) return refuse(fmt::format("--loss-chunk {}: must not be negative", f.loss_chunk));
  PLAIT_TRY_VOID(check_launch(f));
  PLAIT_TRY_VOID(check_device(device_type(f.device)));
  if (!(f.timeout > 0)) return refuse(fmt::format("--timeout {}: must be positive", f.timeout));
  if (f.profile_step < 0) return refuse(fmt::format("--profile-step {}: must not be negative", f.profile_step));
  if (f.warmup < 0 || f.eval_every < 0 || f.checkpoint_every < 0 || f.keep < 0 || f.log_every < 0 ||
      f.sample_tokens < 0)
    return refuse(
        "--warmup, --eval-every, --checkpoint-every, --keep, --log-every and --sample-tokens must not be negative");
  return {};
}

}  // namespace

void TrainFlags::add_to(FlagSet& flags) {
  data.add_to(flags);
  flags.add("Data", "--microbatch-size", microbatch_size, "ROWS", "rows of a micro-batch; 0: 8, or 1 with --tokens");
  flags.add_switch("Data", "--no-shuffle", no_shuffle, "take the rows in the order of the file");
  flags.add("Data", "--val-fraction", val_fraction, "FRACTION",
            "last part of the rows, kept for validation; negative: 0.02, or 0 with --tokens");
  flags.add("Model", "--init-from", init_from, "DIR", "start from a Hugging Face directory, a checkpoint or a run");
  model.add_to(flags);
  flags.add_choice("Model", "--dtype", dtype, {"fp32", "bf16", "fp64"},
                   "compute type; bf16 keeps fp32 weights and gradients");
  schedule.add_to(flags);
  flags.add_choice("Run", "--device", device, {"cpu", "cuda"},
                   "what the ranks compute on; cuda: the ranks of a machine take its GPUs in turns");
  job.add_to(flags);
  schedule.add_compare_to(flags);
  flags.add("Memory", "--mlp-chunk", mlp_chunk, "TOKENS",
            "run the MLP in chunks and keep nothing of its width; 0: whole micro-batches");
  flags.add("Memory", "--loss-chunk", loss_chunk, "TOKENS",
            "make the logits in chunks, also where that costs time; 0: only where it costs none");
  flags.add("Optimizer", "--steps", steps, "UPDATES", "updates in all");
  flags.add_choice("Optimizer", "--optimizer", optimizer, {"adamw", "sgd"}, "update rule");
  flags.add("Optimizer", "--lr", lr, "RATE", "highest learning rate");
  flags.add("Optimizer", "--min-lr", min_lr, "RATE", "learning rate at the end of the cosine");
  flags.add_choice("Optimizer", "--lr-schedule", lr_schedule, {"constant", "cosine"}, "behind the warm-up");
  flags.add("Optimizer", "--warmup", warmup, "UPDATES", "updates over which the learning rate rises");
  flags.add("Optimizer", "--beta1", beta1, "FACTOR", "AdamW: decay of the mean gradient");
  flags.add("Optimizer", "--beta2", beta2, "FACTOR", "AdamW: decay of the mean square");
  flags.add("Optimizer", "--eps", eps, "NUMBER", "AdamW: added to the root");
  flags.add("Optimizer", "--weight-decay", weight_decay, "FACTOR", "decay of matrices, times the learning rate");
  flags.add_switch("Optimizer", "--decay-all", decay_all, "let norms and biases decay too");
  flags.add("Optimizer", "--clip", clip, "NORM|none", "largest global gradient norm");
  flags.add("Run", "--out", out, "DIR", "run folder; default: runs/NNN, the next free number");
  flags.add_switch("Run", "--resume", resume, "go on from the newest checkpoint of --out");
  flags.add("Run", "--seed", seed, "NUMBER", "of the initial weights and the order of the rows");
  flags.add("Run", "--eval-every", eval_every, "UPDATES", "updates between validations; 0: only at the end");
  flags.add("Run", "--checkpoint-every", checkpoint_every, "UPDATES",
            "updates between checkpoints; 0: only at the end");
  flags.add_choice("Run", "--checkpoint-async", checkpoint_async, {"on", "off"},
                   "write checkpoints beside the next steps, from a copy of weights and moments; off: steps wait");
  flags.add("Run", "--keep", keep, "COUNT", "newest checkpoints to keep; 0: all");
  flags.add("Run", "--log-every", log_every, "UPDATES", "updates between lines; 0: twenty lines in all");
  flags.add_choice(
      "Run", "--on-nan", on_nan, {"stop", "skip", "rollback"},
      "loss or gradient that is not finite: end, pass over the batch, or go back to the newest checkpoint");
  flags.add("Run", "--timeout", timeout, "SECONDS", "a rank silent for longer ends the run");
  flags.add("Links", "--link", link, "BANDWIDTH",
            "emulate links of this speed between ranks (25GB/s); default: memory");
  flags.add("Links", "--link-latency", link_latency, "DURATION", "emulate links with this latency (5us)");
  flags.add("Links", "--slow-link", slow_link, "BANDWIDTH",
            "speed of the port that a group of ranks shares to the other groups");
  flags.add("Links", "--slow-link-latency", slow_link_latency, "DURATION", "latency between groups");
  flags.add("Links", "--link-groups", link_groups, "GROUPS", "groups of neighbouring ranks; 0: those of --groups");
  flags.add_optional_value("Run", "--profile", profile, "[FILE]",
                           "record the kernels of one step, write its trace and say where the time went; default: "
                           "profile.json in the run folder");
  flags.add("Run", "--profile-step", profile_step, "STEP", "which step that is; 0: the second of this run");
  flags.add("Run", "--sample-tokens", sample_tokens, "TOKENS", "length of the sample at the end; 0: none");
  flags.add_choice("Run", "--format", format, {"table", "json"}, "of the report at the end");
}

Result<> check_launch(const TrainFlags& f) {
  if (f.job.processes < 0 || f.job.restarts < 0) return refuse("--processes and --restarts must not be negative");
  if (f.job.restarts > 0 && f.job.processes == 0) return refuse("--restarts goes with --processes");
  if (f.job.min_ranks < 0) return refuse("--min-ranks must not be negative");
  if (f.job.min_ranks > 0 && f.job.restarts == 0) return refuse("--min-ranks goes with --restarts");
  if (f.job.restarts > 0 && f.out.empty()) return refuse("--restarts needs --out, the folder to go on with");
  if (f.job.processes > 1 && f.device != "cpu") PLAIT_TRY_VOID(check_nccl_is_built_in());
  return {};
}

ComputeType compute_type(const std::string& dtype) {
  if (dtype == "bf16") return ComputeType::kBFloat16;
  return dtype == "fp64" ? ComputeType::kFloat64 : ComputeType::kFloat32;
}

c10::DeviceType device_type(const std::string& device) {
  return device == "cuda" ? c10::DeviceType::CUDA : c10::DeviceType::CPU;
}

namespace {

Result<EmulatedLink> parse_link(const std::string& bandwidth, const std::string& latency) {
  EmulatedLink link;
  if (!bandwidth.empty()) {
    PLAIT_TRY(const BytesPerSecond speed, parse_bandwidth(bandwidth));
    link.bytes_per_second = static_cast<double>(speed.value());
  }
  if (!latency.empty()) {
    PLAIT_TRY(link.latency, parse_duration(latency));
  }
  return link;
}

struct Links {
  TransportWrapper wrapper;
  std::string words = "none";
};

/// Emulated links, if flags ask for them.
Result<Links> links_of(const TrainFlags& f) {
  const bool has_slow = !f.slow_link.empty() || !f.slow_link_latency.empty();
  if (f.link.empty() && f.link_latency.empty() && !has_slow) return Links{};
  const int ranks = f.schedule.shape.ranks.value_or(1);
  const int groups = f.link_groups > 0 ? f.link_groups : f.schedule.shape.groups.value_or(1);
  if (has_slow && (groups < 2 || ranks % groups != 0))
    return refuse(
        fmt::format("--slow-link is between groups: with --ranks {} give --link-groups (or --groups) that "
                    "divides it, at least 2, got {}",
                    ranks, groups));
  EmulatedCluster cluster{.ranks_per_group = has_slow ? ranks / groups : ranks};
  PLAIT_TRY(cluster.inner, parse_link(f.link, f.link_latency));
  PLAIT_TRY(cluster.outer, parse_link(f.slow_link, f.slow_link_latency));
  const auto describe = [](const EmulatedLink& link) {
    return fmt::format("{} bytes/s, {} ns", link.bytes_per_second, link.latency.value());
  };
  return Links{.wrapper = emulate_cluster(cluster),
               .words = fmt::format("{} inside of {} ranks, {} between", describe(cluster.inner),
                                    cluster.ranks_per_group, describe(cluster.outer))};
}

}  // namespace

Result<TrainOptions> train_options(const TrainFlags& f, const LoadedData& data) {
  PLAIT_TRY(Links links, links_of(f));
  PLAIT_TRY_VOID(check_numbers(f));
  PLAIT_TRY(const std::optional<double> clip, parse_clip(f.clip));
  const std::int64_t default_size = f.data.tokens.empty() ? 8 : 1;
  TrainOptions options{
      .start = f.resume ? StartFrom::kNewestCheckpoint : StartFrom::kScratch,
      .steps = f.steps,
      .microbatch_size = f.microbatch_size > 0 ? f.microbatch_size : default_size,
      .lr = {.lr = f.lr,
             .min_lr = f.min_lr,
             .warmup_steps = f.warmup,
             .total_steps = f.steps,
             .decay = f.lr_schedule == "cosine" ? LrDecay::kCosine : LrDecay::kConstant},
      .seed = f.seed,
      .order = f.no_shuffle ? RowOrder::kAsIs : RowOrder::kShuffled,
      .eval_every = f.eval_every,
      .checkpoint_every = f.checkpoint_every,
      .checkpoint = {.keep = f.keep,
                     .writing = f.checkpoint_async == "on" ? CheckpointWriting::kAside : CheckpointWriting::kInBetween},
      .on_nan = f.on_nan == "skip"       ? OnNan::kSkip
                : f.on_nan == "rollback" ? OnNan::kRollback
                                         : OnNan::kStop,
      .engine = {.type = compute_type(f.dtype),
                 .optimizer = {.kind = f.optimizer == "adamw" ? OptimizerKind::kAdamW : OptimizerKind::kSgd,
                               .beta1 = f.beta1,
                               .beta2 = f.beta2,
                               .eps = f.eps,
                               .weight_decay = f.weight_decay,
                               .decay = f.decay_all ? DecayRule::kAll : DecayRule::kMatricesOnly,
                               .clip = clip},
                 .placement = {.device = device_type(f.device)},
                 .timeout_seconds = f.timeout,
                 .document_end = document_end(f.data),
                 .wrap_transport = std::move(links.wrapper),
                 .stage = {.mlp_chunk = chunk_of(f.mlp_chunk), .loss_chunk = chunk_of(f.loss_chunk)}},
      .links = std::move(links.words),
      .tokenizer = data.tokenizer_name};
  if (!f.data.sentencepiece.empty()) options.checkpoint.sentencepiece = f.data.sentencepiece;
  return options;
}

}  // namespace plait::cli
