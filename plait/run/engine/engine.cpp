#include "plait/run/engine/engine.h"

#include "plait/run/engine/binding.h"
#include "plait/run/engine/describe.h"
#include "plait/run/engine/engine_state.h"
#include "plait/run/engine/memory.h"
#include "plait/run/engine/rank_threads.h"
#include "plait/run/engine/rank_worker.h"
#include "plait/run/engine/step_data.h"

#include <ATen/ops/equal.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
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
  std::vector<std::unique_ptr<RankRun>> ranks;
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

/// Adds the bytes that one row moved to those of their kinds of value.
void add_moved(const Row& row, const std::vector<TraceEvent>& trace, std::map<ValueKind, Bytes>& by_kind) {
  for (std::size_t at = 0; at < row.size(); ++at) {
    if (trace[at].moved == Bytes{0}) continue;
    if (const Send* send = std::get_if<Send>(&row[at])) by_kind[send->value.kind()] += trace[at].moved;
    if (const Collective* entry = std::get_if<Collective>(&row[at])) by_kind[entry->value.kind()] += trace[at].moved;
  }
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

class ThreadEngine final : public Engine {
 public:
  ThreadEngine(const ModelConfig& config, const EngineOptions& options, int num_ranks)
      : config_(config),
        options_(options),
        waits_(static_cast<std::size_t>(num_ranks)),
        threads_(num_ranks),
        workers_(static_cast<std::size_t>(num_ranks)) {
    if (!options_.kernels)
      options_.kernels = [stage = options_.stage](const ModelConfig& model, PartRange parts, ParameterSet& parameters) {
        return make_module_kernels(model, parts, parameters, stage);
      };
    for (const ParameterSpec& spec : parameter_specs(config_)) parameter_order_.push_back(spec.name);
    std::sort(parameter_order_.begin(), parameter_order_.end());
  }
  ~ThreadEngine() override {
    // What a rank allocated goes back to its own cache.
    threads_.run([&](RankId rank) {
      if (main_ && rank.index() < main_->ranks.size()) main_->ranks[rank.index()].reset();
      if (forward_ && rank.index() < forward_->ranks.size()) forward_->ranks[rank.index()].reset();
      workers_[rank.index()].reset();
    });
  }
  ThreadEngine(const ThreadEngine&) = delete;
  ThreadEngine& operator=(const ThreadEngine&) = delete;

  Result<> set_up(Program program) {
    PLAIT_TRY_VOID(check_model(program, config_));
    PLAIT_TRY_VOID(check_chunks(program, options_.stage));
    PLAIT_TRY(auto run, prepare(std::move(program)));
    if (run->program.layout.mode == Mode::kTrain && options_.optimizer.clip && !run->bound.has_norm)
      return make_error(ErrorCode::kUnsupported, "engine.no_norm",
                        "the program steps before the global norm is known; clip with none, or lower it anew");
    threads_.run([&](RankId rank) {
      workers_[rank.index()] =
          std::make_unique<RankWorker>(rank, run->program.layout, run->bound.rows[rank.index()].stages, config_,
                                       options_, options_.kernels, parameter_order_);
    });
    PLAIT_TRY_VOID(make_rank_runs(*run));
    main_ = std::move(run);
    return {};
  }

  [[nodiscard]] const Program& program() const override { return main_->program; }

  void initialize(std::uint64_t seed) override {
    threads_.run([&](RankId rank) {
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
    threads_.run([&](RankId rank) { load_rank(*workers_[rank.index()], state, steps_done); });
    return {};
  }

  [[nodiscard]] std::map<std::string, ParameterState> save() const override {
    std::map<std::string, ParameterState> state;
    for (const auto& worker : workers_) save_rank(*worker, state);
    return state;
  }

  [[nodiscard]] std::map<std::string, at::Tensor> last_gradients() const override {
    std::map<std::string, at::Tensor> gradients;
    for (const auto& worker : workers_) save_gradients(*worker, gradients);
    return gradients;
  }

  [[nodiscard]] std::vector<std::string> diverged_copies() const override {
    std::vector<std::string> names;
    std::map<std::string, at::Tensor> first;
    for (const auto& worker : workers_) {
      for (const auto& [name, parameter] : worker->parameters().by_name()) {
        if (parameter.master.numel() != whole_size(parameter)) continue;  // a shard has no copies
        const auto [at, is_new] = first.try_emplace(name, parameter.master);
        if (!is_new && !at::equal(at->second, parameter.master)) names.push_back(name);
      }
    }
    return names;
  }

  Result<StepResult> train_step(const std::vector<Microbatch>& microbatches, double learning_rate) override {
    if (main_->program.layout.mode != Mode::kTrain)
      return make_error(ErrorCode::kInvalidArgument, "engine.forward_only",
                        "the program has forwards only; it cannot train");
    PLAIT_TRY(StepData data, cut_microbatches(microbatches, main_->program.layout, config_, options_));
    const Clock::time_point start = Clock::now();
    PLAIT_TRY_VOID(run(*main_, std::move(data.slices), learning_rate, start));
    StepResult result{.valid_tokens = data.valid_tokens,
                      .duration = Nanos{std::chrono::nanoseconds(Clock::now() - start).count()}};
    result.loss = loss_sum(*main_) / static_cast<double>(data.valid_tokens);
    result.grad_norm = main_->bound.has_norm ? main_->ranks.front()->grad_norm : unreduced_norm();
    for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
      const RankRun& ran = *main_->ranks[rank];
      result.trace.push_back(ran.trace);
      result.peak_bytes.push_back(workers_[rank]->account().peak());
      result.bytes_moved.push_back(ran.moved);
      result.peak_stashes.push_back(ran.peak_stashes);
      add_moved(main_->program.rows[rank], ran.trace, result.moved_by_kind);
      result.kernels.push_back(workers_[rank]->take_counts());
      if (recording_ == Recording::kKernels) result.kernel_events.push_back(workers_[rank]->log().events());
    }
    return result;
  }

  void record(Recording recording) override { recording_ = recording; }

  Result<EvalResult> eval_step(const VerifiedProgram& forward, const std::vector<Microbatch>& microbatches) override {
    PLAIT_TRY_VOID(set_forward(forward.program()));
    ProgramRun& program_run = main_->program == forward.program() ? *main_ : *forward_;
    PLAIT_TRY(StepData data, cut_microbatches(microbatches, program_run.program.layout, config_, options_));
    const Clock::time_point start = Clock::now();
    PLAIT_TRY_VOID(run(program_run, std::move(data.slices), 0, start));
    return EvalResult{.loss_sum = loss_sum(program_run),
                      .valid_tokens = data.valid_tokens,
                      .duration = Nanos{std::chrono::nanoseconds(Clock::now() - start).count()}};
  }

 private:
  Result<std::unique_ptr<ProgramRun>> prepare(Program program) const {
    auto run = std::make_unique<ProgramRun>();
    run->program = std::move(program);
    PLAIT_TRY(run->bound, bind(run->program));
    run->transport = make_in_process_transport(run->bound.routes);
    if (options_.wrap_transport) run->transport = options_.wrap_transport(std::move(run->transport));
    return run;
  }

  Result<> make_rank_runs(ProgramRun& run) {
    const auto num_data = static_cast<std::size_t>(run.program.layout.num_microbatches) *
                          static_cast<std::size_t>(run.program.layout.num_slices);
    run.ranks.resize(workers_.size());
    threads_.run([&](RankId rank) {
      const AccountScope scope(workers_[rank.index()]->account());
      run.ranks[rank.index()] = std::make_unique<RankRun>(run.bound.rows[rank.index()], num_data,
                                                          static_cast<std::int64_t>(parameter_order_.size()));
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

  Result<> run(ProgramRun& program_run, std::vector<SliceData> slices, double learning_rate, Clock::time_point start) {
    if (dead_)
      return make_error(ErrorCode::kTransport, "engine.dead",
                        "the engine died of an earlier error and must be made anew: {}", dead_->message);
    for (WaitState& wait : waits_) wait.peer.store(kAbsent);
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
        .waits = &waits_};
    program_run.transport->begin_step();
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
      threads_.run(run_rank);
    } catch (const std::exception& error) {
      dead_ = Error{.code = ErrorCode::kTransport, .rule = "engine.internal", .message = error.what()};
      throw;
    }
    if (!first) return {};
    dead_ = first;
    return *first;
  }

  /// In the order of the data, whatever ranks computed it.
  [[nodiscard]] static double loss_sum(const ProgramRun& run) {
    double sum = 0;
    for (std::size_t at = 0; at < run.ranks.front()->losses.size(); ++at)
      for (const auto& rank : run.ranks) sum += rank->losses[at];
    return sum;
  }

  [[nodiscard]] double unreduced_norm() const {
    double sum = 0;
    for (const auto& [name, gradient] : last_gradients()) sum += square_sum(gradient);
    return std::sqrt(sum);
  }

  ModelConfig config_;
  EngineOptions options_;
  std::vector<std::string> parameter_order_;
  std::vector<WaitState> waits_;
  mutable RankThreads threads_;
  std::vector<std::unique_ptr<RankWorker>> workers_;
  std::unique_ptr<ProgramRun> main_;
  std::unique_ptr<ProgramRun> forward_;  ///< the last other program of eval_step
  Recording recording_ = Recording::kOff;
  std::optional<Error> dead_;
};

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(const VerifiedProgram& program, const ModelConfig& config,
                                               const EngineOptions& options) {
  if (!(options.timeout_seconds > 0))
    return make_error(ErrorCode::kInvalidArgument, "engine.timeout", "the timeout is {} s; it should be positive",
                      options.timeout_seconds);
  install_accounting_allocator();
  try {
    auto engine = std::make_unique<ThreadEngine>(config, options, program.program().layout.num_ranks);
    PLAIT_TRY_VOID(engine->set_up(program.program()));
    return std::unique_ptr<Engine>(std::move(engine));
  } catch (const InternalError&) {
    throw;
  } catch (const std::exception& error) {
    return make_error(ErrorCode::kTransport, "engine.op_failed", "setting up the ranks: {}", error.what());
  }
}

}  // namespace plait
