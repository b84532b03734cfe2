#pragma once

namespace plait::testing {

/// Mutates random valid programs `count` times and counts the changes of meaning, by the reference interpreter, that the
/// verifier finds. Fails below 99.9 %, and prints the seed of every one it misses.
void expect_mutation_score(int count);

}  // namespace plait::testing
