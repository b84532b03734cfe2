// The parts of the list that same_bits_test.cpp leaves out.

#include "same_bits.h"

namespace plait::test {
namespace {

constexpr Way kWay = Way::kSharedMemory;

INSTANTIATE_TEST_SUITE_P(TwoProcesses, SameBits,
                         testing::Combine(testing::Values(2), testing::Values(2), testing::Values(1, 2, 4, 5, 6),
                                          testing::Values(kWay)));
INSTANTIATE_TEST_SUITE_P(FourProcesses, SameBits,
                         testing::Combine(testing::Values(4), testing::Values(4), testing::Values(1, 2, 4, 5, 6),
                                          testing::Values(kWay)));
INSTANTIATE_TEST_SUITE_P(TwoProcessesOfTwoRanks, SameBits,
                         testing::Combine(testing::Values(2), testing::Values(4), testing::Values(1, 2, 4, 5, 6),
                                          testing::Values(kWay)));
INSTANTIATE_TEST_SUITE_P(ThreeProcessesForFourRanks, SameBits,
                         testing::Combine(testing::Values(3), testing::Values(4), testing::Values(0, 1, 2, 3, 4, 6),
                                          testing::Values(kWay)));

}  // namespace
}  // namespace plait::test
