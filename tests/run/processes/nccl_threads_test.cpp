// The transport over NCCL between threads that take themselves for processes, each with one rank, beside the transport of one
// process: the same results, whatever the order in which things become ready; and no wait that does not end.

#include "plait/run/engine/rank_threads.h"
#include "plait/run/processes/nccl_transport.h"

#include "fake_nccl.h"
#include "thread_group.h"
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace plait {
namespace {

using namespace plait::testing;

constexpr int kRanks = 4;
constexpr int kSteps = 4;

at::Tensor elements(std::int64_t size, int seed, at::ScalarType type) {
  const at::Tensor values = at::empty({size}, at::kDouble);
  auto* data = values.data_ptr<double>();
  for (std::int64_t i = 0; i < size; ++i)
    data[i] = static_cast<double>((i * 7919 + 31 * seed) % 1000) / 333.0 * (seed % 2 == 0 ? 1.0 : 1e5);
  return values.to(type);
}

Clock::time_point in_a_while() {
  return Clock::now() + std::chrono::seconds(10);
}

Value act(int number) {
  return Value::activation(EdgeId{0}, MicrobatchId{number}, SliceId{0});
}
Value grad(int number) {
  return Value::gradient(EdgeId{0}, MicrobatchId{number}, SliceId{0});
}

/// Runs `job` as `kRanks` processes with one rank each; `inner` is what they have in common.
void run_as_processes(const Routes& routes, const std::vector<FakeNcclFaults>& faults, Clock::duration timeout,
                      const std::function<void(int, ProcessGroup&, Result<std::unique_ptr<Transport>>)>& job) {
  auto hub = std::make_shared<ThreadHub>(kRanks);
  const std::shared_ptr<Transport> common = make_in_process_transport(routes);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      ThreadGroup group(hub, rank);
      auto transport = open_nccl(group, make_fake_nccl(faults[static_cast<std::size_t>(rank)]),
                                 std::make_unique<CommonTransport>(common, group),
                                 RankRange{.begin = rank, .end = rank + 1}, timeout);
      if (!transport) group.report(transport.error());
      job(rank, group, std::move(transport));
    });
  for (std::thread& thread : threads) thread.join();
}

/// Rank 0 sends three messages to rank 1 on each of two lanes, which are read in another order than they are sent: a lane that
/// waits must not hold the other.
TEST(NcclTransport, LanesDoNotWaitForEachOther) {
  Routes routes{.num_ranks = kRanks, .transfers = {}, .collectives = {}};
  for (int number = 0; number < 3; ++number) {
    routes.transfers.push_back({.source = RankId{0}, .destination = RankId{1}, .value = act(number)});
    routes.transfers.push_back({.source = RankId{0}, .destination = RankId{1}, .value = grad(number)});
  }
  run_as_processes(
      routes, std::vector<FakeNcclFaults>(kRanks), std::chrono::seconds(30),
      [&](int rank, ProcessGroup& group, Result<std::unique_ptr<Transport>> opened) {
        ASSERT_TRUE(opened) << opened.error().message;
        Transport& transport = **opened;
        for (int step = 0; step < kSteps; ++step) {
          transport.begin_step();
          ASSERT_TRUE(group.meet());
          for (TransferId id = 0; rank == 0 && id < 6; ++id) {
            const std::size_t at = static_cast<std::size_t>(id);
            transport.send(id, {.value = routes.transfers[at].value,
                                .tensors = {elements(100000 + id, id + 10 * step, at::kFloat)},
                                .counts = {}});
          }
          for (TransferId id = 0; rank == 1 && id < 6; ++id) transport.post_receive(id);
          // All of the second lane, then the first from its end.
          for (const TransferId id : {1, 3, 5, 4, 2, 0}) {
            if (rank == 0) {
              EXPECT_EQ(transport.wait_sent(id, in_a_while()), WaitStatus::kReady);
            }
            if (rank != 1) continue;
            Message message;
            ASSERT_EQ(transport.receive(id, message, in_a_while()), WaitStatus::kReady);
            EXPECT_EQ(message.value, routes.transfers[static_cast<std::size_t>(id)].value);
            EXPECT_TRUE(at::equal(message.tensors.at(0), elements(100000 + id, id + 10 * step, at::kFloat)));
          }
          ASSERT_TRUE(group.meet());
        }
      });
}

TEST(NcclTransport, WhatNobodyReadsDoesNotStandInTheWayOfTheNextStep) {
  const Routes routes{.num_ranks = kRanks,
                      .transfers = {{.source = RankId{0}, .destination = RankId{1}, .value = act(0)}},
                      .collectives = {}};
  run_as_processes(routes, std::vector<FakeNcclFaults>(kRanks), std::chrono::seconds(2),
                   [&](int rank, ProcessGroup& group, Result<std::unique_ptr<Transport>> opened) {
                     ASSERT_TRUE(opened) << opened.error().message;
                     for (int step = 0; step < kSteps; ++step) {
                       (*opened)->begin_step();
                       ASSERT_TRUE(group.meet());
                       if (rank == 0)
                         (*opened)->send(0,
                                         {.value = act(0), .tensors = {elements(9, step, at::kFloat)}, .counts = {}});
                       if (rank == 1) (*opened)->post_receive(0);
                       ASSERT_TRUE(group.meet());
                       Message message;
                       if (rank != 1 || step + 1 < kSteps) continue;
                       ASSERT_EQ((*opened)->receive(0, message, in_a_while()), WaitStatus::kReady);
                       EXPECT_TRUE(at::equal(message.tensors.at(0), elements(9, step, at::kFloat)));
                     }
                   });
}

struct Case {
  std::vector<std::int64_t> sizes;
  int absent = -1;  ///< a member without the first tensor
};

/// Every member's tensors behind every collective, by (rank, collective).
using Results = std::vector<std::vector<std::vector<at::Tensor>>>;

/// What one rank does in a step: it enters all, and finishes them from the last.
bool take_part(Transport& transport, const std::vector<Case>& cases, int rank, int step,
               std::vector<std::vector<at::Tensor>>& mine) {
  mine.assign(cases.size(), {});
  for (std::size_t c = 0; c < cases.size(); ++c) {
    const CollectiveRoute& route = transport.routes().collectives[c];
    if (!std::binary_search(route.members.begin(), route.members.end(), RankId{rank})) continue;
    for (std::size_t t = 0; t < cases[c].sizes.size(); ++t)
      mine[c].push_back(t == 0 && cases[c].absent == rank
                            ? at::Tensor()
                            : elements(cases[c].sizes[t], rank + 10 * step + static_cast<int>(t), at::kFloat));
    transport.enter(static_cast<CollectiveId>(c), RankId{rank}, mine[c]);
  }
  for (std::size_t c = cases.size(); c-- > 0;)
    if (!mine[c].empty() &&
        transport.finish(static_cast<CollectiveId>(c), RankId{rank}, in_a_while()) != WaitStatus::kReady)
      return false;
  return true;
}

TEST(NcclTransport, CollectivesGiveTheBitsOfOneProcess) {
  Routes routes{.num_ranks = kRanks, .transfers = {}, .collectives = {}};
  std::vector<Case> cases;
  for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduce, CollectiveKind::kReduceScatter,
                                    CollectiveKind::kAllGather, CollectiveKind::kBroadcast})
    for (const std::vector<int>& members : {std::vector{0, 1, 2, 3}, {1, 3}, {2}})
      for (const int absent : {-1, 1})
        for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{8}, {7, 0, 1}, {40001, 12}}) {
          if (absent >= 0 && (kind == CollectiveKind::kReduceScatter || members.size() == 1)) continue;
          CollectiveRoute route{.kind = kind,
                                .members = {},
                                .root = RankId{members.back()},
                                .value = Value::weight_grad(GroupId{static_cast<int>(cases.size())}),
                                .order = 0};
          for (const int member : members) route.members.push_back(RankId{member});
          routes.collectives.push_back(route);
          cases.push_back({.sizes = sizes, .absent = absent});
        }
  for (const bool one_gpu : {false, true}) {
    std::vector<Results> results(kSteps, Results(kRanks));
    run_as_processes(
        routes, std::vector(kRanks, FakeNcclFaults{.one_gpu = one_gpu}), std::chrono::seconds(30),
        [&](int rank, ProcessGroup& group, Result<std::unique_ptr<Transport>> opened) {
          ASSERT_TRUE(opened) << opened.error().message;
          EXPECT_EQ((*opened)->note().empty(), !one_gpu);
          for (int step = 0; step < kSteps; ++step) {
            (*opened)->begin_step();
            ASSERT_TRUE(group.meet());
            ASSERT_TRUE(take_part(**opened, cases, rank, step,
                                  results[static_cast<std::size_t>(step)][static_cast<std::size_t>(rank)]));
            ASSERT_TRUE(group.meet());
          }
        });
    const auto alone = make_in_process_transport(routes);
    for (int step = 0; step < kSteps; ++step) {
      alone->begin_step();
      Results expected(kRanks);
      RankThreads threads(RankId{0}, kRanks);
      threads.run([&](RankId rank) { take_part(*alone, cases, rank.value(), step, expected[rank.index()]); });
      for (std::size_t rank = 0; rank < kRanks; ++rank)
        for (std::size_t c = 0; c < cases.size(); ++c)
          for (std::size_t t = 0; t < expected[rank][c].size(); ++t) {
            const at::Tensor& want = expected[rank][c][t];
            const at::Tensor& got = results[static_cast<std::size_t>(step)][rank][c][t];
            ASSERT_EQ(got.defined(), want.defined());
            if (!want.defined()) continue;
            EXPECT_TRUE(at::equal(got, want))
                << "step " << step << ", rank " << rank << ", collective " << c << ", tensor " << t;
          }
    }
  }
}

/// In each of these, what is wrong happens on rank 1's process alone, and all end.
TEST(NcclTransport, AMemberThatNeverComesToTheOpeningIsNamed) {
  const Routes routes{.num_ranks = kRanks,
                      .transfers = {{.source = RankId{0}, .destination = RankId{1}, .value = act(0)}},
                      .collectives = {}};
  std::vector<FakeNcclFaults> faults(kRanks);
  faults[1].kind = FakeNcclFaults::Kind::kNeverOpens;
  run_as_processes(
      routes, faults, std::chrono::seconds(1),
      [&](int rank, ProcessGroup& /*group*/, Result<std::unique_ptr<Transport>> opened) {
        if (rank > 1) return;  // has no line to open
        ASSERT_FALSE(opened);
        EXPECT_EQ(opened.error().rule, "nccl.open");
        EXPECT_NE(opened.error().message.find("the messages (activation) from rank 0 to rank 1"), std::string::npos)
            << opened.error().message;
      });
}

TEST(NcclTransport, MoreLinesThanQueuesAreRefusedOnAllProcesses) {
  Routes routes{.num_ranks = kRanks,
                .transfers = {{.source = RankId{0}, .destination = RankId{1}, .value = act(0)},
                              {.source = RankId{0}, .destination = RankId{1}, .value = grad(0)},
                              {.source = RankId{1}, .destination = RankId{2}, .value = act(1)}},
                .collectives = {}};
  run_as_processes(routes, std::vector(kRanks, FakeNcclFaults{.most_queues = 2}), std::chrono::seconds(30),
                   [&](int /*rank*/, ProcessGroup& /*group*/, Result<std::unique_ptr<Transport>> opened) {
                     ASSERT_FALSE(opened);
                     EXPECT_EQ(opened.error().rule, "nccl.queues");
                   });
}

/// A call that the device never comes to the end of, or a communicator that fails: every wait ends, and all know why.
TEST(NcclTransport, AFailureOnADeviceEndsAllWaits) {
  using Kind = FakeNcclFaults::Kind;
  const Routes routes{.num_ranks = kRanks,
                      .transfers = {{.source = RankId{0}, .destination = RankId{1}, .value = act(0)}},
                      .collectives = {{.kind = CollectiveKind::kAllReduce,
                                       .members = {RankId{0}, RankId{1}, RankId{2}, RankId{3}},
                                       .root = RankId{0},
                                       .value = Value::norm(),
                                       .order = 0}}};
  for (const auto& [kind, rule] : {std::pair(Kind::kHangs, "nccl.timeout"), {Kind::kFails, "nccl.failed"}}) {
    std::vector<FakeNcclFaults> faults(kRanks);
    faults[1] = {.kind = kind, .calls = 3};
    run_as_processes(routes, faults, std::chrono::seconds(1),
                     [&, kind = kind, rule = std::string(rule)](int rank, ProcessGroup& group,
                                                                Result<std::unique_ptr<Transport>> opened) {
                       ASSERT_TRUE(opened) << opened.error().message;
                       Transport& transport = **opened;
                       const Clock::time_point start = Clock::now();
                       // Other processes learn of it from the group, and stop as the engine's board lets them.
                       std::atomic<bool> over = false;
                       std::thread board([&] {
                         while (!over.load()) {
                           if (group.failure()) transport.stop();
                           std::this_thread::sleep_for(std::chrono::milliseconds(5));
                         }
                       });
                       for (int step = 0; step < kSteps && !group.failure(); ++step) {
                         transport.begin_step();
                         if (!group.meet()) break;
                         try {
                           if (rank == 0)
                             transport.send(0,
                                            {.value = act(0), .tensors = {elements(50, 1, at::kFloat)}, .counts = {}});
                           if (rank == 1) transport.post_receive(0);
                           Message message;
                           if (rank == 1 && transport.receive(0, message, in_a_while()) != WaitStatus::kReady) break;
                           const at::Tensor summand = elements(5, rank, at::kFloat);
                           transport.enter(0, RankId{rank}, {&summand, 1});
                           if (transport.finish(0, RankId{rank}, in_a_while()) != WaitStatus::kReady) break;
                         } catch (const std::exception& error) {
                           group.report(make_error(ErrorCode::kTransport, "nccl.failed", "{}", error.what()));
                         }
                         if (!group.meet()) break;
                       }
                       const auto limit = std::chrono::seconds(10);
                       while (!group.failure() && Clock::now() - start < limit)
                         std::this_thread::sleep_for(std::chrono::milliseconds(5));
                       EXPECT_LT(Clock::now() - start, limit);
                       over.store(true);
                       board.join();
                       const std::optional<Error> failure = group.failure();
                       ASSERT_TRUE(failure.has_value());
                       EXPECT_EQ(failure->rule, rule) << failure->message;
                       EXPECT_NE(failure->message.find("rank 1"), std::string::npos) << failure->message;
                       transport.stop();
                     });
  }
}

}  // namespace
}  // namespace plait
