#include "plait/run/engine/engine.h"

#include "plait/run/engine/binding.h"
#include "plait/run/engine/blame.h"
#include "plait/run/engine/byte_stream.h"
#include "plait/run/engine/describe.h"
#include "plait/run/engine/engine_state.h"
#include "plait/run/engine/lost_process.h"
#include "plait/run/engine/memory.h"
#include "plait/run/engine/rank_device.h"
#include "plait/run/engine/rank_report.h"
#include "plait/run/engine/rank_threads.h"
#include "plait/run/engine/rank_worker.h"
#include "plait/run/engine/step_data.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <utility>

namespace plait {
namespace {

/// A program with all that is needed to run it again and again.
struct ProgramRun {
  Program program;
  BoundProgram bound;
  std::unique_ptr<Transport> transport;
  std::vector<std::unique_ptr<RankRun>> ranks;  ///< null where another process runs the rank
};

Result<> check_model(const Program& program, const ModelConfig& config) {
  if (program.layout.num_layers != config.num_layers)
    return make_error(ErrorCode::kInvalidArgument, "engine.model",
                      "the program is for {} layers, the model has {}; build it with --layers {}",
                      program.layout.num_layers, config.num_layers, config.num_layers);
  const bool tied = program.layout.tying == HeadTying::kTied;
  if (tied != config.tied_head)
    return make_error(ErrorCode::kInvalidArgument, "engine.model",
                      "the program is for a model with {} head, the model has {} one", tied ? "a tied" : "an untied",
                      config.tied_head ? "a tied" : "an untied");
  return {};
}

/// Chunks make W read weights again, which otherwise needs its stash alone: they must be there.
Result<> check_chunks(const Program& program, const StageOptions& stage) {
  for (const auto& [what, chunk] : {std::pair("MLP", stage.mlp_chunk), {"loss", stage.loss_chunk}})
    if (chunk && *chunk < 1)
      return make_error(ErrorCode::kInvalidArgument, "engine.chunk",
                        "the {} has chunks of {} tokens; at least 1 is needed", what, *chunk);
  if (!stage.mlp_chunk && !stage.loss_chunk) return {};
  for (std::size_t rank = 0; rank < program.rows.size(); ++rank) {
    for (const Instr& instr : program.rows[rank]) {
      const Op* op = std::get_if<Op>(&instr);
      if (op == nullptr || op->kind != OpKind::kBackwardWeight) continue;
      for (const GroupId id : program.layout.stages[op->stage.index()].groups) {
        const ParamGroup& group = program.layout.groups[id.index()];
        const bool lives_here =
            std::binary_search(group.homes.begin(), group.homes.end(), RankId{static_cast<std::int32_t>(rank)});
        if (!lives_here || (group.residency == Residency::kSharded && group.homes.size() > 1))
          return make_error(ErrorCode::kUnsupported, "engine.chunk",
                            "rank {}, {}: chunks need the weights of group {} once more in W, where they have gone; "
                            "leave the chunks out, or take a schedule without W",
                            rank, describe(instr), group.name);
      }
    }
  }
  return {};
}

RankRange ranks_here(const ProcessGroup* processes, int num_ranks) {
  return processes == nullptr ? RankRange{.begin = 0, .end = num_ranks}
                              : ranks_of_process(processes->index(), processes->size(), num_ranks);
}

class RankEngine final : public Engine {
 public:
  /// \param place  of this process's first rank among the ranks of its machine
  RankEngine(const ModelConfig& config, const EngineOptions& options, int num_ranks, int place)
      : config_(config),
        options_(options),
        processes_(options.processes.get()),
        here_(ranks_here(processes_, num_ranks)),
        waits_(static_cast<std::size_t>(num_ranks)),
        threads_(RankId{here_.begin}, here_.size()),
        workers_(static_cast<std::size_t>(num_ranks)) {
    if (!options_.kernels)
      options_.kernels = [stage = options_.stage](const ModelConfig& model, PartRange parts, ParameterSet& parameters) {
        return make_module_kernels(model, parts, parameters, stage);
      };
    devices_.resize(workers_.size());
    for (std::int32_t rank = here_.begin; rank < here_.end; ++rank)
      devices_[static_cast<std::size_t>(rank)] = RankDevice(options_.placement, place + rank - here_.begin);
    if (processes_ != nullptr) processes_->lay_out(waits_);
    for (const ParameterSpec& spec : parameter_specs(config_)) parameter_order_.push_back(spec.name);
    std::sort(parameter_order_.begin(), parameter_order_.end());
  }
  ~RankEngine() override {
    // What a rank allocated goes back to its own cache.
    on_ranks([&](RankId rank) {
      if (main_ && rank.index() < main_->ranks.size()) main_->ranks[rank.index()].reset();
      if (forward_ && rank.index() < forward_->ranks.size()) forward_->ranks[rank.index()].reset();
      workers_[rank.index()].reset();
    });
  }
  RankEngine(const RankEngine&) = delete;
  RankEngine& operator=(const RankEngine&) = delete;

  Result<> set_up(Program program) {
    PLAIT_TRY_VOID(check_model(program, config_));
    PLAIT_TRY_VOID(check_chunks(program, options_.stage));
    PLAIT_TRY(auto run, prepare(std::move(program)));
    if (run->program.layout.mode == Mode::kTrain && options_.optimizer.clip && !run->bound.has_norm)
      return make_error(ErrorCode::kUnsupported, "engine.no_norm",
                        "the program steps before the global norm is known and never validates that; give "
                        "--post-validation, or clip with none");
    on_ranks([&](RankId rank) {
      workers_[rank.index()] =
          std::make_unique<RankWorker>(rank, run->program.layout, run->bound.rows[rank.index()].stages, config_,
                                       options_, options_.kernels, parameter_order_, devices_[rank.index()]);
    });
    PLAIT_TRY_VOID(make_rank_runs(*run));
    main_ = std::move(run);
    return {};
  }

  [[nodiscard]] const Program& program() const override { return main_->program; }
  [[nodiscard]] std::string note() const override { return main_->transport->note(); }

  void initialize(std::uint64_t seed) override {
    on_ranks([&](RankId rank) {
      RankWorker& worker = *workers_[rank.index()];
      worker.parameters().initialize(seed);
      worker.parameters().refresh_compute();
      if (worker.optimizer() == nullptr) return;
      worker.optimizer()->reset_moments();
      worker.optimizer()->set_steps_done(0);
    });
  }

  Result<> load(const std::map<std::string, ParameterState>& state, std::int64_t steps_done) override {
    PLAIT_TRY_VOID(check_state(state, config_, options_.optimizer.kind));
    on_ranks([&](RankId rank) { load_rank(*workers_[rank.index()], state, steps_done); });
    return {};
  }

  [[nodiscard]] Result<std::map<std::string, ParameterState>> save() const override {
    PLAIT_TRY(const std::vector<HeldPart> parts, parts_of_all(&held_state));
    return merge_state(parts);
  }

  void copy_shares(StateShares& shares) const override {
    shares.resize(workers_.size());
    on_ranks([&](RankId rank) { copy_share(*workers_[rank.index()], shares[rank.index()]); });
  }

  [[nodiscard]] Result<std::map<std::string, at::Tensor>> last_gradients() const override {
    PLAIT_TRY(const std::vector<HeldPart> parts, parts_of_all(&held_gradients));
    return merge_gradients(parts);
  }

  [[nodiscard]] Result<std::vector<std::string>> diverged_copies() const override {
    PLAIT_TRY(const std::vector<HeldPart> parts, parts_of_all(&held_state));
    return diverged(parts);
  }

  Result<StepResult> train_step(const std::vector<Microbatch>& microbatches, double learning_rate) override {
    if (main_->program.layout.mode != Mode::kTrain)
      return make_error(ErrorCode::kInvalidArgument, "engine.forward_only",
                        "the program has forwards only; it cannot train");
    PLAIT_TRY(StepData data, cut_microbatches(microbatches, main_->program.layout, config_, options_));
    Clock::time_point start = Clock::now();
    PLAIT_TRY_VOID(run(*main_, std::move(data.slices), learning_rate, start));
    const BoardShown shown(processes_);
    StepResult result{.valid_tokens = data.valid_tokens,
                      .duration = Nanos{std::chrono::nanoseconds(Clock::now() - start).count()}};
    PLAIT_TRY(std::vector<RankReport> reports, reports_of_all(*main_));
    Totals totals;
    if (!reports.empty())
      totals = {.loss_sum = loss_sum(reports),
                .grad_norm = reports.front().grad_norm,
                .not_finite = describe_not_finite(reports, parameter_order_)};
    if (!main_->bound.has_norm) PLAIT_TRY_VOID(add_unreduced_norm(totals));
    PLAIT_TRY_VOID(tell_all(totals));
    result.not_finite = totals.not_finite;
    result.updated = result.not_finite.empty() || !main_->bound.has_norm;
    result.loss = totals.loss_sum / static_cast<double>(data.valid_tokens);
    result.grad_norm = totals.grad_norm;
    add_reports(main_->program, std::move(reports), result);
    return result;
  }

  void record(Recording recording) override { recording_ = recording; }

  Result<EvalResult> eval_step(const VerifiedProgram& forward, const std::vector<Microbatch>& microbatches) override {
    PLAIT_TRY_VOID(set_forward(forward.program()));
    ProgramRun& program_run = main_->program == forward.program() ? *main_ : *forward_;
    PLAIT_TRY(StepData data, cut_microbatches(microbatches, program_run.program.layout, config_, options_));
    Clock::time_point start = Clock::now();
    PLAIT_TRY_VOID(run(program_run, std::move(data.slices), 0, start));
    const BoardShown shown(processes_);
    PLAIT_TRY(const std::vector<RankReport> reports, reports_of_all(program_run));
    Totals totals;
    if (!reports.empty()) totals.loss_sum = loss_sum(reports);
    PLAIT_TRY_VOID(tell_all(totals));
    return EvalResult{.loss_sum = totals.loss_sum,
                      .valid_tokens = data.valid_tokens,
                      .duration = Nanos{std::chrono::nanoseconds(Clock::now() - start).count()}};
  }

 private:
  /// On the ranks' threads, each with its own device.
  void on_ranks(const std::function<void(RankId)>& job) const {
    threads_.run([&](RankId rank) {
      const DeviceScope scope(devices_[rank.index()]);
      job(rank);
    });
  }

  Result<std::unique_ptr<ProgramRun>> prepare(Program program) const {
    auto run = std::make_unique<ProgramRun>();
    run->program = std::move(program);
    PLAIT_TRY(run->bound, bind(run->program));
    run->bound.routes.device = options_.placement.device;
    for (const RankDevice& device : devices_) run->bound.routes.devices.push_back(device.device());
    if (processes_ == nullptr) {
      run->transport = make_in_process_transport(run->bound.routes);
    } else {
      PLAIT_TRY(run->transport, processes_->open(run->bound.routes, here_));
    }
    if (options_.wrap_transport) {
      PLAIT_TRY(run->transport, options_.wrap_transport(std::move(run->transport), processes_));
    }
    return run;
  }

  Result<> make_rank_runs(ProgramRun& run) {
    const auto num_data = static_cast<std::size_t>(run.program.layout.num_microbatches) *
                          static_cast<std::size_t>(run.program.layout.num_slices);
    run.ranks.resize(workers_.size());
    on_ranks([&](RankId rank) {
      const AccountScope scope(workers_[rank.index()]->account());
      run.ranks[rank.index()] =
          std::make_unique<RankRun>(run.bound.rows[rank.index()], num_data,
                                    static_cast<std::int64_t>(parameter_order_.size()), devices_[rank.index()]);
    });
    return {};
  }

  Result<> set_forward(const Program& program) {
    if (main_->program == program || (forward_ && forward_->program == program)) return {};
    const Layout& own = main_->program.layout;
    const Layout& other = program.layout;
    if (other.mode != Mode::kForward)
      return make_error(ErrorCode::kInvalidSchedule, "engine.forward_layout",
                        "the program trains; evaluation takes forwards only");
    if (other.num_ranks != own.num_ranks || other.num_layers != own.num_layers || other.tying != own.tying ||
        other.stages != own.stages)
      return make_error(ErrorCode::kInvalidSchedule, "engine.forward_layout",
                        "the forward program has {} ranks, {} stages, {} layers; it should have the stages and homes "
                        "of the engine's own: {} ranks, {} stages, {} layers",
                        other.num_ranks, other.stages.size(), other.num_layers, own.num_ranks, own.stages.size(),
                        own.num_layers);
    PLAIT_TRY(auto run, prepare(program));
    PLAIT_TRY_VOID(make_rank_runs(*run));
    forward_ = std::move(run);
    return {};
  }

  /// \param start  set to when the ranks began, where they had to wait for other processes
  Result<> run(ProgramRun& program_run, std::vector<SliceData> slices, double learning_rate, Clock::time_point& start) {
    if (dead_)
      return make_error(ErrorCode::kTransport, "engine.dead",
                        "the engine died of an earlier error and must be made anew: {}", dead_->message);
    if (processes_ == nullptr)
      for (std::int32_t rank = here_.begin; rank < here_.end; ++rank) waits_[static_cast<std::size_t>(rank)].begin(1);
    PLAIT_TRY_VOID(begin_step(program_run, start));
    const StepContext context{
        .program = &program_run.program,
        .bound = &program_run.bound,
        .transport = program_run.transport.get(),
        .data = std::move(slices),
        .learning_rate = learning_rate,
        .clip = options_.optimizer.clip,
        .start = start,
        .timeout = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.timeout_seconds)),
        .recording = recording_,
        .waits = &waits_,
        .processes = processes_};
    std::mutex mutex;
    std::optional<Error> first;
    const auto run_rank = [&](RankId rank) {
      RankWorker& worker = *workers_[rank.index()];
      const AccountScope scope(worker.account());
      const RecordingScope recording(worker.begin_log(context));
      try {
        if (program_run.program.layout.mode == Mode::kTrain) worker.begin_training_step();
        const Result<> done = worker.run(*program_run.ranks[rank.index()], context);
        if (done) return;
        const std::lock_guard lock(mutex);
        if (!first || first->code == ErrorCode::kInterrupted) first = done.error();
      } catch (...) {
        program_run.transport->stop();
        throw;
      }
      program_run.transport->stop();
    };
    try {
      on_ranks(run_rank);
    } catch (const std::exception& error) {
      dead_ = Error{.code = ErrorCode::kTransport, .rule = "engine.internal", .message = error.what()};
      if (processes_ != nullptr) {
        processes_->hide();
        processes_->report(*dead_);
      }
      throw;
    }
    if (!first) {
      ended_.store(Clock::now().time_since_epoch().count(), std::memory_order_release);
      return {};
    }
    if (processes_ != nullptr) processes_->hide();
    return die(*first);
  }

  /// With other processes, waits until all are about to begin.
  Result<> begin_step(ProgramRun& program_run, Clock::time_point& start) {
    if (processes_ == nullptr) {
      program_run.transport->begin_step();
      return {};
    }
    auto board = std::make_shared<RankBoard>();
    *board = RankBoard{.waits = &waits_,
                       .here = here_,
                       .explain =
                           [this, &program_run](const LostProcess& lost) {
                             const auto num_ranks = static_cast<int>(waits_.size());
                             return explain_loss(view_of(program_run), lost,
                                                 ranks_of_process(lost.process, processes_->size(), num_ranks), here_);
                           },
                       .stop = [&program_run] { program_run.transport->stop(); },
                       .overdue =
                           [this, &program_run, seen = std::vector<std::int32_t>(waits_.size()),
                            moved = Clock::time_point()](const std::vector<bool>& silent) mutable {
                             StepView view = view_of(program_run);
                             view.silent = ranks_of(silent, static_cast<int>(waits_.size()));
                             return overdue(view, seen, moved);
                           }};
    ended_.store(0);
    processes_->show(std::move(board));
    program_run.transport->begin_step();
    const Result<> met = processes_->meet();
    if (!met) {
      processes_->hide();
      return die(met.error());
    }
    start = Clock::now();
    return {};
  }

  [[nodiscard]] StepView view_of(const ProgramRun& program_run) const {
    const WaitState& own = waits_[static_cast<std::size_t>(here_.begin)];
    return StepView{.program = &program_run.program,
                    .bound = &program_run.bound,
                    .waits = &waits_,
                    .step = own.step.load(std::memory_order_relaxed)};
  }

  /// Others are waiting for the end of the step, and a rank of them does not come to its.
  /// \param seen  positions of all ranks when last asked \param moved  when one of them last changed
  std::optional<Overdue> overdue(const StepView& view, std::vector<std::int32_t>& seen,
                                 Clock::time_point& moved) const {
    const std::int64_t ended = ended_.load(std::memory_order_acquire);
    if (ended == 0) return std::nullopt;
    const Clock::time_point now = Clock::now();
    std::optional<RankId> behind;
    for (std::size_t at = 0; at < waits_.size(); ++at) {
      const RankId rank{static_cast<std::int32_t>(at)};
      if (here_.contains(rank)) continue;
      const std::int32_t position = waits_[at].position.load(std::memory_order_relaxed);
      if (std::exchange(seen[at], position) != position) moved = now;
      if (view.position_of(rank).value_or(0) >= view.program->rows[at].size()) continue;
      if (!behind || (view.is_silent(rank) && !view.is_silent(*behind))) behind = rank;
    }
    const Clock::duration still = now - std::max(moved, Clock::time_point(Clock::duration(ended)));
    const double seconds = std::chrono::duration<double>(still).count();
    if (!behind || seconds < options_.timeout_seconds) return std::nullopt;
    if (const auto wait = wait_of(view, *behind)) {
      const Wait last = last_wait(view, *wait);
      behind = last.is_met && !view.is_silent(last.peer) ? last.rank : last.peer;
    }
    return Overdue{
        .process = process_of_rank(*behind, processes_->size(), static_cast<int>(waits_.size())),
        .error = make_error(ErrorCode::kTimeout, "engine.timeout",
                            "{}: rank {} has been there for {:.3f} s (limit {:.3f} s), and all others wait for the end "
                            "of the step; see why it hangs, or allow more time",
                            place_of(view, *behind), behind->value(), seconds, options_.timeout_seconds)};
  }

  /// Of the errors of several processes the first one counts.
  Error die(Error error) {
    if (processes_ != nullptr) {
      processes_->report(error);
      error = processes_->failure().value_or(error);
    }
    dead_ = error;
    return error;
  }

  /// Others see how far the ranks are until all processes know the step's outcome: a rank may hang when none waits for it.
  class BoardShown {
   public:
    explicit BoardShown(ProcessGroup* processes) : processes_(processes) {}
    ~BoardShown() {
      if (processes_ != nullptr) processes_->hide();
    }
    BoardShown(const BoardShown&) = delete;
    BoardShown& operator=(const BoardShown&) = delete;

   private:
    ProcessGroup* processes_;
  };

  /// What all processes know of a step.
  struct Totals {
    double loss_sum = 0;
    double grad_norm = 0;
    std::string not_finite;
  };

  /// From process 0 to all.
  Result<> tell_all(Totals& totals) {
    if (processes_ == nullptr) return {};
    auto told = processes_->broadcast(
        ByteWriter().put(totals.loss_sum).put(totals.grad_norm).put_bytes(totals.not_finite).take());
    if (!told) return die(told.error());
    ByteReader in(*told);
    totals.loss_sum = in.get<double>();
    totals.grad_norm = in.get<double>();
    totals.not_finite = in.get_bytes();
    return {};
  }

  Result<std::vector<RankReport>> reports_of_all(const ProgramRun& program_run) {
    std::vector<RankReport> reports;
    for (std::int32_t rank = here_.begin; rank < here_.end; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      const RankRun& ran = *program_run.ranks[at];
      reports.push_back({.losses = ran.losses,
                         .not_finite = ran.not_finite,
                         .grad_norm = ran.grad_norm,
                         .trace = ran.trace,
                         .peak = workers_[at]->peak_bytes(),
                         .moved = ran.moved,
                         .peak_stashes = ran.peak_stashes,
                         .kernels = workers_[at]->take_counts(),
                         .kernel_events = {}});
      if (recording_ == Recording::kKernels) reports.back().kernel_events = workers_[at]->log().events();
    }
    if (processes_ == nullptr) return reports;
    auto encoded = processes_->gather(encode(reports));
    if (!encoded) return die(encoded.error());
    reports.clear();
    for (const std::string& bytes : *encoded) decode(bytes, reports);
    return reports;
  }

  /// Parts of all ranks in their order, on process 0; where there is one process, the ranks' own tensors.
  Result<std::vector<HeldPart>> parts_of_all(std::vector<HeldPart> (*parts_of)(const RankWorker&)) const {
    std::vector<HeldPart> parts;
    for (std::int32_t rank = here_.begin; rank < here_.end; ++rank)
      for (HeldPart& part : parts_of(*workers_[static_cast<std::size_t>(rank)])) parts.push_back(std::move(part));
    if (processes_ == nullptr) return parts;
    PLAIT_TRY(const std::vector<std::string> encoded, processes_->gather(encode(parts)));
    parts.clear();
    for (const std::string& bytes : encoded) decode(bytes, parts);
    return parts;
  }

  Result<> add_unreduced_norm(Totals& totals) const {
    PLAIT_TRY(const auto gradients, last_gradients());
    double sum = 0;
    for (const auto& [name, gradient] : gradients) sum += square_sum(gradient);
    totals.grad_norm = std::sqrt(sum);
    if (totals.not_finite.empty() && !std::isfinite(totals.grad_norm) &&
        (processes_ == nullptr || processes_->index() == 0))
      totals.not_finite = fmt::format("the gradient norm is {}", totals.grad_norm);
    return {};
  }

  ModelConfig config_;
  EngineOptions options_;
  ProcessGroup* processes_;  ///< null: this process runs all ranks
  RankRange here_;
  std::vector<std::string> parameter_order_;
  WaitTable waits_;
  std::vector<RankDevice> devices_;  ///< of the ranks that are here
  mutable RankThreads threads_;
  std::vector<std::unique_ptr<RankWorker>> workers_;  ///< null where another process runs the rank
  std::unique_ptr<ProgramRun> main_;
  std::unique_ptr<ProgramRun> forward_;  ///< the last other program of eval_step
  Recording recording_ = Recording::kOff;
  std::atomic<std::int64_t> ended_ = 0;  ///< Clock ticks: all ranks here are through with the step; 0: not yet
  std::optional<Error> dead_;
};

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(const VerifiedProgram& program, const ModelConfig& config,
                                               const EngineOptions& options) {
  if (!(options.timeout_seconds > 0))
    return make_error(ErrorCode::kInvalidArgument, "engine.timeout", "the timeout is {} s; it should be positive",
                      options.timeout_seconds);
  const int num_ranks = program.program().layout.num_ranks;
  if (options.processes != nullptr && options.processes->size() > num_ranks)
    return make_error(ErrorCode::kInvalidArgument, "engine.processes",
                      "{} processes for {} ranks; start at most as many processes as ranks", options.processes->size(),
                      num_ranks);
  PLAIT_TRY_VOID(check_device(options.placement.device));
  install_accounting_allocator();
  int place = 0;
  if (options.processes != nullptr && options.placement.device != c10::DeviceType::CPU) {
    PLAIT_TRY(place, ranks_before_on_machine(*options.processes, ranks_here(options.processes.get(), num_ranks)));
  }
  try {
    auto engine = std::make_unique<RankEngine>(config, options, num_ranks, place);
    PLAIT_TRY_VOID(engine->set_up(program.program()));
    return std::unique_ptr<Engine>(std::move(engine));
  } catch (const InternalError&) {
    throw;
  } catch (const std::exception& error) {
    return make_error(ErrorCode::kTransport, "engine.op_failed", "setting up the ranks: {}", error.what());
  }
}

}  // namespace plait
