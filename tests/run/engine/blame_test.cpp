// Who keeps a step from going on, out of what its ranks wait for.

#include "plait/run/engine/blame.h"

#include "plait/base/check.h"
#include "plait/run/engine/lost_process.h"

#include "engine_support.h"

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

namespace plait::testing {
namespace {

constexpr std::int64_t kStep = 5;

/// Three ranks of 1f1b: F of rank 1 waits for rank 0, that of rank 2 for rank 1.
class Blame : public ::testing::Test {
 protected:
  Blame() {
    for (std::size_t rank = 0; rank < waits_.size(); ++rank) waits_[rank].begin(kStep);
  }
  [[nodiscard]] StepView view(std::vector<bool> silent = {}) const {
    return {.program = &program_.program(), .bound = &bound_, .waits = &waits_, .step = kStep, .silent = silent};
  }
  /// A rank waits for the first activation of the rank before it.
  void wait_for_activation(int rank) {
    WaitState& state = waits_[static_cast<std::size_t>(rank)];
    for (std::size_t id = 0; id < bound_.routes.transfers.size(); ++id) {
      const Transfer& transfer = bound_.routes.transfers[id];
      if (transfer.destination != RankId{rank} || transfer.source != RankId{rank - 1}) continue;
      if (transfer.value != Value::activation(EdgeId{rank - 1}, MicrobatchId{0}, SliceId{0})) continue;
      state.transfer.store(static_cast<TransferId>(id));
    }
    state.position.store(1);
    state.since.store(Clock::now().time_since_epoch().count());
    state.peer.store(rank - 1);
  }
  /// All but `missing` have entered the norm's sum and wait for it.
  void wait_for_norm(const std::vector<int>& missing) {
    for (std::int32_t rank = 0; rank < 3; ++rank) {
      const std::vector<BoundInstr>& row = bound_.rows[static_cast<std::size_t>(rank)].instrs;
      for (std::size_t at = 0; at < row.size(); ++at) {
        const auto* finish = std::get_if<BoundFinishNorm>(&row[at]);
        if (finish == nullptr || std::count(missing.begin(), missing.end(), rank) > 0) continue;
        WaitState& state = waits_[static_cast<std::size_t>(rank)];
        state.position.store(static_cast<std::int32_t>(at));
        state.collective.store(finish->collective);
        state.peer.store(rank == 0 ? 1 : 0);
      }
    }
  }
  [[nodiscard]] Wait last_of(int rank, const StepView& seen) const {
    const auto wait = wait_of(seen, RankId{rank});
    PLAIT_CHECK(wait, "rank {} does not wait", rank);
    return last_wait(seen, *wait);
  }
  /// Of the send of the first activation.
  static constexpr std::size_t kSendOf0 = 1;
  static constexpr std::size_t kSendOf1 = 2;

  const VerifiedProgram program_ =
      *program_of("1f1b", ScheduleShape{.ranks = 3, .microbatches = 4, .layers = 3, .tying = HeadTying::kUntied});
  const BoundProgram bound_ = *bind(program_.program());
  WaitTable waits_{3};
};

using Ends = std::tuple<RankId, RankId, std::optional<std::size_t>, bool>;
Ends ends(const Wait& wait) {
  return {wait.rank, wait.peer, wait.awaited, wait.is_met};
}

TEST_F(Blame, GoesToTheOneThatDoesNotWaitItself) {
  wait_for_activation(1);
  wait_for_activation(2);
  EXPECT_EQ(ends(last_of(2, view())), (Ends{RankId{1}, RankId{0}, kSendOf0, false}));
}

TEST_F(Blame, GoesToASilentOneThoughItWaitedWhenItWasLastSeen) {
  wait_for_activation(1);
  wait_for_activation(2);
  EXPECT_EQ(ends(last_of(2, view({false, true, false}))), (Ends{RankId{2}, RankId{1}, kSendOf1, false}));
}

TEST_F(Blame, DoesNotFollowAWaitOfAnEarlierStep) {
  wait_for_activation(1);
  wait_for_activation(2);
  waits_[1].step.store(kStep - 1);
  EXPECT_EQ(ends(last_of(2, view())), (Ends{RankId{2}, RankId{1}, kSendOf1, false}));
  EXPECT_EQ(place_of(view(), RankId{1}), "rank 1, not seen in this step");
}

TEST_F(Blame, OfAMessageThatWasSentStaysWithTheOneThatWaits) {
  wait_for_activation(1);
  wait_for_activation(2);
  waits_[0].position.store(kSendOf0 + 1);
  EXPECT_EQ(ends(last_of(2, view())), (Ends{RankId{1}, RankId{0}, kSendOf0, true}));
  // It may still need its sender to go on its way.
  EXPECT_EQ(ends(last_of(2, view({true, false, false}))), (Ends{RankId{1}, RankId{0}, kSendOf0, true}));
}

TEST_F(Blame, OfACollectiveGoesToAMemberThatHasNotEntered) {
  wait_for_norm({1, 2});
  EXPECT_EQ(last_of(0, view()).peer, RankId{1});
  EXPECT_EQ(last_of(0, view({false, false, true})).peer, RankId{2}) << "rather the silent one";
  waits_[1].peer.store(2);
  EXPECT_EQ(last_of(0, view()).peer, RankId{2}) << "rather the one that does not wait";
}

TEST_F(Blame, OfACollectiveThatAllEnteredStaysWithTheOneThatWaits) {
  wait_for_norm({});
  EXPECT_TRUE(last_of(2, view()).is_met);
}

TEST_F(Blame, ALossNamesWhatTheLostRankWouldHaveDoneFirst) {
  wait_for_activation(1);
  wait_for_activation(2);
  const LostProcess lost{.process = 0, .how = LostProcess::How::kSilent, .where = "process 0 (here)", .silence = {}};
  const std::string message = explain_loss(view(), lost, {.begin = 0, .end = 1}, {.begin = 2, .end = 3}).message;
  EXPECT_NE(message.find("process 0 (here) is silent"), std::string::npos) << message;
  EXPECT_NE(message.find("last seen: rank 0, position 0, op 0F0. Here: rank 2, position 1, "), std::string::npos)
      << message;
  EXPECT_NE(message.find("s for rank 0, position 1, send of the activation of edge 0, micro-batch 0 to rank 1"),
            std::string::npos)
      << message;
}

}  // namespace
}  // namespace plait::testing
