#include "plait/run/processes/nccl_plan.h"

#include "plait/run/engine/binding.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace plait {
namespace {

using Kind = NcclLineSpec::Kind;
using Way = NcclLineSpec::Way;

std::vector<RankId> ranks(const std::vector<int>& numbers) {
  std::vector<RankId> ids;
  for (const int number : numbers) ids.push_back(RankId{number});
  return ids;
}

Transfer activation(int source, int destination, int microbatch) {
  return {.source = RankId{source},
          .destination = RankId{destination},
          .value = Value::activation(EdgeId{0}, MicrobatchId{microbatch}, SliceId{0})};
}

Transfer gradient(int source, int destination, int microbatch) {
  return {.source = RankId{source},
          .destination = RankId{destination},
          .value = Value::gradient(EdgeId{0}, MicrobatchId{microbatch}, SliceId{0})};
}

CollectiveRoute collective(const std::vector<int>& members, int order) {
  return {.kind = CollectiveKind::kAllReduce,
          .members = ranks(members),
          .root = RankId{members.front()},
          .value = Value::norm(),
          .order = order};
}

/// Ranks 0 and 1 are in one process, 2 and 3 each in one.
const std::vector<int> kProcesses = {0, 0, 1, 2};

Routes routes() {
  return {.num_ranks = 4,
          .transfers = {gradient(2, 1, 0), activation(0, 1, 0), activation(1, 2, 0), activation(1, 2, 1),
                        activation(2, 3, 0)},
          .collectives = {collective({0, 1, 2, 3}, 1), collective({0, 1}, 0), collective({0, 1, 2, 3}, 0),
                          collective({1, 2}, 2)}};
}

TEST(NcclPlan, OneLineForEachPairAndKindThenOneForEachOrderOfEntries) {
  const NcclPlan expected{
      .lines = {{.kind = Kind::kMessages, .members = ranks({1, 2}), .value = ValueKind::kActivation},
                {.kind = Kind::kMessages, .members = ranks({2, 1}), .value = ValueKind::kGradient},
                {.kind = Kind::kMessages, .members = ranks({2, 3}), .value = ValueKind::kActivation},
                {.kind = Kind::kCollectives, .members = ranks({0, 1, 2, 3}), .value = {}, .order = 0},
                {.kind = Kind::kCollectives, .members = ranks({0, 1, 2, 3}), .value = {}, .order = 1},
                {.kind = Kind::kCollectives, .members = ranks({1, 2}), .value = {}, .order = 2}},
      .of_transfer = {1, kAbsent, 0, 0, 2},
      .of_collective = {4, kAbsent, 3, 5},
      .most_blocks = 16,
      .note = {}};
  EXPECT_EQ(plan_nccl(routes(), kProcesses, {"a", "b", "c", "d"}), expected);
}

TEST(NcclPlan, RanksThatShareAGpuSpeakByWayOfTheHostAndItIsSaid) {
  const NcclPlan plan = plan_nccl(routes(), kProcesses, {"a", "b", "b", "d"});
  std::vector<Way> ways;
  for (const NcclLineSpec& line : plan.lines) ways.push_back(line.way);
  EXPECT_EQ(ways, (std::vector{Way::kHosts, Way::kHosts, Way::kDevices, Way::kHosts, Way::kHosts, Way::kHosts}));
  EXPECT_NE(plan.note.find("the messages (activation) from rank 1 to rank 2, the messages (gradient) from rank 2 to "
                           "rank 1, the collectives of ranks 0, 1, 2, 3"),
            std::string::npos)
      << plan.note;
}

TEST(NcclPlan, AGpuThatTwoRanksOfOneProcessShareMeetsOthersInMessagesOnly) {
  const NcclPlan plan = plan_nccl(routes(), kProcesses, {"a", "a", "c", "d"});
  std::vector<Way> ways;
  for (const NcclLineSpec& line : plan.lines) ways.push_back(line.way);
  EXPECT_EQ(ways, (std::vector{Way::kDevices, Way::kDevices, Way::kDevices, Way::kHosts, Way::kHosts, Way::kDevices}));
}

TEST(NcclPlan, AllMessagesOfTheBusiestGpuHaveRoomAtOnce) {
  // Rank 0 and six others that it sends to and hears from: twelve lines on one GPU, and 64 blocks for them.
  Routes star{.num_ranks = 7, .transfers = {}, .collectives = {}};
  std::vector<int> processes = {0};
  std::vector<std::string> gpus = {"0"};
  for (int other = 1; other < 7; ++other) {
    star.transfers.push_back(activation(0, other, 0));
    star.transfers.push_back(gradient(other, 0, 0));
    processes.push_back(other);
    gpus.push_back(std::to_string(other));
  }
  EXPECT_EQ(plan_nccl(star, processes, gpus).most_blocks, 5);
}

}  // namespace
}  // namespace plait
