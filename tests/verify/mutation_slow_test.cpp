#include "tests/verify/mutation_score.h"
#include <gtest/gtest.h>

namespace plait {
namespace {

TEST(Mutations, AHundredThousandChangesOfMeaningAreFound) {
  testing::expect_mutation_score(100000);
}

}  // namespace
}  // namespace plait
