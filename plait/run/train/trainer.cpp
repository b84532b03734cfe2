#include "plait/run/train/trainer.h"

#include "plait/base/files.h"
#include "plait/ir/text.h"
#include "plait/run/train/agreement.h"
#include "plait/run/train/batches.h"
#include "plait/run/train/checkpoint_writer.h"
#include "plait/run/train/durable_file.h"
#include "plait/run/train/evaluate.h"
#include "plait/run/train/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace plait {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

std::string_view name_of(ComputeType type) {
  switch (type) {
    case ComputeType::kFloat32: return "fp32";
    case ComputeType::kBFloat16: return "bf16";
    case ComputeType::kFloat64: return "fp64";
  }
  return "unknown";
}

std::string_view name_of(OptimizerKind kind) {
  return kind == OptimizerKind::kAdamW ? "adamw" : "sgd";
}

}  // namespace

std::string_view to_string(OnNan choice) {
  switch (choice) {
    case OnNan::kStop: return "stop";
    case OnNan::kSkip: return "skip";
    case OnNan::kRollback: return "rollback";
  }
  return "unknown";
}

namespace {

DataIdentity identity_of(const TokenRows& rows, const Split& split) {
  const auto used = static_cast<std::size_t>((split.num_train - 1) * rows.stride + rows.row_size);
  const auto tokens = std::as_bytes(std::span(rows.tokens).first(used));
  return DataIdentity{.num_rows = split.num_train,
                      .row_size = rows.row_size,
                      .crc = crc64({reinterpret_cast<const char*>(tokens.data()), tokens.size()})};
}

/// One run from its checks to its end.
class Run {
 public:
  Run(const TrainJob& job, const TrainOptions& options, TrainObserver& observer)
      : job_(job),
        options_(options),
        observer_(observer),
        processes_(options.engine.processes.get()),
        leads_(processes_ == nullptr || processes_->index() == 0),
        sampler_(std::max<std::int64_t>(1, job.split.num_train), options.seed, options.order),
        writer_({.run = options.out,
                 .config = job.model,
                 .type = options.engine.type == ComputeType::kFloat64 ? at::kDouble : at::kFloat,
                 .options = options.checkpoint,
                 .processes = options.engine.processes.get()}) {}

  Result<TrainSummary> go(const std::function<bool()>& stop_requested) {
    PLAIT_TRY_VOID(together(processes_, check_inputs()));
    PLAIT_TRY_VOID(together(processes_, find_start()));
    PLAIT_TRY_VOID(together(processes_, find_profiled_step()));
    if (processes_ != nullptr) PLAIT_TRY_VOID(agree(*processes_, facts_of(job_, options_, state_)));
    PLAIT_TRY_VOID(together(processes_, leads_ ? check_space() : Result<>()));
    PLAIT_TRY_VOID(make_engine());
    PLAIT_TRY_VOID(together(processes_, leads_ ? open_folder() : Result<>()));
    observer_.on_start(state_.step + 1, options_.steps);
    if (const Result<> done = do_steps(stop_requested); !done) {
      // Other processes would have to take part in its end.
      if (processes_ == nullptr) static_cast<void>(finish_checkpoint());
      return done.error();
    }
    if (!summary_.val_loss && !summary_.interrupted && job_.split.num_validation > 0) {
      PLAIT_TRY(summary_.val_loss, validate());
    }
    return finish();
  }

 private:
  Result<> check_inputs() const;
  Result<> find_start();
  Result<FoundCheckpoint> read_newest() const;
  Result<> find_profiled_step();
  Result<> check_identity(const Checkpoint& checkpoint, const fs::path& path) const;
  Result<> check_space() const;
  Result<> make_engine();
  Result<> load_engine();
  Result<> open_folder();
  Result<> do_steps(const std::function<bool()>& stop_requested);
  Result<> do_step();
  std::string places_of_step(std::int64_t sample);
  Result<> pass_over(const StepResult& result);
  Result<> roll_back();
  Result<double> validate();
  Result<> save();
  Result<> finish_written();
  Result<> finish_checkpoint();
  Result<> write_profile(const StepResult& step);
  Result<TrainSummary> finish();
  [[nodiscard]] Result<bool> any(bool mine) const {
    return processes_ == nullptr ? Result<bool>(mine) : processes_->any(mine);
  }
  [[nodiscard]] std::int64_t rows_per_step() const {
    return job_.program.program().layout.num_microbatches * options_.microbatch_size;
  }
  [[nodiscard]] bool due(std::int64_t every) const {
    return state_.step == options_.steps || (every > 0 && state_.step % every == 0);
  }
  [[nodiscard]] bool checkpoint_due() const { return due(options_.checkpoint_every); }

  const TrainJob& job_;
  const TrainOptions& options_;
  TrainObserver& observer_;
  ProcessGroup* processes_;  ///< null: there is one
  bool leads_;               ///< this process writes
  Sampler sampler_;
  CheckpointWriter writer_;
  RunState state_;
  std::int64_t profiled_step_ = 0;  ///< that records its kernels; 0: none
  std::optional<Checkpoint> resumed_;
  std::unique_ptr<Engine> engine_;
  std::optional<MetricsLog> log_;  ///< none where another process writes
  TrainSummary summary_;
  std::int64_t skipped_ = 0;  ///< batches since the last update
  int skipped_in_a_row_ = 0;  ///< since an update; going back, since the newest checkpoint
  std::int64_t tokens_now_ = 0;
  double seconds_now_ = 0;
};

Result<> Run::do_steps(const std::function<bool()>& stop_requested) {
  while (state_.step < options_.steps && !summary_.interrupted) {
    const std::int64_t before = state_.step;
    PLAIT_TRY_VOID(do_step());
    PLAIT_TRY(const bool stops, any(stop_requested()));
    summary_.interrupted = stops && state_.step < options_.steps;
    if (summary_.interrupted || (state_.step > before && checkpoint_due())) PLAIT_TRY_VOID(save());
    PLAIT_TRY_VOID(finish_written());
  }
  return finish_checkpoint();
}

Result<> Run::check_inputs() const {
  if (job_.split.num_train < 1)
    return make_error(ErrorCode::kIo, "data.short",
                      "{}: no row is left to train on; lower --val-fraction or give more text", job_.rows.source);
  if (const std::int64_t seq = job_.rows.row_size - 1; seq > job_.model.max_positions)
    return make_error(ErrorCode::kInvalidArgument, "train.positions",
                      "rows of {} predictions, but the model has {} positions; give a smaller --seq or more positions",
                      seq, job_.model.max_positions);
  if (const auto end = options_.engine.document_end) {
    if (*end >= job_.model.vocab_size)
      return make_error(ErrorCode::kInvalidArgument, "train.documents",
                        "--document-end {}: the vocabulary has {} entries, so no document would end", *end,
                        job_.model.vocab_size);
    for (const VerifiedProgram* program : {&job_.program, job_.other ? &*job_.other : &job_.program})
      if (const Layout& layout = program->program().layout; layout.num_slices > 1)
        return make_error(ErrorCode::kInvalidArgument, "train.documents",
                          "--document-end: {} cuts sequences in {} slices, and packed documents cannot be cut; use a "
                          "schedule without slices",
                          layout.name, layout.num_slices);
  }
  return check_vocabulary(job_.rows, job_.model.vocab_size);
}

Result<> Run::find_start() {
  const Layout& layout = job_.program.program().layout;
  state_ = RunState{.seed = options_.seed,
                    .shuffled = options_.order == RowOrder::kShuffled,
                    .data = identity_of(job_.rows, job_.split),
                    .optimizer = std::string(name_of(options_.engine.optimizer.kind)),
                    .dtype = std::string(name_of(options_.engine.type)),
                    .tokenizer = options_.tokenizer,
                    .schedule = layout.name,
                    .ranks = layout.num_ranks};
  std::error_code ec;
  if (options_.start == StartFrom::kScratch) {
    for (const char* name : {"checkpoints", "metrics.jsonl", "program.plait"})
      if (fs::exists(options_.out / name, ec))
        return make_error(ErrorCode::kInvalidArgument, "train.out_taken",
                          "{} already holds a run ({}); give --resume to go on with it, or another --out",
                          options_.out.string(), name);
    return {};
  }
  PLAIT_TRY(FoundCheckpoint found, read_newest());
  if (!found.note.empty()) observer_.on_note(found.note);
  if (!found.checkpoint) {
    observer_.on_note(fmt::format("{} holds no checkpoint; starting from the beginning", options_.out.string()));
    return {};
  }
  PLAIT_TRY_VOID(check_identity(*found.checkpoint, found.path));
  resumed_ = std::move(found.checkpoint);
  state_.step = resumed_->state.step;
  state_.samples = resumed_->state.samples;
  summary_.checkpoint = found.path;
  observer_.on_note(fmt::format("resuming behind step {} from {}", state_.step, found.path.string()));
  return {};
}

/// Process 0 chooses, so that all go on from the same one.
Result<FoundCheckpoint> Run::read_newest() const {
  if (processes_ == nullptr) return read_newest_checkpoint(options_.out);
  Result<FoundCheckpoint> found = leads_ ? read_newest_checkpoint(options_.out) : FoundCheckpoint{};
  PLAIT_TRY(const std::string path, processes_->broadcast(found ? found->path.string() : std::string()));
  if (leads_ || path.empty()) return found;
  found->path = path;
  PLAIT_TRY(found->checkpoint, read_checkpoint(path));
  return found;
}

Result<> Run::find_profiled_step() {
  if (!options_.profile) return {};
  const std::int64_t first = state_.step + 1;
  const std::int64_t asked = options_.profile->step;
  // The first step of a process still fills caches.
  profiled_step_ = asked > 0 ? asked : std::min(first + 1, options_.steps);
  if (asked > 0 && (asked < first || asked > options_.steps))
    return make_error(ErrorCode::kInvalidArgument, "train.profile",
                      "--profile-step {}: this run does the steps {} to {}", asked, first, options_.steps);
  return {};
}

Result<> Run::check_identity(const Checkpoint& checkpoint, const fs::path& path) const {
  const auto refuse = [&](std::string_view what, std::string_view found, std::string_view expected) {
    return make_error(
        ErrorCode::kInvalidArgument, "train.resume",
        "{}: {} is {}, this run's is {}; resume with the flags of the run, or start a new one with --init-from",
        path.string(), what, found, expected);
  };
  const RunState& old = checkpoint.state;
  if (old.seed != state_.seed) return refuse("--seed", std::to_string(old.seed), std::to_string(state_.seed));
  if (old.shuffled != state_.shuffled)
    return refuse("the order of rows", old.shuffled ? "shuffled" : "as is", state_.shuffled ? "shuffled" : "as is");
  if (old.optimizer != state_.optimizer) return refuse("--optimizer", old.optimizer, state_.optimizer);
  if (old.dtype != state_.dtype) return refuse("--dtype", old.dtype, state_.dtype);
  if (old.data != state_.data)
    return refuse(
        "the data",
        fmt::format("{} rows of {} tokens, checksum {:016x}", old.data.num_rows, old.data.row_size, old.data.crc),
        fmt::format("{} rows of {} tokens, checksum {:016x}", state_.data.num_rows, state_.data.row_size,
                    state_.data.crc));
  if (checkpoint.config != job_.model) return refuse("the model", "of other sizes or options", "as the flags say");
  return {};
}

Result<> Run::check_space() const {
  const std::int64_t every = options_.checkpoint_every;
  const std::int64_t planned = 1 + (every > 0 ? (options_.steps - state_.step) / every : 0);
  const std::int64_t kept =
      options_.checkpoint.keep > 0 ? std::min<std::int64_t>(planned, options_.checkpoint.keep + 1) : planned;
  const std::uint64_t one = checkpoint_bytes(job_.model, options_.engine.type, options_.engine.optimizer.kind);
  constexpr std::uint64_t kSmallFiles = 64U << 10U;  // program, trace and metrics of a short run
  const std::uint64_t needed = static_cast<std::uint64_t>(kept) * one + kSmallFiles;
  PLAIT_TRY(const std::uint64_t available, free_bytes(options_.out));
  if (available < needed)
    return make_error(
        ErrorCode::kIo, "train.disk_full",
        "{}: {} bytes are free, but {} checkpoints of {} bytes each and the logs need {}; free some space, or "
        "give another --out, a smaller --keep or a larger --checkpoint-every",
        options_.out.string(), available, kept, one, needed);
  return {};
}

Result<> Run::make_engine() {
  PLAIT_TRY(engine_, Engine::create(job_.program, job_.model, options_.engine));
  if (const std::string note = engine_->note(); !note.empty()) observer_.on_note(note);
  return load_engine();
}

/// What the run begins with, or goes back to.
Result<> Run::load_engine() {
  if (resumed_) {
    PLAIT_TRY_VOID(engine_->load(resumed_->parameters, resumed_->state.step));
    resumed_.reset();
  } else if (!job_.initial.empty()) {
    PLAIT_TRY_VOID(engine_->load(job_.initial, 0));
  } else {
    engine_->initialize(options_.seed);
  }
  return {};
}

Result<> Run::open_folder() {
  std::error_code ec;
  const bool made_here = !fs::exists(options_.out, ec);
  const auto open = [&]() -> Result<MetricsLog> {
    PLAIT_TRY_VOID(make_folder(options_.out));
    PLAIT_TRY_VOID(remove_temporaries(options_.out));
    PLAIT_TRY_VOID(write_file(options_.out / "program.plait", print_text(job_.program.program())));
    return MetricsLog::open(options_.out / "metrics.jsonl", state_.step);
  };
  Result<MetricsLog> log = open();
  if (log) {
    log_.emplace(*std::move(log));
    return {};
  }
  if (made_here) fs::remove_all(options_.out, ec);
  return log.error();
}

Result<> Run::do_step() {
  const auto start = Clock::now();
  const auto microbatches = step_microbatches(job_.rows, sampler_, state_.samples,
                                              job_.program.program().layout.num_microbatches, options_.microbatch_size);
  if (count_valid(microbatches) == 0)
    return make_error(ErrorCode::kIo, "data.no_target", "the mask leaves no target in the rows of step {}: {}",
                      state_.step + 1, places_of_step(state_.samples));
  const double lr = learning_rate(options_.lr, state_.step);
  const bool is_profiled = profiled_step_ == state_.step + 1;
  if (is_profiled) engine_->record(Recording::kKernels);
  PLAIT_TRY(StepResult result, engine_->train_step(microbatches, lr));
  if (is_profiled) engine_->record(Recording::kOff);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  state_.samples += rows_per_step();
  state_.epoch = sampler_.epoch_of(state_.samples);
  if (!result.not_finite.empty()) return pass_over(result);
  skipped_in_a_row_ = options_.on_nan == OnNan::kSkip ? 0 : skipped_in_a_row_;
  state_.step += 1;
  tokens_now_ += result.valid_tokens;
  seconds_now_ += seconds;
  summary_.steps_now += 1;
  summary_.train_loss = result.loss;
  summary_.val_loss.reset();
  if (job_.split.num_validation > 0 && due(options_.eval_every)) {
    PLAIT_TRY(summary_.val_loss, validate());
  }
  const StepMetrics metrics{.step = state_.step,
                            .loss = result.loss,
                            .grad_norm = result.grad_norm,
                            .lr = lr,
                            .tokens = result.valid_tokens,
                            .tokens_per_s = static_cast<double>(result.valid_tokens) / seconds,
                            .step_s = seconds,
                            .peak_bytes = result.peak_bytes,
                            .bytes_moved = result.bytes_moved,
                            .moved_by_kind = result.moved_by_kind,
                            .samples = state_.samples,
                            .epoch = state_.epoch,
                            .skipped = std::exchange(skipped_, 0),
                            .val_loss = summary_.val_loss};
  if (is_profiled && leads_) PLAIT_TRY_VOID(write_profile(result));
  result.kernel_events.clear();  // the trace of the last step is without
  summary_.last_step = std::move(result);
  if (log_) PLAIT_TRY_VOID(log_->append(metrics));
  observer_.on_step(metrics);
  return {};
}

/// Where the rows of the step that begins with a sample stand.
std::string Run::places_of_step(std::int64_t sample) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(rows_per_step()));
  for (std::int64_t& row : rows) row = sampler_.row_at(sample++);
  return places_of(job_.rows, rows);
}

/// A step of which something was not finite.
Result<> Run::pass_over(const StepResult& result) {
  PLAIT_TRY_VOID(finish_checkpoint());
  constexpr int kMostInARow = 10;
  const std::string what = fmt::format("step {}: {}; its rows are {}", state_.step + 1, result.not_finite,
                                       places_of_step(state_.samples - rows_per_step()));
  const auto stop = [&](const std::string& why) {
    return make_error(ErrorCode::kIo, "train.diverged", "{}; {}; {}", what, why,
                      summary_.checkpoint.empty() ? "no checkpoint was written"
                                                  : "the newest checkpoint is " + summary_.checkpoint.string());
  };
  const std::string advice = "try a lower --lr, a longer --warmup or --clip 1";
  if (options_.on_nan == OnNan::kStop) return stop(advice + ", or --on-nan skip");
  if (++skipped_in_a_row_ == kMostInARow)
    return stop(fmt::format("that was so {} times {}; {}", kMostInARow,
                            options_.on_nan == OnNan::kSkip ? "in a row" : "since the newest checkpoint", advice));
  ++skipped_;
  const std::string rows = fmt::format("its {} rows are passed over", rows_per_step());
  if (options_.on_nan == OnNan::kSkip) {
    if (result.updated)
      return stop("this program steps before its norm is known; give --post-validation, or --on-nan rollback");
    observer_.on_note(fmt::format("{}; {} and nothing is updated", what, rows));
    return {};
  }
  PLAIT_TRY_VOID(roll_back());
  observer_.on_note(fmt::format("{}; {} and the run goes on behind step {}", what, rows, state_.step));
  return {};
}

/// Weights, moments and step of the newest checkpoint; the place among the rows stays.
Result<> Run::roll_back() {
  FoundCheckpoint found;
  const auto read = [&]() -> Result<> {
    PLAIT_TRY(found, read_newest());
    return {};
  };
  PLAIT_TRY_VOID(together(processes_, read()));
  if (!found.note.empty()) observer_.on_note(found.note);
  resumed_ = std::move(found.checkpoint);
  state_.step = resumed_ ? resumed_->state.step : 0;
  PLAIT_TRY_VOID(load_engine());
  const auto cut_log = [&]() -> Result<> {
    log_.reset();
    PLAIT_TRY(MetricsLog log, MetricsLog::open(options_.out / "metrics.jsonl", state_.step));
    log_.emplace(std::move(log));
    return {};
  };
  return together(processes_, leads_ ? cut_log() : Result<>());
}

Result<double> Run::validate() {
  const std::int64_t begin = job_.split.num_train;
  const std::int64_t end = begin + job_.split.num_validation;
  if (job_.forward) {
    PLAIT_TRY(const Evaluation evaluation,
              evaluate(*engine_, *job_.forward, job_.rows, begin, end, options_.microbatch_size));
    return evaluation.loss;
  }
  PLAIT_TRY(const auto parameters, engine_->save());
  if (!leads_) return std::numeric_limits<double>::quiet_NaN();  // known to process 0 alone
  PLAIT_TRY(const ForwardEngine one_rank,
            make_forward_engine(job_.model, parameters, options_.engine.type, options_.engine.document_end));
  PLAIT_TRY(const Evaluation evaluation,
            evaluate(*one_rank.engine, one_rank.program, job_.rows, begin, end, options_.microbatch_size));
  return evaluation.loss;
}

/// Copies the state; it is written while the next steps run.
Result<> Run::save() {
  skipped_in_a_row_ = options_.on_nan == OnNan::kRollback ? 0 : skipped_in_a_row_;
  PLAIT_TRY_VOID(finish_checkpoint());
  engine_->copy_shares(writer_.shares());
  PLAIT_TRY_VOID(writer_.begin(state_));
  return options_.checkpoint.writing == CheckpointWriting::kAside ? Result<>() : finish_checkpoint();
}

/// Ends the checkpoint under way if all processes have written their shares.
Result<> Run::finish_written() {
  if (!writer_.is_busy()) return {};
  PLAIT_TRY(const bool goes_on, any(!writer_.is_written()));
  return goes_on ? Result<>() : finish_checkpoint();
}

Result<> Run::finish_checkpoint() {
  if (!writer_.is_busy()) return {};
  PLAIT_TRY_VOID(together(processes_, leads_ ? log_->sync() : Result<>()));
  PLAIT_TRY(summary_.checkpoint, writer_.finish());
  observer_.on_checkpoint(summary_.checkpoint);
  return {};
}

Result<> Run::write_profile(const StepResult& step) {
  const Program& program = job_.program.program();
  const fs::path& asked = options_.profile->file;
  const fs::path file = asked.empty() ? options_.out / "profile.json" : asked;
  PLAIT_TRY_VOID(write_file(file, trace_json(program, step, state_.step)));
  summary_.profile = TrainSummary::Profiled{.file = file, .step = state_.step, .ranks = break_down(program, step)};
  return {};
}

Result<TrainSummary> Run::finish() {
  if (summary_.last_step && leads_)
    PLAIT_TRY_VOID(
        write_file(options_.out / "trace.json", trace_json(job_.program.program(), *summary_.last_step, state_.step)));
  if (job_.other && !summary_.interrupted) {
    const auto microbatches = step_microbatches(
        job_.rows, sampler_, state_.samples, job_.program.program().layout.num_microbatches, options_.microbatch_size);
    PLAIT_TRY(summary_.comparison, compare_steps(*engine_, *job_.other, job_.model, options_.engine, microbatches));
  }
  summary_.steps_done = state_.step;
  summary_.tokens_per_s = seconds_now_ > 0 ? static_cast<double>(tokens_now_) / seconds_now_ : 0;
  return std::move(summary_);
}

}  // namespace

Result<TrainSummary> train(const TrainJob& job, const TrainOptions& options, TrainObserver& observer,
                           const std::function<bool()>& stop_requested) {
  return Run(job, options, observer).go(stop_requested);
}

}  // namespace plait
