#pragma once

#include "plait/ir/program.h"

#include <random>
#include <string>

namespace plait::testing {

using Random = std::mt19937_64;

/// A number in [0, bound).
int below(Random& random, int bound);

/// A valid program: the ops of a schedule of random family and shape in a random order that keeps every dependency, some
/// BW split into B and W, lowered; some with sharded parameters that are gathered and freed, some with recomputation. Now and then one
/// of tests/error/sound, for what schedules do not write yet: travelling weights, adds, passing gradients.
Program random_program(Random& random);

/// The same program with sharded parameter groups: gathered before the first op, freed behind the last, gradients
/// reduce-scattered.
Program with_shards(Program program);

/// Changes one thing of a program, which may or may not change what it means; `what` says what was done.
struct Mutation {
  Program program;
  std::string what;
};
Mutation mutate(Random& random, const Program& program);

}  // namespace plait::testing
