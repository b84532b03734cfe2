#include "tests/verify/random_programs.h"

#include "plait/ir/text.h"
#include "plait/verify/verify.h"

#include "tests/verify/reference_interpreter.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace plait {
namespace {

std::vector<std::string> messages(const std::vector<Finding>& findings) {
  std::vector<std::string> all;
  for (const Finding& f : findings) all.push_back(f.rule + ": " + f.message);
  return all;
}

TEST(RandomPrograms, ValidOnesHaveNoFindingUnderAnyTransferRule) {
  for (std::uint64_t seed = 0; seed < 10000; ++seed) {
    testing::Random random(seed);
    const Program program = testing::random_program(random);
    for (const TransferRule rule : {TransferRule::kBuffered, TransferRule::kBounded, TransferRule::kRendezvous}) {
      const auto findings = verify(program, {.transfers = rule});
      ASSERT_THAT(messages(findings), ::testing::IsEmpty()) << "seed " << seed << "\n" << print_text(program);
    }
    if (seed % 10 != 0) continue;
    const testing::Meaning meaning = testing::interpret(program);
    ASSERT_EQ(meaning.end, testing::Meaning::End::kFinished) << "seed " << seed << ": " << meaning.crash << "\n"
                                                             << print_text(program);
    ASSERT_THAT(meaning.leaks, ::testing::IsEmpty()) << "seed " << seed << "\n" << print_text(program);
  }
}

}  // namespace
}  // namespace plait
