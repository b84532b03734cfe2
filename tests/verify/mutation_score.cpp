#include "tests/verify/mutation_score.h"

#include "plait/ir/text.h"
#include "plait/verify/verify.h"

#include "tests/verify/random_programs.h"
#include "tests/verify/reference_interpreter.h"
#include <gtest/gtest.h>

#include <iostream>

namespace plait::testing {

void expect_mutation_score(int count) {
  int changed = 0;
  int missed = 0;
  int flagged_though_same = 0;
  int seed = 0;
  for (; changed < count; ++seed) {
    Random random(static_cast<std::uint64_t>(seed) + 1000000);
    const Program program = random_program(random);
    const Mutation mutation = mutate(random, program);
    const bool found = !verify(mutation.program).empty();
    const Meaning meaning = interpret(mutation.program);
    if (meaning == interpret(program)) {
      flagged_though_same += found ? 1 : 0;
      continue;
    }
    ++changed;
    if (found) continue;
    ++missed;
    std::cout << "missed: seed " << seed << ": " << mutation.what << " (" << meaning.crash << ")\n";
    if (missed == 1) std::cout << print_text(mutation.program);
  }
  std::cout << changed << " of " << seed << " mutations change the meaning, " << missed << " are missed; "
            << flagged_though_same << " more break a rule without changing it\n";
  EXPECT_LE(missed * 1000, changed) << "mutation score below 99.9 %";
}

}  // namespace plait::testing
