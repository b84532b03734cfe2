#include "plait/verify/verify.h"

#include "tests/verify/random_programs.h"
#include "tests/verify/reference_interpreter.h"
#include <gtest/gtest.h>

namespace plait {
namespace {

using testing::below;
using testing::Random;

/// A number that is mostly in [0, bound), sometimes outside.
int loose(Random& random, int bound) {
  constexpr int kOutside[] = {-1, -2147483647 - 1, 2147483647};
  const int chosen = below(random, 40);
  return chosen < 3 ? kOutside[chosen] : chosen == 3 ? bound : below(random, bound);
}

Value any_value(Random& random, const Layout& layout) {
  const MicrobatchId m{loose(random, layout.num_microbatches)};
  const SliceId q{loose(random, layout.num_slices)};
  const EdgeId e{loose(random, static_cast<int>(layout.edges.size()) + 1)};
  const StageId s{loose(random, layout.num_stages())};
  const GroupId g{loose(random, static_cast<int>(layout.groups.size()))};
  switch (below(random, 9)) {
    case 0: return Value::activation(e, m, q);
    case 1: return Value::gradient(e, m, q);
    case 2: return Value::stash(s, m, q);
    case 3: return Value::weight_stash(s, m, q);
    case 4: return Value::kv(s, m, q);
    case 5: return Value::kv_grad(s, m, q);
    case 6: return Value::weight(g);
    case 7: return Value::weight_grad(g);
    default: return Value::norm();
  }
}

Instr any_instr(Random& random, const Layout& layout) {
  const RankId peer{loose(random, layout.num_ranks)};
  const auto kind = static_cast<CollectiveKind>(below(random, 6));
  const GroupId group{loose(random, static_cast<int>(layout.groups.size()))};
  switch (below(random, 15)) {
    case 0: return Pair{};
    case 1: return Turn{};
    case 2: return Idle{};
    case 3: return Send{.value = any_value(random, layout), .peer = peer};
    case 4: return Recv{.value = any_value(random, layout), .peer = peer};
    case 5: return WaitSend{.value = any_value(random, layout), .peer = peer};
    case 6:
      return Collective{.kind = kind,
                        .ranks = RankSetId{loose(random, static_cast<int>(layout.rank_sets.size()) + 1)},
                        .root = peer,
                        .value = any_value(random, layout)};
    case 7: return WaitCollective{.kind = kind, .value = any_value(random, layout)};
    case 8: return Free{.value = any_value(random, layout)};
    case 9: return Add{.group = group};
    case 10: return Step{.group = group};
    case 11: return Validate{};
    default:
      return Op{.kind = static_cast<OpKind>(below(random, 5)),
                .stage = StageId{loose(random, layout.num_stages())},
                .microbatch = MicrobatchId{loose(random, layout.num_microbatches)},
                .slice = SliceId{loose(random, layout.num_slices)}};
  }
}

// Whatever is in the rows, the verifier ends with findings and without touching what is not there (run under sanitizers).
TEST(Garbage, IsRefusedUnderEveryTransferRule) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    Program program = testing::random_program(random);
    int changes = 1 + below(random, 40);
    while (changes-- > 0) {
      Row& row = program.rows[static_cast<std::size_t>(below(random, static_cast<int>(program.rows.size())))];
      const auto at = row.begin() + below(random, static_cast<int>(row.size()) + 1);
      if (at != row.end() && below(random, 2) == 0)
        *at = any_instr(random, program.layout);
      else
        row.insert(at, any_instr(random, program.layout));
    }
    for (const TransferRule rule : {TransferRule::kBuffered, TransferRule::kBounded, TransferRule::kRendezvous})
      for (const Finding& finding : verify(program, {.transfers = rule}))
        ASSERT_FALSE(finding.message.empty()) << "seed " << seed;
  }
}

// A mutation is one change; several at once must not hide each other.
TEST(Garbage, SeveralMutationsAtOnceAreFound) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed + 500000);
    const Program sound = testing::random_program(random);
    Program broken = sound;
    for (int k = 0; k < 4; ++k) broken = testing::mutate(random, broken).program;
    if (testing::interpret(broken) == testing::interpret(sound)) continue;
    ASSERT_FALSE(verify(broken).empty()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace plait
