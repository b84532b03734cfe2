#pragma once

namespace plait::testing {

/// Mutates random valid programs until `count` mutations have changed the meaning, by the reference interpreter, and
/// counts those that the verifier finds. Fails below 99.9 %, and prints the seed of every one it misses.
void expect_mutation_score(int count);

}  // namespace plait::testing
