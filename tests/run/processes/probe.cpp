// Runs under mpirun: programs over several processes, compared on process 0 with the same over threads, bit by bit.
//
//     probe grid RANKS PART PARTS   every registered schedule over RANKS ranks; the PART-th of PARTS parts of the list
//     probe collectives             every kind, sizes small and large, with and without members that take no part
//     probe messages                messages of many forms and sizes
//     probe links                   emulated links and ports, over four ranks: nothing arrives before its time
//     probe hang                    a step in which rank 2 of 4 hangs behind everything that others wait for
//     probe harm SIGNAL RANK        a step in which this one of four ranks sends itself a signal in the midst of a send
//     probe not-finite FOLDER       runs that pass over batches whose loss or gradient is not finite
//
// With "over-mpi" in front of these words the processes speak as if each was on a machine of its own.
//
// Prints "same NAME" or "differs NAME: what" a case, and "cases N" at the end; exits with 1 if anything differs.

#include "plait/base/files.h"
#include "plait/run/engine/blame.h"
#include "plait/run/engine/byte_stream.h"
#include "plait/run/engine/delayed_transport.h"
#include "plait/run/engine/rank_threads.h"
#include "plait/run/processes/mpi_group.h"

#include "harmful_transports.h"
#include "tests/run/engine/engine_support.h"
#include "tests/run/train/spoilt_run.h"
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <mpi.h>
#include <nlohmann/json.hpp>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif
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
namespace {

using namespace plait::testing;

constexpr int kLayers = 8;
int num_cases = 0;
int num_different = 0;

void say(const ProcessGroup& job, const std::string& name, const std::string& difference) {
  if (job.index() != 0) return;
  ++num_cases;
  num_different += difference.empty() ? 0 : 1;
  std::printf("%s %s%s%s\n", difference.empty() ? "same" : "differs", name.c_str(), difference.empty() ? "" : ": ",
              difference.c_str());
}

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

/// Elements that depend on member, tensor and place, and whose sums depend on their order.
at::Tensor elements(std::int64_t size, int member, std::size_t tensor, at::ScalarType type) {
  const at::Tensor values = at::empty({size}, at::kDouble);
  auto* data = values.data_ptr<double>();
  for (std::int64_t i = 0; i < size; ++i)
    data[i] = static_cast<double>((i * 7919 + 31 * member + 977 * static_cast<int>(tensor)) % 1000) / 333.0 *
              (member % 2 == 0 ? 1.0 : 1e5);
  return values.to(type);
}

struct CollectiveCase {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::vector<RankId> members;
  int root = 0;
  std::vector<std::int64_t> sizes;
  int absent = -1;  ///< a member without the last tensor
  at::ScalarType type = at::kFloat;
};

/// Every member's tensors behind the collective, of the ranks of this process.
Result<std::vector<std::vector<at::Tensor>>> run_collectives(const std::vector<CollectiveCase>& cases,
                                                             Transport& transport, RankRange here) {
  std::vector<std::vector<at::Tensor>> results(cases.size());
  std::vector<std::vector<std::vector<at::Tensor>>> of_rank(static_cast<std::size_t>(here.size()));
  RankThreads threads(RankId{here.begin}, here.size());
  bool late = false;
  threads.run([&](RankId rank) {
    auto& mine = of_rank[rank.index() - static_cast<std::size_t>(here.begin)];
    mine.resize(cases.size());
    // Two at a time under way, so that their messages could mix.
    const auto finish = [&](std::size_t c) {
      if (mine[c].empty()) return;
      late |= transport.finish(static_cast<CollectiveId>(c), rank, Clock::now() + std::chrono::seconds(30)) !=
              WaitStatus::kReady;
    };
    for (std::size_t c = 0; c < cases.size(); ++c) {
      const CollectiveCase& one = cases[c];
      const auto place = std::find(one.members.begin(), one.members.end(), rank);
      if (place != one.members.end()) {
        for (std::size_t t = 0; t < one.sizes.size(); ++t) {
          const bool absent = place - one.members.begin() == one.absent && t + 1 == one.sizes.size();
          mine[c].push_back(absent ? at::Tensor() : elements(one.sizes[t], rank.value(), t, one.type));
        }
        transport.enter(static_cast<CollectiveId>(c), rank, mine[c]);
      }
      if (c > 0) finish(c - 1);
    }
    finish(cases.size() - 1);
  });
  if (late) return make_error(ErrorCode::kTimeout, "probe", "a collective did not end");
  for (std::size_t c = 0; c < cases.size(); ++c)
    for (const auto& mine : of_rank)
      for (const at::Tensor& tensor : mine[c]) results[c].push_back(tensor);
  return results;
}

Result<> check_collectives(const std::shared_ptr<JobProcesses>& job) {
  constexpr int kRanks = 5;
  std::vector<CollectiveCase> cases;
  Routes routes{.num_ranks = kRanks, .transfers = {}, .collectives = {}};
  for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduce, CollectiveKind::kReduceScatter,
                                    CollectiveKind::kAllGather, CollectiveKind::kBroadcast})
    for (const std::vector<int>& members : {std::vector{0, 1, 2, 3, 4}, {0, 4}, {1, 2, 3}, {2}})
      for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{3}, {0, 17, 1}, {70001, 5, 1024}})
        for (const bool absent : {false, true})
          for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
            CollectiveCase one{.kind = kind, .members = {}, .sizes = sizes, .type = type};
            for (const int member : members) one.members.push_back(RankId{member});
            one.root = members.back();
            if (absent && kind != CollectiveKind::kReduceScatter && members.size() > 1) one.absent = 0;
            routes.collectives.push_back({.kind = kind,
                                          .members = one.members,
                                          .root = RankId{one.root},
                                          .value = Value::weight_grad(GroupId{static_cast<int>(cases.size())})});
            cases.push_back(one);
          }
  const RankRange here = ranks_of_process(job->index(), job->size(), kRanks);
  PLAIT_TRY(const auto transport, job->open(routes, here));
  const auto alone = make_in_process_transport(routes);
  alone->begin_step();
  PLAIT_TRY(const auto expected, run_collectives(cases, *alone, RankRange{.begin = 0, .end = kRanks}));
  for (int step = 0; step < 2; ++step) {
    // Only then may others send.
    transport->begin_step();
    PLAIT_TRY_VOID(job->meet());
    PLAIT_TRY(const auto results, run_collectives(cases, *transport, here));
    std::string difference;
    for (std::size_t c = 0; c < cases.size(); ++c) {
      std::size_t first = 0;  // of this process among the members' tensors
      for (const RankId member : cases[c].members)
        if (member.value() < here.begin) first += cases[c].sizes.size();
      for (std::size_t i = 0; i < results[c].size(); ++i) {
        const at::Tensor& result = results[c][i];
        const at::Tensor& want = expected[c][first + i];
        if (result.defined() != want.defined() || (result.defined() && !at::equal(result, want)))
          difference += fmt::format(" collective {} tensor {}", c, i);
      }
      // Of a segment that a reduction leaves behind nothing is promised, yet it is the same where nothing is written.
    }
    PLAIT_TRY(const auto all, job->gather(difference));
    for (std::size_t process = 0; process < all.size(); ++process)
      say(*job, fmt::format("collectives of step {} on process {}", step, process), all[process]);
    PLAIT_TRY_VOID(job->meet());
  }
  return {};
}

/// Rank 0 sends to rank 1, on the other side; forms that came up in stashes and in payloads.
Message message_of(int form, Value value) {
  Message message{.value = value, .tensors = {}, .counts = {}};
  const at::Tensor large = elements(3 << 20, 1, 0, at::kFloat);
  switch (form) {
    case 0: break;  // nothing at all
    case 1: message.tensors = {elements(5, 1, 0, at::kFloat), at::Tensor(), elements(0, 1, 0, at::kDouble)}; break;
    case 2: {  // views of one storage, one of them turned
      const at::Tensor whole = elements(6 * 8 * 4, 2, 0, at::kBFloat16).view({6, 8, 4});
      message.tensors = {whole.narrow(2, 0, 2), whole.transpose(0, 1), whole.narrow(0, 3, 2)};
      message.counts = {1, 2};
      break;
    }
    case 3: message.tensors = {large.view({1024, 3072}).narrow(1, 17, 9)}; break;  // wide gaps
    case 5:  // many: the head alone is larger than what lies ready for a message
      for (int i = 0; i < 150; ++i) message.tensors.push_back(elements(i, i, 0, at::kFloat));
      message.counts = {150};
      break;
    case 4: message.tensors = {large, elements(1, 3, 0, at::kDouble), large.narrow(0, 100, 7)}; break;
    default: message.tensors = {elements(std::int64_t{1} << form, 4, 0, at::kDouble)}; break;
  }
  return message;
}

std::string difference_of(const Message& a, const Message& b) {
  if (a.value != b.value || a.counts != b.counts || a.tensors.size() != b.tensors.size())
    return "name, counts or number";
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    const at::Tensor& x = a.tensors[i];
    const at::Tensor& y = b.tensors[i];
    if (x.defined() != y.defined()) return fmt::format("tensor {} there or not", i);
    if (!x.defined()) continue;
    if (x.scalar_type() != y.scalar_type() || x.sizes() != y.sizes() || !at::equal(x, y))
      return fmt::format("tensor {}", i);
    const bool gaps = a.tensors.size() == 1 && !y.is_contiguous();
    if (!gaps && x.numel() > 0 && x.strides() != y.strides()) return fmt::format("strides of tensor {}", i);
  }
  if (a.tensors.size() == 3 && a.counts.size() == 2 && !a.tensors[0].is_alias_of(a.tensors[1])) return "one storage";
  return {};
}

Result<> check_messages(const std::shared_ptr<JobProcesses>& job) {
  constexpr int kForms = 22;
  Routes routes{.num_ranks = 2, .transfers = {}, .collectives = {}};
  for (int form = 0; form < kForms; ++form)
    routes.transfers.push_back({.source = RankId{0},
                                .destination = RankId{1},
                                .value = Value::activation(EdgeId{0}, MicrobatchId{form}, SliceId{0})});
  PLAIT_TRY(const auto transport, job->open(routes, ranks_of_process(job->index(), job->size(), 2)));
  for (int step = 0; step < 2; ++step) {
    transport->begin_step();
    PLAIT_TRY_VOID(job->meet());
    std::string difference;
    const Clock::time_point deadline = Clock::now() + std::chrono::seconds(60);
    for (int at = 0; at < kForms; ++at) {
      // In another order than they are sent, and some posted early.
      const int form = job->index() == 0 ? at : kForms - 1 - at;
      const Value value = routes.transfers[static_cast<std::size_t>(form)].value;
      if (job->index() == 0) {
        transport->send(form, message_of(form, value));
        continue;
      }
      for (int other = form; other >= 0 && other > form - 3; --other) transport->post_receive(other);
    }
    for (int form = 0; form < kForms; ++form) {
      if (job->index() == 0) {
        if (transport->wait_sent(form, deadline) != WaitStatus::kReady) difference += fmt::format(" {} is late", form);
        continue;
      }
      Message message;
      if (transport->receive(form, message, deadline) != WaitStatus::kReady)
        difference += fmt::format(" {} is late", form);
      else if (const std::string what =
                   difference_of(message, message_of(form, routes.transfers[static_cast<std::size_t>(form)].value));
               !what.empty())
        difference += fmt::format(" {}: {}", form, what);
    }
    PLAIT_TRY(const auto all, job->gather(difference));
    for (std::size_t process = 0; process < all.size(); ++process)
      say(*job, fmt::format("messages of step {} on process {}", step, process), all[process]);
  }
  return {};
}

/// Ranks 0 and 1, then 2 and 3, are groups. Both of the first send 10,000 bytes to the second, at 100,000 bytes/s and 50 ms:
/// they leave by one port one after the other, whatever processes they are in. Then all reduce.
Result<> check_links(const std::shared_ptr<JobProcesses>& job) {
  constexpr std::chrono::milliseconds kBusy{100};
  constexpr std::chrono::milliseconds kLatency{50};
  Routes routes{.num_ranks = 4, .transfers = {}, .collectives = {}};
  for (const int rank : {0, 1})
    routes.transfers.push_back({.source = RankId{rank},
                                .destination = RankId{rank + 2},
                                .value = Value::activation(EdgeId{0}, MicrobatchId{rank}, SliceId{0})});
  routes.collectives.push_back({.kind = CollectiveKind::kAllReduce,
                                .members = {RankId{0}, RankId{1}, RankId{2}, RankId{3}},
                                .root = RankId{0},
                                .value = Value::norm()});
  const RankRange here = ranks_of_process(job->index(), job->size(), routes.num_ranks);
  PLAIT_TRY(auto inner, job->open(routes, here));
  const EmulatedLink outer{.latency = Nanos{std::chrono::nanoseconds(kLatency).count()}, .bytes_per_second = 1e5};
  PLAIT_TRY(const auto transport,
            emulate_cluster({.ranks_per_group = 2, .inner = {}, .outer = outer})(std::move(inner), job.get()));
  for (int step = 0; step < 3; ++step) {
    transport->begin_step();
    PLAIT_TRY_VOID(job->meet());
    const Clock::time_point deadline = Clock::now() + std::chrono::seconds(30);
    // Of each rank: when it sent or had received, entered, and was through.
    std::vector<std::array<std::int64_t, 3>> times(static_cast<std::size_t>(here.size()));
    std::atomic<bool> late = false;
    RankThreads threads(RankId{here.begin}, here.size());
    threads.run([&](RankId rank) {
      auto& mine = times[rank.index() - static_cast<std::size_t>(here.begin)];
      const TransferId id = rank.value() % 2;
      const auto now = [] { return Clock::now().time_since_epoch().count(); };
      if (rank.value() < 2) {
        mine[0] = now();
        transport->send(id, {.value = routes.transfers[static_cast<std::size_t>(id)].value,
                             .tensors = {elements(2500, 1, 0, at::kFloat)},
                             .counts = {}});
      } else {
        Message message;
        transport->post_receive(id);
        late = late || transport->receive(id, message, deadline) != WaitStatus::kReady;
        mine[0] = now();
      }
      const at::Tensor summand = elements(100, rank.value(), 0, at::kFloat);
      mine[1] = now();
      transport->enter(0, rank, {&summand, 1});
      late = late || transport->finish(0, rank, deadline) != WaitStatus::kReady;
      mine[2] = now();
      if (rank.value() < 2) late = late || transport->wait_sent(id, deadline) != WaitStatus::kReady;
    });
    if (late) return make_error(ErrorCode::kTimeout, "probe", "something did not arrive");
    PLAIT_TRY(const auto all, job->gather(ByteWriter().put_list(times).take()));
    std::vector<std::array<std::int64_t, 3>> of_all;
    for (const std::string& bytes : all)
      for (const auto& one : ByteReader(bytes).get_list<std::array<std::int64_t, 3>>()) of_all.push_back(one);
    if (of_all.empty()) continue;
    const auto since = [](std::int64_t from, std::int64_t to) { return Clock::duration(to - from); };
    const auto last = std::max(of_all[2][0], of_all[3][0]);
    const Clock::duration both = since(std::min(of_all[0][0], of_all[1][0]), last);
    say(*job, fmt::format("port of step {}", step),
        both >= 2 * kBusy + kLatency ? "" : fmt::format("{} ns for both", both.count()));
    std::int64_t all_in = 0;
    std::int64_t first_out = of_all[0][2];
    for (const auto& one : of_all) {
      all_in = std::max(all_in, one[1]);
      first_out = std::min(first_out, one[2]);
    }
    // Twice three hops, each with a quarter of 400 bytes.
    const Clock::duration ring = 6 * (kLatency + std::chrono::milliseconds(1));
    say(*job, fmt::format("ring of step {}", step),
        since(all_in, first_out) >= ring ? "" : fmt::format("{} ns", (first_out - all_in)));
  }
  return {};
}

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

/// Over processes also with steps that are validated behind the norm; over threads they wait for it.
Result<> check_not_finite(const std::shared_ptr<JobProcesses>& job, const std::filesystem::path& folder) {
  for (const Spoilt spoilt : {Spoilt::kLoss, Spoilt::kGradient}) {
    for (const OnNan choice : {OnNan::kSkip, OnNan::kRollback}) {
      const std::string name =
          fmt::format("{} {}", to_string(choice), spoilt == Spoilt::kLoss ? "of a loss" : "of a gradient");
      const auto run_to = [&](const std::string& where, StepOrder order,
                              const std::shared_ptr<ProcessGroup>& processes) -> Result<> {
        PLAIT_TRY(const TrainJob what, spoilt_job(spoilt_rows(12, {3, 5}), order));
        TrainOptions options = spoilt_options(folder / name / where, 6, choice, spoilt);
        options.engine.processes = processes;
        Notes notes;
        PLAIT_TRY_VOID(train(what, options, notes, [] { return false; }));
        return {};
      };
      PLAIT_TRY_VOID(run_to("processes", StepOrder::kBehindNorm, job));
      PLAIT_TRY_VOID(run_to("validated", StepOrder::kPostValidated, job));
      if (job->index() != 0) continue;
      PLAIT_TRY_VOID(run_to("threads", StepOrder::kBehindNorm, nullptr));
      const std::string expected = bytes_of(folder / name / "threads");
      for (const char* where : {"processes", "validated"})
        say(*job, name + " " + where, bytes_of(folder / name / where) == expected ? "" : "the run folders");
    }
  }
  return {};
}

Result<> run(const std::shared_ptr<JobProcesses>& job, const std::vector<std::string>& words) {
  if (words.at(0) == "not-finite") return check_not_finite(job, words.at(1));
  if (words.at(0) == "hang") return hang(job);
  if (words.at(0) == "harm") return harm(job, std::atoi(words.at(1).c_str()), RankId{std::atoi(words.at(2).c_str())});
  if (words.at(0) == "collectives") return check_collectives(job);
  if (words.at(0) == "links") return check_links(job);
  if (words.at(0) == "messages") return check_messages(job);
  return run_grid(job, std::atoi(words.at(1).c_str()), std::atoi(words.at(2).c_str()), std::atoi(words.at(3).c_str()));
}

}  // namespace
}  // namespace plait

/// Plug-ins that MPI looks at and does not use are gone from memory at once, what they forgot to free is not.
static void start_mpi_without_leaks() {
#if defined(__SANITIZE_ADDRESS__)
  __lsan_disable();
  int level = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
  __lsan_enable();
#endif
}

/// Before MPI ends: it takes its plug-ins out of memory, and what these never free (tests/sanitizers/lsan.supp) could no
/// longer be told from leaks of ours.
static void look_for_leaks() {
#if defined(__SANITIZE_ADDRESS__)
  __lsan_do_leak_check();
#endif
}

int main(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  const bool over_mpi = !words.empty() && words.front() == "over-mpi";
  if (over_mpi) words.erase(words.begin());
  start_mpi_without_leaks();
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
  if ((*job)->index() == 0) std::printf("cases %d\n", plait::num_cases);
  look_for_leaks();
  const plait::Result<> left = (*job)->leave();
  if (!left) return 3;
  return plait::num_different == 0 ? 0 : 1;
}
