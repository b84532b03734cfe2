// Programs over processes give the bits of the same programs over threads. The comparing is done by probe.cpp.

#include "mpirun.h"
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

namespace plait::test {
namespace {

void expect_all_same(int processes, const std::vector<std::string>& words, int at_least) {
  ASSERT_TRUE(has_mpirun()) << "there is no mpirun; scripts/setup installs it";
  std::vector<std::string> command = {PLAIT_PROBE};
  command.insert(command.end(), words.begin(), words.end());
  const JobResult result = run_job(processes, command);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_EQ(result.out.find("differs"), std::string::npos) << result.out;
  const std::size_t at = result.out.rfind("cases ");
  ASSERT_NE(at, std::string::npos) << result.out << result.err;
  EXPECT_GE(std::stoi(result.out.substr(at + 6)), at_least) << result.out;
}

enum class Way {
  kSharedMemory,
  kMpi,
  kNccl,        ///< the tensors by lines of NCCL (fake_nccl.h)
  kNcclOneGpu,  ///< the same where all ranks share a GPU: by way of the host
};

/// (processes, ranks, part of the list, way between processes); two ranks of the list in one process where there are more
/// ranks than processes.
class SameBits : public testing::TestWithParam<std::tuple<int, int, int, Way>> {};

constexpr int kParts = 7;  // odd, so that each part has all combinations of sizes and heads

TEST_P(SameBits, AsThreads) {
  const auto [processes, ranks, part, way] = GetParam();
  std::vector<std::string> words = {"grid", std::to_string(ranks), std::to_string(part), std::to_string(kParts)};
  if (way == Way::kMpi) words.insert(words.begin(), "over-mpi");
  if (way == Way::kNcclOneGpu) words.insert(words.begin(), "one-gpu");
  if (way == Way::kNccl || way == Way::kNcclOneGpu) words.insert(words.begin(), "over-nccl");
  expect_all_same(processes, words, 25);
}

INSTANTIATE_TEST_SUITE_P(TwoProcesses, SameBits,
                         testing::Combine(testing::Values(2), testing::Values(2), testing::Values(0, 3),
                                          testing::Values(Way::kSharedMemory)));
INSTANTIATE_TEST_SUITE_P(FourProcesses, SameBits,
                         testing::Combine(testing::Values(4), testing::Values(4), testing::Values(0, 3),
                                          testing::Values(Way::kSharedMemory)));
INSTANTIATE_TEST_SUITE_P(TwoProcessesOfTwoRanks, SameBits,
                         testing::Combine(testing::Values(2), testing::Values(4), testing::Values(0, 3),
                                          testing::Values(Way::kSharedMemory)));
INSTANTIATE_TEST_SUITE_P(ThreeProcessesForFourRanks, SameBits,
                         testing::Combine(testing::Values(3), testing::Values(4), testing::Values(5),
                                          testing::Values(Way::kSharedMemory)));
INSTANTIATE_TEST_SUITE_P(TwoProcessesOverMpi, SameBits,
                         testing::Combine(testing::Values(2), testing::Values(2), testing::Values(1),
                                          testing::Values(Way::kMpi)));
INSTANTIATE_TEST_SUITE_P(ThreeProcessesOverMpi, SameBits,
                         testing::Combine(testing::Values(3), testing::Values(4), testing::Values(2),
                                          testing::Values(Way::kMpi)));
INSTANTIATE_TEST_SUITE_P(TwoProcessesOverNccl, SameBits,
                         testing::Combine(testing::Values(2), testing::Values(2), testing::Values(0, 4),
                                          testing::Values(Way::kNccl)));
INSTANTIATE_TEST_SUITE_P(FourProcessesOverNccl, SameBits,
                         testing::Combine(testing::Values(4), testing::Values(4), testing::Values(2, 6),
                                          testing::Values(Way::kNccl)));
INSTANTIATE_TEST_SUITE_P(TwoProcessesOfTwoRanksOverNccl, SameBits,
                         testing::Combine(testing::Values(2), testing::Values(4), testing::Values(1),
                                          testing::Values(Way::kNccl)));
INSTANTIATE_TEST_SUITE_P(TwoProcessesOnOneGpu, SameBits,
                         testing::Combine(testing::Values(2), testing::Values(2), testing::Values(5),
                                          testing::Values(Way::kNcclOneGpu)));

TEST(Collectives, OverProcessesEqualThoseOverThreads) {
  for (const int processes : {2, 3, 5}) expect_all_same(processes, {"collectives"}, 2 * processes);
  for (const int processes : {2, 5}) expect_all_same(processes, {"over-nccl", "collectives"}, 3 * processes);
}

TEST(Links, ArePassedInTurnAndPortsAreSharedByProcesses) {
  for (const int processes : {2, 4}) expect_all_same(processes, {"links"}, 6);
}

TEST(Messages, ArriveAsTheyWere) {
  expect_all_same(2, {"messages"}, 4);
  expect_all_same(2, {"over-mpi", "messages"}, 4);
  expect_all_same(2, {"over-nccl", "messages"}, 6);
}

}  // namespace
}  // namespace plait::test
