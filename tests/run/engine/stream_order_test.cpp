// That whoever uses a tensor on its stream has waited for whoever made it: what each thread's stream has waited for is
// followed through the marks.

#include "plait/run/engine/stream_order.h"

#include "plait/run/engine/transport.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace plait {
namespace {

using Marks = std::set<std::size_t>;

/// Keeps, for each thread, the marks that its stream is behind.
class FollowedOrder final : public StreamOrder {
 public:
  struct Log {
    std::mutex mutex;
    std::map<std::thread::id, Marks> behind;
    std::map<std::size_t, Marks> at;      ///< what a mark is behind
    std::map<std::thread::id, int> used;  ///< tensors
  };
  explicit FollowedOrder(std::shared_ptr<Log> log) : log_(std::move(log)) {}

  void set(std::size_t mark) override {
    const std::lock_guard lock(log_->mutex);
    Marks& mine = log_->behind[std::this_thread::get_id()];
    mine.insert(mark);
    log_->at[mark] = mine;
  }
  void follow(std::size_t mark) override {
    const std::lock_guard lock(log_->mutex);
    ASSERT_TRUE(log_->at.contains(mark)) << mark;
    log_->behind[std::this_thread::get_id()].insert(log_->at[mark].begin(), log_->at[mark].end());
  }
  void use(const at::Tensor& /*tensor*/) override {
    const std::lock_guard lock(log_->mutex);
    ++log_->used[std::this_thread::get_id()];
  }
  at::Tensor bring(const at::Tensor& tensor) override {
    use(tensor);
    return tensor;
  }

 private:
  std::shared_ptr<Log> log_;
};

Clock::time_point soon() {
  return Clock::now() + std::chrono::seconds(30);
}

Value value() {
  return Value::activation(EdgeId{0}, MicrobatchId{0}, SliceId{0});
}

TEST(StreamOrder, WhoReceivesAMessageIsBehindWhoSentIt) {
  auto log = std::make_shared<FollowedOrder::Log>();
  const Routes routes{.num_ranks = 2,
                      .transfers = {{.source = RankId{0}, .destination = RankId{1}, .value = value()}},
                      .collectives = {}};
  ASSERT_EQ(num_stream_marks(routes), 1U);
  const auto transport = make_in_process_transport(routes, std::make_unique<FollowedOrder>(log));
  transport->begin_step();
  std::thread sender([&] {
    transport->send(0, Message{.value = value(), .tensors = {at::full({4}, 1.0F), at::full({2}, 2.0F)}, .counts = {}});
  });
  Message message;
  ASSERT_EQ(transport->receive(0, message, soon()), WaitStatus::kReady);
  sender.join();
  EXPECT_EQ(log->behind[std::this_thread::get_id()], Marks{0});
  EXPECT_EQ(log->used[std::this_thread::get_id()], 2);
}

TEST(StreamOrder, WhoFinishesACollectiveIsBehindAllMembersAndAllShares) {
  constexpr int kMembers = 3;
  const Routes routes{.num_ranks = kMembers,
                      .transfers = {},
                      .collectives = {{.kind = CollectiveKind::kAllReduce,
                                       .members = {RankId{0}, RankId{1}, RankId{2}},
                                       .root = RankId{0},
                                       .value = value()}}};
  ASSERT_EQ(num_stream_marks(routes), 6U);
  for (int repetition = 0; repetition < 20; ++repetition) {
    auto log = std::make_shared<FollowedOrder::Log>();
    const auto transport = make_in_process_transport(routes, std::make_unique<FollowedOrder>(log));
    transport->begin_step();
    std::vector<Marks> behind(kMembers);
    std::vector<std::thread> members;
    for (int rank = 0; rank < kMembers; ++rank)
      members.emplace_back([&, rank] {
        const at::Tensor tensor = at::full({7}, static_cast<float>(rank));
        transport->enter(0, RankId{rank}, {&tensor, 1});
        ASSERT_EQ(transport->finish(0, RankId{rank}, soon()), WaitStatus::kReady);
        const std::lock_guard lock(log->mutex);
        behind[static_cast<std::size_t>(rank)] = log->behind[std::this_thread::get_id()];
      });
    for (std::thread& member : members) member.join();
    EXPECT_EQ(behind, std::vector<Marks>(kMembers, Marks{0, 1, 2, 3, 4, 5}));
    // A share is done behind the entries of all members.
    for (std::size_t share = 3; share < 6; ++share)
      for (std::size_t entry = 0; entry < 3; ++entry) EXPECT_TRUE(log->at[share].contains(entry)) << share;
  }
}

}  // namespace
}  // namespace plait
