// Over processes, what is not finite is passed over as over threads. The comparing is done by probe.cpp.

#include "job_test.h"
#include <gmock/gmock.h>

namespace plait::test {
namespace {

TEST(NotFinite, IsPassedOverByAllProcessesTogether) {
  ASSERT_TRUE(has_mpirun()) << "there is no mpirun; scripts/setup installs it";
  const TestFolder folder;
  const JobResult result = run_job(4, {PLAIT_PROBE, "not-finite", folder.path().string()});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, testing::HasSubstr("cases 8")) << result.err;
}

}  // namespace
}  // namespace plait::test
