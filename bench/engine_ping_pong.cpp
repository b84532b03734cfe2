// How fast messages go from process to process, beside plain MPI with the same sizes in the same run:
//
//     mpirun -np 2 build/release/bin/plait_ping_pong [messages]
//
// One line per size: one-way times in us and rates in GB/s of both, and the ratio of the rates. The two take turns; times
// are medians over all rounds, the ratio is the median of those of the turns, with the lowest and the highest.
// With "messages" Plait goes over MPI too, as it does between machines.

#include "plait/run/engine/memory.h"
#include "plait/run/processes/mpi_group.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <span>
#include <vector>

namespace plait {
namespace {

constexpr int kTurns = 7;
constexpr int kRounds = 16;  // of a turn, the first of which only warms up

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// As plain as MPI goes: two buffers are used again and again.
std::vector<double> plain(int rank, std::vector<char>& out, std::vector<char>& in) {
  std::vector<double> times;
  const int count = static_cast<int>(out.size());
  MPI_Barrier(MPI_COMM_WORLD);
  for (int round = 0; round < kRounds; ++round) {
    const Clock::time_point start = Clock::now();
    if (rank == 0) MPI_Send(out.data(), count, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
    MPI_Recv(in.data(), count, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank == 1) MPI_Send(out.data(), count, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
    if (round > 0) times.push_back(seconds_since(start) / 2);
  }
  return times;
}

/// Transfer of a round: from rank 0 to rank 1, then back.
TransferId transfer(int round, int source) {
  return 2 * round + source;
}

/// Tensors handed over through the transport as the engine does: receives are posted ahead, what came is let go.
Result<std::vector<double>> handed_over(ProcessGroup& job, Transport& transport, const at::Tensor& tensor) {
  const int rank = job.index();
  std::vector<double> times;
  transport.begin_step();
  PLAIT_TRY_VOID(job.meet());
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(30);
  for (int round = 0; round < kRounds; ++round) {
    const TransferId mine = transfer(round, rank);
    const TransferId theirs = transfer(round, 1 - rank);
    const auto send = [&] {
      transport.send(mine, Message{.value = transport.routes().transfers[static_cast<std::size_t>(mine)].value,
                                   .tensors = {tensor},
                                   .counts = {}});
    };
    transport.post_receive(theirs);
    const Clock::time_point start = Clock::now();
    Message message;
    if (rank == 0) send();
    if (transport.receive(theirs, message, deadline) != WaitStatus::kReady)
      return make_error(ErrorCode::kTimeout, "bench", "no message");
    if (rank == 1) send();
    if (round > 0) times.push_back(seconds_since(start) / 2);
    if (transport.wait_sent(mine, deadline) != WaitStatus::kReady)
      return make_error(ErrorCode::kTimeout, "bench", "a message did not leave");
  }
  PLAIT_TRY_VOID(job.meet());  // what was sent stays until it was taken
  return times;
}

void print_row(std::size_t size, const std::vector<double>& of_plain, const std::vector<double>& of_plait,
               std::vector<double> ratios) {
  const double plain_time = median(of_plain);
  const double plait_time = median(of_plait);
  const auto rate = [&](double seconds) { return static_cast<double>(size) / seconds * 1e-9; };
  const auto [lowest, highest] = std::minmax_element(ratios.begin(), ratios.end());
  std::fputs(
      fmt::format("{:>10} {:>12.1f} {:>12.1f} {:>10.2f} {:>10.2f} {:>8.2f}   {:.2f}..{:.2f}\n", size, plain_time * 1e6,
                  plait_time * 1e6, rate(plain_time), rate(plait_time), median(ratios), *lowest, *highest)
          .c_str(),
      stdout);
  std::fflush(stdout);
}

Result<> run(JobProcesses& job) {
  if (job.size() != 2) return make_error(ErrorCode::kInvalidArgument, "bench", "start two processes");
  Routes routes{.num_ranks = 2, .transfers = {}, .collectives = {}};
  for (int round = 0; round < kRounds; ++round)
    for (int rank = 0; rank < 2; ++rank)
      routes.transfers.push_back({.source = RankId{rank},
                                  .destination = RankId{1 - rank},
                                  .value = Value::activation(EdgeId{rank}, MicrobatchId{round}, SliceId{0})});
  PLAIT_TRY(const auto transport, job.open(routes, ranks_of_process(job.index(), 2, 2)));
  if (job.index() == 0)
    std::printf("%10s %12s %12s %10s %10s %8s   %s\n", "bytes", "plain us", "plait us", "plain GB/s", "plait GB/s",
                "ratio", "lowest..highest");
  constexpr std::size_t kLeast = 4U << 10U;
  constexpr std::size_t kMost = 64U << 20U;
  for (std::size_t size = kLeast; size <= kMost; size *= 2) {
    std::vector<char> out(size, 1);
    std::vector<char> in(size, 2);
    const at::Tensor tensor = at::full({static_cast<std::int64_t>(size)}, 1, at::kByte);
    std::vector<double> of_plain;
    std::vector<double> of_plait;
    std::vector<double> ratios;
    for (int turn = 0; turn < kTurns; ++turn) {
      std::vector<double> times;
      job.with_mpi([&] { times = plain(job.index(), out, in); });
      PLAIT_TRY(const std::vector<double> ours, handed_over(job, *transport, tensor));
      ratios.push_back(median(times) / median(ours));
      of_plain.insert(of_plain.end(), times.begin(), times.end());
      of_plait.insert(of_plait.end(), ours.begin(), ours.end());
    }
    if (job.index() == 0) print_row(size, of_plain, of_plait, ratios);
  }
  return {};
}

}  // namespace
}  // namespace plait

int main(int argc, char** argv) {
  plait::install_accounting_allocator();  // what comes lies where it would lie in a step
  const std::span<char*> words(argv, static_cast<std::size_t>(argc));
  const bool over_mpi = words.size() > 1 && std::strcmp(words[1], "messages") == 0;
  auto job = plait::join_job(
      {.timeout_seconds = 60,
       .on_one_machine = over_mpi ? plait::OnOneMachine::kMessages : plait::OnOneMachine::kSharedMemory});
  if (!job) {
    std::fprintf(stderr, "%s\n", job.error().message.c_str());
    return 2;
  }
  const plait::Result<> done = plait::run(**job);
  if (!done) std::fprintf(stderr, "%s\n", done.error().message.c_str());
  return (*job)->leave() && done ? 0 : 1;
}
