// Programs over processes give the bits of the same programs over threads: a part of the list in every way, the other parts
// in same_bits_all_test.cpp.

#include "same_bits.h"

namespace plait::test {
namespace {

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

TEST(Collectives, OverProcessesEqualThoseOverThreads) {
  for (const int processes : {2, 3, 5}) expect_all_same(processes, {"collectives"}, 2 * processes);
}

TEST(Links, ArePassedInTurnAndPortsAreSharedByProcesses) {
  for (const int processes : {2, 4}) expect_all_same(processes, {"links"}, 6);
}

TEST(Messages, ArriveAsTheyWere) {
  expect_all_same(2, {"messages"}, 4);
  expect_all_same(2, {"over-mpi", "messages"}, 4);
}

}  // namespace
}  // namespace plait::test
