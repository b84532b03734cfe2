// Ranks of probe.cpp that stop, die or hang at a known instruction: all others name it.

#include "mpirun.h"
#include "same_bits.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <string>
#include <tuple>
#include <vector>

namespace plait::test {
namespace {

using testing::HasSubstr;

constexpr double kTimeout = 2;  // s, the ranks' patience

// All others are through with their rows: no rank waits for it, only the end of the step does.
TEST(HangAtTheEnd, IsReportedByAll) {
  ASSERT_TRUE(has_mpirun()) << "there is no mpirun; scripts/setup installs it";
  const JobResult result = run_job(4, {PLAIT_PROBE, "hang"});
  EXPECT_NE(result.exit_code, 0) << result.out;
  for (int process = 0; process < 4; ++process) {
    const std::size_t at = result.err.find("process " + std::to_string(process) + ": ");
    ASSERT_NE(at, std::string::npos) << process << '\n' << result.err;
    const std::string line = result.err.substr(at, result.err.find('\n', at) - at);
    EXPECT_THAT(line, HasSubstr("rank 2, position "));
    EXPECT_THAT(line, HasSubstr("(limit 1.000 s)"));
  }
}

/// (signal, rank, way between processes): the rank stops or dies in the midst of a send, with all others waiting for what
/// depends on it. The job's own patience is longer, so it is ranks that notice a stopped one.
class Harmed : public testing::TestWithParam<std::tuple<int, int, Way>> {};

TEST_P(Harmed, IsReportedByAllOthersWithItsVeryOp) {
  ASSERT_TRUE(has_mpirun()) << "there is no mpirun; scripts/setup installs it";
  const auto [signal, victim, way] = GetParam();
  std::vector<std::string> words = {PLAIT_PROBE, "harm", std::to_string(signal), std::to_string(victim)};
  if (way == Way::kMpi) words.insert(words.begin() + 1, "over-mpi");
  const JobResult result = run_job(4, words);
  EXPECT_NE(result.exit_code, 0) << result.out;
  const std::string begin = "harm at ";
  const std::size_t at = result.out.find(begin);
  ASSERT_NE(at, std::string::npos) << result.out << result.err;
  const std::string place = result.out.substr(at + begin.size(), result.out.find('\n', at) - at - begin.size());
  EXPECT_EQ(place.find("rank " + std::to_string(victim) + ", position "), 0U) << place;
  const std::size_t now = result.err.find("now\n");
  ASSERT_NE(now, std::string::npos) << result.err;
  const auto time_of = [&](std::size_t character) {
    for (const auto& [time, length] : result.err_times)
      if (length > character) return time;
    return std::chrono::steady_clock::time_point();
  };
  for (int process = 0; process < 4; ++process) {
    if (process == victim) continue;
    const std::size_t said = result.err.find("process " + std::to_string(process) + ": ");
    ASSERT_NE(said, std::string::npos) << process << '\n' << result.err;
    const std::string line = result.err.substr(said, result.err.find('\n', said) - said);
    EXPECT_THAT(line, HasSubstr("process " + std::to_string(victim) + " ("));
    EXPECT_THAT(line, HasSubstr(". Here: rank " + std::to_string(process) + ", position "));
    EXPECT_THAT(line, HasSubstr(" s for " + place)) << "one waits for it";
    // From other machines only beats are known, and there was none in this step.
    const std::string seen = way == Way::kMpi ? "rank " + std::to_string(victim) + ", not seen in this step" : place;
    EXPECT_THAT(line, HasSubstr("last seen: " + seen + "."));
    EXPECT_LE(std::chrono::duration<double>(time_of(said) - time_of(now)).count(), kTimeout + 1) << process;
  }
}

INSTANTIATE_TEST_SUITE_P(Process, Harmed,
                         testing::Combine(testing::Values(SIGKILL, SIGSTOP), testing::Values(0, 2),
                                          testing::Values(Way::kSharedMemory, Way::kMpi)));

}  // namespace
}  // namespace plait::test
