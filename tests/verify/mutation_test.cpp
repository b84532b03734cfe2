#include "tests/verify/mutation_score.h"
#include <gtest/gtest.h>

namespace plait {
namespace {

TEST(Mutations, TwoThousandChangesOfMeaningAreFound) {
  testing::expect_mutation_score(2000);
}

}  // namespace
}  // namespace plait
