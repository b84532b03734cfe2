// What goes wrong between GPUs is reported by every process, with rank, what it did and with whom. NCCL and GPUs are made up
// (fake_nccl.h); a program of four ranks runs on four processes, with faults in the third step of one of them.

#include "mpirun.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace plait::test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr int kProcesses = 4;

struct NcclFault {
  std::string kind;
  int process = 0;  ///< that it happens on
  ::testing::Matcher<std::string> report;
  bool it_reports = true;
};

std::string line_of(const JobResult& result, int process) {
  const std::size_t at = result.err.find("process " + std::to_string(process) + ": ");
  return at == std::string::npos ? "" : result.err.substr(at, result.err.find('\n', at) - at);
}

class NcclFailure : public ::testing::TestWithParam<NcclFault> {};

TEST_P(NcclFailure, IsReportedByAll) {
  ASSERT_TRUE(has_mpirun()) << "there is no mpirun; scripts/setup installs it";
  const NcclFault& fault = GetParam();
  const JobResult result = run_job(kProcesses, {PLAIT_PROBE, "fault", fault.kind, std::to_string(fault.process)});
  EXPECT_NE(result.exit_code, 0) << result.out;
  EXPECT_LT(result.seconds.count(), 20) << result.err;
  for (int process = 0; process < kProcesses; ++process) {
    if (process == fault.process && !fault.it_reports) continue;
    EXPECT_THAT(line_of(result, process), fault.report) << process << '\n' << result.err;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, NcclFailure,
    ::testing::Values(
        NcclFault{.kind = "fails",
                  .process = 1,
                  .report = AllOf(ContainsRegex("rank 1, (position [0-9]+, |the messages |the collectives )"),
                                  HasSubstr("made up: unhandled system error"))},
        NcclFault{.kind = "refuses",
                  .process = 0,
                  .report = AllOf(ContainsRegex("rank 0, position [0-9]+, .*NCCL, .* (to|from) rank 1,"),
                                  HasSubstr("made up: refused"))},
        NcclFault{.kind = "hangs",
                  .process = 2,
                  .report = AllOf(ContainsRegex("rank [0-3], .*: has been under way for [0-9.]+ s \\(limit 2.000 s\\)"),
                                  ContainsRegex("GPUs of ranks .*2"), HasSubstr("[nccl.timeout]"))},
        NcclFault{
            .kind = "never-opens",
            .process = 3,
            .report = AllOf(ContainsRegex("the (messages|collectives) .*3.*: their ends have not met within 2.000 s"),
                            HasSubstr("[nccl.open]"))},
        NcclFault{.kind = "dies",
                  .process = 2,
                  .report = AllOf(HasSubstr("process 2 ("), HasSubstr("[engine.peer_gone]")),
                  .it_reports = false}),
    [](const auto& instance) {
      std::string name = instance.param.kind;
      std::erase(name, '-');
      return name;
    });

}  // namespace
}  // namespace plait::test
