#include "same_bits.h"

#include "mpirun.h"

namespace plait::test {

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

TEST_P(SameBits, AsThreads) {
  const auto [processes, ranks, part, way] = GetParam();
  std::vector<std::string> words = {"grid", std::to_string(ranks), std::to_string(part), std::to_string(kParts)};
  if (way == Way::kMpi) words.insert(words.begin(), "over-mpi");
  expect_all_same(processes, words, 25);
}

}  // namespace plait::test
