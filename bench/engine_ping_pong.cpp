// How fast messages go from process to process, beside plain MPI with the same sizes in the same run:
//
//     mpirun -np 2 build/release/bin/plait_ping_pong
//
// One line per size: median one-way times in us and rates in GB/s of both, and the ratio of the rates.

#include "plait/run/processes/mpi_group.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <vector>

namespace plait {
namespace {

constexpr int kRounds = 41;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Into fresh memory each time, as plain as MPI goes: buffers are used again and again.
double plain(int rank, std::size_t size) {
  std::vector<char> out(size, 1);
  std::vector<char> in(size, 2);
  std::vector<double> times;
  const int count = static_cast<int>(size);
  for (int round = 0; round < kRounds; ++round) {
    const Clock::time_point start = Clock::now();
    if (rank == 0) MPI_Send(out.data(), count, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
    MPI_Recv(in.data(), count, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank == 1) MPI_Send(out.data(), count, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
    times.push_back(seconds_since(start) / 2);
  }
  return median(times);
}

/// Tensors handed over through the transport, there and back; as the engine does, a receive is posted ahead.
Result<double> handed_over(ProcessGroup& job, Transport& transport, std::size_t size) {
  const int rank = job.index();
  std::vector<double> times;
  const at::Tensor tensor = at::full({static_cast<std::int64_t>(size)}, 1, at::kByte);
  for (int round = 0; round < kRounds; ++round) {
    transport.begin_step();
    PLAIT_TRY_VOID(job.meet());
    const TransferId mine = rank;
    const TransferId theirs = 1 - rank;
    const Clock::time_point deadline = Clock::now() + std::chrono::seconds(30);
    const auto send = [&] {
      Message message{.value = transport.routes().transfers[static_cast<std::size_t>(mine)].value,
                      .tensors = {tensor},
                      .counts = {}};
      transport.send(mine, std::move(message));
    };
    transport.post_receive(theirs);
    const Clock::time_point start = Clock::now();
    Message message;
    if (rank == 0) send();
    if (transport.receive(theirs, message, deadline) != WaitStatus::kReady)
      return make_error(ErrorCode::kTimeout, "bench", "no message");
    if (rank == 1) send();
    times.push_back(seconds_since(start) / 2);
    transport.wait_sent(mine, deadline);
  }
  return median(times);
}

std::vector<std::size_t> sizes() {
  std::vector<std::size_t> list;
  constexpr std::size_t kMost = 64U << 20U;
  for (std::size_t size = 4U << 10U; size <= kMost; size *= 4) list.push_back(size);
  return list;
}

Result<> run(ProcessGroup& job, const std::vector<double>& of_plain) {
  if (job.size() != 2) return make_error(ErrorCode::kInvalidArgument, "bench", "start two processes");
  Routes routes{.num_ranks = 2, .transfers = {}, .collectives = {}};
  for (int rank = 0; rank < 2; ++rank)
    routes.transfers.push_back({.source = RankId{rank},
                                .destination = RankId{1 - rank},
                                .value = Value::activation(EdgeId{rank}, MicrobatchId{0}, SliceId{0})});
  PLAIT_TRY(const auto transport, job.open(routes, ranks_of_process(job.index(), 2, 2)));
  if (job.index() == 0)
    std::printf("%10s %12s %12s %10s %10s %8s\n", "bytes", "plain us", "plait us", "plain GB/s", "plait GB/s", "ratio");
  for (std::size_t i = 0; i < of_plain.size(); ++i) {
    const std::size_t size = sizes()[i];
    PLAIT_TRY(const double of_plait, handed_over(job, *transport, size));
    if (job.index() != 0) continue;
    const auto rate = [&](double seconds) { return static_cast<double>(size) / seconds * 1e-9; };
    std::fputs(fmt::format("{:>10} {:>12.1f} {:>12.1f} {:>10.2f} {:>10.2f} {:>8.2f}\n", size, of_plain[i] * 1e6,
                           of_plait * 1e6, rate(of_plain[i]), rate(of_plait), of_plain[i] / of_plait)
                   .c_str(),
               stdout);
  }
  return {};
}

}  // namespace
}  // namespace plait

int main() {
  // Plain MPI first, while nothing else calls it.
  int level = 0;
  int rank = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::vector<double> of_plain;
  for (const std::size_t size : plait::sizes()) of_plain.push_back(plait::plain(rank, size));
  auto job = plait::join_job({.timeout_seconds = 60});
  if (!job) {
    std::fprintf(stderr, "%s\n", job.error().message.c_str());
    return 2;
  }
  const plait::Result<> done = plait::run(**job, of_plain);
  if (!done) std::fprintf(stderr, "%s\n", done.error().message.c_str());
  return (*job)->leave() && done ? 0 : 1;
}
