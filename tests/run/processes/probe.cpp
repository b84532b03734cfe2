// Runs under mpirun: programs over several processes, compared on process 0 with the same over threads, bit by bit.
//
//     probe grid RANKS PART PARTS   every registered schedule over RANKS ranks; the PART-th of PARTS parts of the list
//     probe collectives             every kind, sizes small and large, with and without members that take no part
//     probe messages                messages of many forms and sizes
//     probe links                   emulated links and ports, over four ranks: nothing arrives before its time
//     probe hang                    a step in which rank 2 of 4 hangs behind everything that others wait for
//     probe fault KIND PROCESS      the same program while NCCL fails on one process: fails, hangs, refuses, dies
//                                   or never-opens
//     probe harm SIGNAL RANK        a step in which this one of four ranks sends itself a signal in the midst of a send
//     probe not-finite FOLDER       runs that pass over batches whose loss or gradient is not finite
//
// With "over-mpi" in front of these words the processes speak as if each was on a machine of its own, with "over-nccl" as if
// each rank had a GPU (fake_nccl.h), with "one-gpu" as if all had the same.
//
// Prints "same NAME" or "differs NAME: what" a case, and "cases N" at the end; exits with 1 if anything differs.

#include "probe.h"

#include "plait/base/files.h"
#include "plait/run/engine/blame.h"
#include "plait/run/engine/byte_stream.h"
#include "plait/run/processes/mpi_group.h"
#include "plait/run/processes/nccl_transport.h"

#include "tests/run/engine/engine_support.h"
#include "tests/run/engine/forwarding_transport.h"
#include "tests/run/train/spoilt_run.h"
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace plait {
namespace testing {
namespace {

int num_cases = 0;
int num_different = 0;

}  // namespace

void say(const ProcessGroup& job, const std::string& name, const std::string& difference) {
  if (job.index() != 0) return;
  ++num_cases;
  num_different += difference.empty() ? 0 : 1;
  std::printf("%s %s%s%s\n", difference.empty() ? "same" : "differs", name.c_str(), difference.empty() ? "" : ": ",
              difference.c_str());
}

ProbeWay& probe_way() {
  static ProbeWay way;
  return way;
}

Result<std::unique_ptr<Transport>> wrap(std::unique_ptr<Transport> inner, ProcessGroup* processes) {
  const ProbeWay& way = probe_way();
  if (!way.over_nccl || processes == nullptr) return inner;
  const RankRange here = ranks_of_process(processes->index(), processes->size(), inner->routes().num_ranks);
  const bool soon = way.faults.calls > 0;
  return open_nccl(*processes, make_fake_nccl(way.faults), std::move(inner), here, std::chrono::seconds(soon ? 2 : 60));
}

}  // namespace testing

namespace {

using namespace plait::testing;

constexpr int kLayers = 8;

struct Outcome {
  std::vector<double> numbers;  ///< losses and norms of the steps
  std::map<std::string, at::Tensor> gradients;
  std::map<std::string, ParameterState> state;
  StepResult last;
  EvalResult eval;
};

ModelConfig config_of(bool wide, HeadTying tying) {
  ModelConfig config = tiny_config(kLayers, tying);
  if (!wide) return config;
  config.hidden_size = 64;
  config.ffn_size = 96;
  config.head_dim = 16;
  return config;
}

Result<Outcome> train(const VerifiedProgram& program, const ModelConfig& config, const EngineOptions& options) {
  const int num_microbatches = program.program().layout.num_microbatches;
  PLAIT_TRY(const auto engine, Engine::create(program, config, options));
  engine->initialize(1);
  Outcome outcome;
  for (std::uint64_t step = 0; step < 3; ++step) {
    const auto mask = static_cast<Mask>(step);
    PLAIT_TRY(outcome.last,
              engine->train_step(make_data(num_microbatches, 2, 13, config.vocab_size, mask, 50 + step), 0.05));
    outcome.numbers.push_back(outcome.last.loss);
    outcome.numbers.push_back(outcome.last.grad_norm);
  }
  PLAIT_TRY(outcome.gradients, engine->last_gradients());
  PLAIT_TRY(outcome.state, engine->save());
  PLAIT_TRY(const auto diverged, engine->diverged_copies());
  outcome.numbers.push_back(static_cast<double>(diverged.size()));
  return outcome;
}

std::string difference_of(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  if (a.size() != b.size()) return fmt::format("{} tensors, {} expected", a.size(), b.size());
  for (const auto& [name, tensor] : b)
    if (!a.contains(name) || !at::equal(a.at(name), tensor)) return name;
  return {};
}

std::map<std::string, at::Tensor> flat(const std::map<std::string, ParameterState>& state) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, parameter] : state) {
    tensors[name] = parameter.master;
    for (const auto& [moment, tensor] : parameter.moments) tensors[name + "." + moment] = tensor;
  }
  return tensors;
}

std::string difference_of(const Outcome& a, const Outcome& b) {
  if (a.numbers != b.numbers) return fmt::format("losses and norms: {} and {}", a.numbers.front(), b.numbers.front());
  if (const std::string name = difference_of(a.gradients, b.gradients); !name.empty()) return "gradient " + name;
  if (const std::string name = difference_of(flat(a.state), flat(b.state)); !name.empty()) return "state " + name;
  if (a.last.bytes_moved != b.last.bytes_moved || a.last.moved_by_kind != b.last.moved_by_kind) return "bytes moved";
  if (a.last.kernels != b.last.kernels) return "kernel counts";
  if (a.last.peak_stashes != b.last.peak_stashes) return "stashes";
  if (a.last.trace.size() != b.last.trace.size()) return "trace";
  for (std::size_t rank = 0; rank < a.last.trace.size(); ++rank)
    if (a.last.trace[rank].size() != b.last.trace[rank].size()) return "trace of a rank";
  return {};
}

Result<> run_grid(const std::shared_ptr<JobProcesses>& job, int ranks, int part, int parts) {
  int at = 0;
  for (const ScheduleInfo* info : all_schedules()) {
    for (const int microbatches : {2, 4, 8}) {
      for (const auto& [chunks, slices] :
           {std::pair<std::optional<int>, std::optional<int>>{}, {2, {}}, {{}, 2}, {2, 3}}) {
        for (const HeadTying tying : {HeadTying::kUntied, HeadTying::kTied}) {
          ScheduleShape shape{.ranks = ranks,
                              .microbatches = microbatches,
                              .chunks = chunks,
                              .slices = slices,
                              .layers = kLayers,
                              .tying = tying};
          if (!info->supports(shape)) continue;
          if (at++ % parts != part) continue;
          PLAIT_TRY(const VerifiedProgram program, program_of(info->name, shape));
          if (program.program().layout.mode == Mode::kForward) continue;
          // All combinations of widths, types and optimizers come up over the list.
          const bool wide = at % 3 != 0;
          EngineOptions options{.type = at % 4 == 0   ? ComputeType::kFloat64
                                        : at % 4 == 1 ? ComputeType::kBFloat16
                                                      : ComputeType::kFloat32,
                                .optimizer = {.kind = at % 5 == 0 ? OptimizerKind::kSgd : OptimizerKind::kAdamW,
                                              .clip = at % 7 == 0 ? std::nullopt : std::optional(0.25)}};
          const std::string name = fmt::format("{} ranks {} microbatches {} chunks {} slices {} {} {} type {}",
                                               info->name, ranks, microbatches, chunks.value_or(0), slices.value_or(0),
                                               tying == HeadTying::kTied ? "tied" : "untied", wide ? "wide" : "narrow",
                                               static_cast<int>(options.type));
          EngineOptions spread = options;
          spread.processes = job;
          spread.wrap_transport = &wrap;
          const ModelConfig config = config_of(wide, tying);
          PLAIT_TRY(const Outcome outcome, train(program, config, spread));
          if (job->index() != 0) continue;
          PLAIT_TRY(const Outcome expected, train(program, config, options));
          say(*job, name, difference_of(outcome, expected));
        }
      }
    }
  }
  return {};
}

/// Lets one rank go from a collective only when the step is stopped, or much later.
class HoldsRank final : public ForwardingTransport {
 public:
  HoldsRank(std::unique_ptr<Transport> inner, RankId held) : ForwardingTransport(std::move(inner)), held_(held) {}
  WaitStatus finish(CollectiveId id, RankId member, Clock::time_point deadline) override {
    const WaitStatus status = ForwardingTransport::finish(id, member, deadline);
    const Clock::time_point end = Clock::now() + std::chrono::seconds(20);
    while (member == held_ && !stopped_.load() && Clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return status;
  }
  void stop() override {
    stopped_.store(true);
    ForwardingTransport::stop();
  }

 private:
  RankId held_;
  std::atomic<bool> stopped_ = false;
};

Result<> hang(const std::shared_ptr<JobProcesses>& job) {
  PLAIT_TRY(const VerifiedProgram program,
            program_of("1f1b", ScheduleShape{.ranks = 4, .microbatches = 4, .layers = kLayers}));
  EngineOptions options;
  options.processes = job;
  options.timeout_seconds = 1;
  options.wrap_transport = [](std::unique_ptr<Transport> inner,
                              ProcessGroup* /*processes*/) -> Result<std::unique_ptr<Transport>> {
    return std::unique_ptr<Transport>(std::make_unique<HoldsRank>(std::move(inner), RankId{2}));
  };
  PLAIT_TRY(const Outcome outcome, train(program, config_of(false, HeadTying::kUntied), options));
  return {};
}

/// Steps of one program, in the third of which something goes wrong on one process.
Result<> fault(const std::shared_ptr<JobProcesses>& job, const std::string& kind, int process) {
  using Kind = FakeNcclFaults::Kind;
  probe_way() = {.over_nccl = true, .faults = {.kind = Kind::kNone, .calls = 8}};
  if (job->index() == process)
    probe_way().faults.kind = kind == "fails"     ? Kind::kFails
                              : kind == "hangs"   ? Kind::kHangs
                              : kind == "refuses" ? Kind::kRefuses
                              : kind == "dies"    ? Kind::kDies
                                                  : Kind::kNeverOpens;
  PLAIT_TRY(const VerifiedProgram program,
            program_of("1f1b", ScheduleShape{.ranks = 4, .microbatches = 4, .layers = kLayers}));
  EngineOptions options;
  options.processes = job;
  options.timeout_seconds = 4;
  options.wrap_transport = &wrap;
  PLAIT_TRY(const Outcome outcome, train(program, config_of(false, HeadTying::kUntied), options));
  return {};
}

/// Lets a rank send a signal to its process in the second step, instead of a message.
class Harms final : public ForwardingTransport {
 public:
  Harms(std::unique_ptr<Transport> inner, TransferId id, int signal)
      : ForwardingTransport(std::move(inner)), id_(id), signal_(signal) {}
  void begin_step() override {
    ++step_;
    ForwardingTransport::begin_step();
  }
  void send(TransferId id, Message&& message) override {
    if (id == id_ && step_ == 2) {
      // Others wait for what comes from here, and their states are known, by beats too.
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      std::fputs("now\n", stderr);
      ::raise(signal_);
    }
    ForwardingTransport::send(id, std::move(message));
  }

 private:
  TransferId id_;
  int signal_;
  int step_ = 0;
};

Result<> harm(const std::shared_ptr<JobProcesses>& job, int signal, RankId victim) {
  PLAIT_TRY(const VerifiedProgram program,
            program_of("1f1b", ScheduleShape{.ranks = 4, .microbatches = 4, .layers = kLayers}));
  PLAIT_TRY(const BoundProgram bound, bind(program.program()));
  const std::vector<BoundInstr>& row = bound.rows[victim.index()].instrs;
  std::vector<std::size_t> sends;
  for (std::size_t at = 0; at < row.size(); ++at)
    if (std::holds_alternative<BoundSend>(row[at])) sends.push_back(at);
  const std::size_t at = sends[sends.size() / 2];
  if (job->index() == process_of_rank(victim, job->size(), 4)) {
    std::printf("harm at %s\n", place_in_row(program.program(), victim, at).c_str());
    std::fflush(stdout);
  }
  EngineOptions options;
  options.processes = job;
  options.timeout_seconds = 2;
  options.wrap_transport = [&](std::unique_ptr<Transport> inner,
                               ProcessGroup* /*processes*/) -> Result<std::unique_ptr<Transport>> {
    return std::unique_ptr<Transport>(
        std::make_unique<Harms>(std::move(inner), std::get<BoundSend>(row[at]).transfer, signal));
  };
  PLAIT_TRY(const Outcome outcome, train(program, config_of(false, HeadTying::kUntied), options));
  return {};
}

/// A run folder's bytes, but for times.
std::string bytes_of(const std::filesystem::path& run) {
  std::string all;
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "state.json"}) {
    const auto bytes = read_file((run / "checkpoints" / "step-000006" / file).string());
    all += bytes ? *bytes : bytes.error().message;
  }
  std::istringstream in(*read_file((run / "metrics.jsonl").string()));
  for (std::string text; std::getline(in, text);) {
    const auto line = nlohmann::json::parse(text);
    for (const char* key : {"step", "loss", "grad_norm", "samples", "skipped"})
      all += line.value(key, nlohmann::json()).dump();
  }
  return all;
}

Result<> check_not_finite(const std::shared_ptr<JobProcesses>& job, const std::filesystem::path& folder) {
  for (const Spoilt spoilt : {Spoilt::kLoss, Spoilt::kGradient}) {
    for (const OnNan choice : {OnNan::kSkip, OnNan::kRollback}) {
      const std::string name =
          fmt::format("{} {}", to_string(choice), spoilt == Spoilt::kLoss ? "of a loss" : "of a gradient");
      PLAIT_TRY(const TrainJob what, spoilt_job(spoilt_rows(12, {3, 5})));
      Notes notes;
      TrainOptions options = spoilt_options(folder / name / "processes", 6, choice, spoilt);
      options.engine.processes = job;
      PLAIT_TRY_VOID(train(what, options, notes, [] { return false; }));
      if (job->index() != 0) continue;
      options = spoilt_options(folder / name / "threads", 6, choice, spoilt);
      PLAIT_TRY_VOID(train(what, options, notes, [] { return false; }));
      const bool same = bytes_of(folder / name / "processes") == bytes_of(folder / name / "threads");
      say(*job, name, same ? "" : "the run folders");
    }
  }
  return {};
}

Result<> run(const std::shared_ptr<JobProcesses>& job, const std::vector<std::string>& words) {
  if (words.at(0) == "not-finite") return check_not_finite(job, words.at(1));
  if (words.at(0) == "hang") return hang(job);
  if (words.at(0) == "fault") return fault(job, words.at(1), std::atoi(words.at(2).c_str()));
  if (words.at(0) == "harm") return harm(job, std::atoi(words.at(1).c_str()), RankId{std::atoi(words.at(2).c_str())});
  if (words.at(0) == "collectives") return check_collectives(job);
  if (words.at(0) == "links") return check_links(job);
  if (words.at(0) == "messages") return check_messages(job);
  return run_grid(job, std::atoi(words.at(1).c_str()), std::atoi(words.at(2).c_str()), std::atoi(words.at(3).c_str()));
}

}  // namespace
}  // namespace plait

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  bool over_mpi = false;
  for (; !words.empty(); words.erase(words.begin())) {
    if (words.front() == "over-mpi")
      over_mpi = true;
    else if (words.front() == "over-nccl")
      plait::testing::probe_way().over_nccl = true;
    else if (words.front() == "one-gpu")
      plait::testing::probe_way().faults.one_gpu = true;
    else
      break;
  }
  auto job = plait::join_job(
      {.timeout_seconds = 60,
       .on_one_machine = over_mpi ? plait::OnOneMachine::kMessages : plait::OnOneMachine::kSharedMemory});
  if (!job) {
    std::fprintf(stderr, "%s\n", job.error().message.c_str());
    return 2;
  }
  const plait::Result<> done = plait::run(*job, words);
  if (!done) {
    std::fprintf(stderr, "process %d: %s [%s]\n", (*job)->index(), done.error().message.c_str(),
                 done.error().rule.c_str());
    (*job)->report(done.error());
    (*job)->leave_failed();
    ::_exit(3);
  }
  if ((*job)->index() == 0) std::printf("cases %d\n", plait::testing::num_cases);
  const plait::Result<> left = (*job)->leave();
  if (!left) return 3;
  return plait::testing::num_different == 0 ? 0 : 1;
}
