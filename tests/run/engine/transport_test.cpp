#include "plait/run/engine/transport.h"

#include "plait/run/engine/delayed_transport.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace plait {
namespace {

Value activation(int edge, int microbatch) {
  return Value::activation(EdgeId{edge}, MicrobatchId{microbatch}, SliceId{0});
}
Clock::time_point soon() {
  return Clock::now() + std::chrono::seconds(30);
}

Routes two_ranks(int num_transfers) {
  Routes routes{.num_ranks = 2, .transfers = {}, .collectives = {}};
  for (int m = 0; m < num_transfers; ++m)
    routes.transfers.push_back(Transfer{.source = RankId{0}, .destination = RankId{1}, .value = activation(0, m)});
  return routes;
}

Message message_of(int microbatch) {
  Message message{.value = activation(0, microbatch), .tensors = {}, .counts = {}};
  message.tensors.push_back(at::full({4}, microbatch, at::kFloat));
  return message;
}

TEST(InProcessTransport, HandsBuffersOverWithoutACopy) {
  const auto transport = make_in_process_transport(two_ranks(1));
  transport->begin_step();
  Message sent = message_of(7);
  const void* data = sent.tensors[0].data_ptr();
  transport->send(0, std::move(sent));
  Message received;
  ASSERT_EQ(transport->receive(0, received, soon()), WaitStatus::kReady);
  ASSERT_EQ(received.tensors.size(), 1U);
  EXPECT_EQ(received.tensors[0].data_ptr(), data);
  EXPECT_EQ(received.tensors[0].use_count(), 1U);
}

TEST(InProcessTransport, MessagesAreFoundByNameInAnyOrderStepAfterStep) {
  constexpr int kMessages = 50;
  const auto transport = make_in_process_transport(two_ranks(kMessages));
  for (int step = 0; step < 20; ++step) {
    transport->begin_step();
    std::thread sender([&] {
      for (int m = 0; m < kMessages; ++m) transport->send(m, message_of(m + step));
    });
    for (int m = kMessages - 1; m >= 0; --m) {
      Message received;
      ASSERT_EQ(transport->receive(m, received, soon()), WaitStatus::kReady);
      EXPECT_EQ(received.tensors.at(0)[0].item<float>(), static_cast<float>(m + step));
    }
    sender.join();
  }
}

TEST(InProcessTransport, ASilentPeerEndsInATimeout) {
  const auto transport = make_in_process_transport(two_ranks(1));
  transport->begin_step();
  Message received;
  EXPECT_EQ(transport->receive(0, received, Clock::now() + std::chrono::milliseconds(5)), WaitStatus::kTimedOut);
}

TEST(InProcessTransport, StopEndsWaitsNowAndLater) {
  const auto transport = make_in_process_transport(two_ranks(1));
  transport->begin_step();
  Message received;
  std::thread waiting([&] { EXPECT_EQ(transport->receive(0, received, soon()), WaitStatus::kStopped); });
  transport->stop();
  waiting.join();
  EXPECT_EQ(transport->receive(0, received, soon()), WaitStatus::kStopped);
}

/// Every member brings [7] values 10^member * (1..7), in tensors that each member holds; runs on one thread per member.
std::vector<at::Tensor> run_collective(CollectiveKind kind, int num_members, int root,
                                       const std::vector<int>& absent = {}) {
  Routes routes{
      .num_ranks = num_members,
      .transfers = {},
      .collectives = {CollectiveRoute{.kind = kind, .members = {}, .root = RankId{root}, .value = Value::norm()}}};
  for (int member = 0; member < num_members; ++member) routes.collectives[0].members.push_back(RankId{member});
  const auto transport = make_in_process_transport(routes);
  std::vector<at::Tensor> tensors;
  double scale = 1;
  for (int member = 0; member < num_members; ++member, scale *= 10)
    tensors.push_back(at::arange(1, 8, at::kDouble).mul(scale));
  for (const int member : absent) tensors[static_cast<std::size_t>(member)] = at::Tensor();
  transport->begin_step();
  std::vector<std::thread> threads;
  for (int member = 0; member < num_members; ++member) {
    threads.emplace_back([&, member] {
      transport->enter(0, RankId{member}, {&tensors[static_cast<std::size_t>(member)], 1});
      EXPECT_EQ(transport->finish(0, RankId{member}, soon()), WaitStatus::kReady);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return tensors;
}

at::Tensor values(const std::vector<double>& list) {
  const at::Tensor tensor = at::empty({static_cast<std::int64_t>(list.size())}, at::kDouble);
  std::copy(list.begin(), list.end(), tensor.data_ptr<double>());
  return tensor;
}

TEST(InProcessTransport, AllReduceGivesEveryMemberTheSum) {
  for (const at::Tensor& tensor : run_collective(CollectiveKind::kAllReduce, 3, 0))
    EXPECT_TRUE(at::equal(tensor, values({111, 222, 333, 444, 555, 666, 777})));
}

TEST(InProcessTransport, AllReduceLeavesOutMembersWithoutTheTensor) {
  const auto tensors = run_collective(CollectiveKind::kAllReduce, 4, 0, {1});
  EXPECT_FALSE(tensors[1].defined());
  for (const std::size_t member : {0U, 2U, 3U})
    EXPECT_TRUE(at::equal(tensors[member], values({1101, 2202, 3303, 4404, 5505, 6606, 7707})));
}

TEST(InProcessTransport, ReduceGivesTheRootTheSum) {
  const auto tensors = run_collective(CollectiveKind::kReduce, 3, 1);
  EXPECT_TRUE(at::equal(tensors[0], values({1, 2, 3, 4, 5, 6, 7})));
  EXPECT_TRUE(at::equal(tensors[1], values({111, 222, 333, 444, 555, 666, 777})));
  EXPECT_TRUE(at::equal(tensors[2], values({100, 200, 300, 400, 500, 600, 700})));
}

TEST(InProcessTransport, BroadcastGivesAllTheRoots) {
  for (const at::Tensor& tensor : run_collective(CollectiveKind::kBroadcast, 3, 2))
    EXPECT_TRUE(at::equal(tensor, values({100, 200, 300, 400, 500, 600, 700})));
}

// Segments of 7 elements over 3 members: [0,2) [2,4) [4,7).
TEST(InProcessTransport, AllGatherPutsEachMembersSegmentInItsPlace) {
  for (const at::Tensor& tensor : run_collective(CollectiveKind::kAllGather, 3, 0))
    EXPECT_TRUE(at::equal(tensor, values({1, 2, 30, 40, 500, 600, 700})));
}

TEST(InProcessTransport, ReduceScatterGivesEachMemberItsSegmentOfTheSum) {
  const auto tensors = run_collective(CollectiveKind::kReduceScatter, 3, 0);
  EXPECT_TRUE(at::equal(tensors[0], values({111, 222, 3, 4, 5, 6, 7})));
  EXPECT_TRUE(at::equal(tensors[1], values({10, 20, 333, 444, 50, 60, 70})));
  EXPECT_TRUE(at::equal(tensors[2], values({100, 200, 300, 400, 555, 666, 777})));
}

// (0.1 + 0.2) + 0.3 and 0.1 + (0.2 + 0.3) differ in the last bit: the order of the members must be kept for all.
TEST(InProcessTransport, AllReduceSumsInTheOrderOfTheMembers) {
  Routes routes{.num_ranks = 3,
                .transfers = {},
                .collectives = {CollectiveRoute{.members = {RankId{0}, RankId{1}, RankId{2}}, .value = Value::norm()}}};
  const auto transport = make_in_process_transport(routes);
  std::vector<at::Tensor> tensors = {values({0.1, 0.1, 0.1}), values({0.2, 0.2, 0.2}), values({0.3, 0.3, 0.3})};
  transport->begin_step();
  std::vector<std::thread> threads;
  for (int member = 0; member < 3; ++member) {
    threads.emplace_back([&, member] {
      transport->enter(0, RankId{member}, {&tensors[static_cast<std::size_t>(member)], 1});
      EXPECT_EQ(transport->finish(0, RankId{member}, soon()), WaitStatus::kReady);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const at::Tensor& tensor : tensors)
    EXPECT_TRUE(at::equal(tensor, at::full({3}, (0.1 + 0.2) + 0.3, at::kDouble)));
}

TEST(InProcessTransport, AnAbsentMemberIsNamed) {
  Routes routes{.num_ranks = 2,
                .transfers = {},
                .collectives = {CollectiveRoute{.members = {RankId{0}, RankId{1}}, .value = Value::norm()}}};
  const auto transport = make_in_process_transport(routes);
  transport->begin_step();
  const at::Tensor tensor = values({1});
  transport->enter(0, RankId{0}, {&tensor, 1});
  EXPECT_EQ(transport->finish(0, RankId{0}, Clock::now() + std::chrono::milliseconds(5)), WaitStatus::kTimedOut);
  EXPECT_EQ(transport->awaited(0, RankId{0}), RankId{1});
}

std::unique_ptr<Transport> emulated(EmulatedLink link, Routes routes) {
  auto wrapped = emulate_links(link)(make_in_process_transport(std::move(routes)), nullptr);
  return std::move(wrapped.value());
}

TEST(EmulatedLinks, AMessageArrivesAfterLatencyAndTransmission) {
  constexpr auto kLatency = std::chrono::milliseconds(3);
  // 16 bytes at 4000 B/s: 4 ms each; two in a row on one link: 8 ms and the latency.
  const auto transport =
      emulated({.latency = Nanos{std::chrono::nanoseconds(kLatency).count()}, .bytes_per_second = 4000}, two_ranks(2));
  transport->begin_step();
  const auto start = Clock::now();
  transport->send(0, message_of(0));
  transport->send(1, message_of(1));
  EXPECT_EQ(transport->wait_sent(1, soon()), WaitStatus::kReady);
  EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(8));
  Message received;
  EXPECT_EQ(transport->receive(1, received, soon()), WaitStatus::kReady);
  EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(8) + kLatency);
  EXPECT_EQ(received.value, activation(0, 1));
}

TEST(EmulatedLinks, ALinkSlowerThanTheTimeoutTimesOut) {
  const auto transport =
      emulated({.latency = Nanos{std::chrono::nanoseconds(std::chrono::hours(1)).count()}}, two_ranks(1));
  transport->begin_step();
  transport->send(0, message_of(0));
  Message received;
  EXPECT_EQ(transport->receive(0, received, Clock::now() + std::chrono::milliseconds(2)), WaitStatus::kTimedOut);
}

}  // namespace
}  // namespace plait
