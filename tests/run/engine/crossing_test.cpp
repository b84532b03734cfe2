// Bytes that a step really sends between groups of ranks are those of the cards, shard by shard.

#include "plait/run/engine/crossing.h"

#include "tests/run/engine/engine_support.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

namespace plait {
namespace {

using namespace plait::testing;

constexpr std::int64_t kElement = 8;  // fp64: weights and gradients alike
constexpr std::int64_t kHidden = 24;
constexpr std::int64_t kFfn = 48;
constexpr std::int64_t kVocab = 36;
constexpr int kLayers = 12;

/// All sizes divide by 2, 3, 4 and 6, so that every part of a ring collective has the same size.
ModelConfig config() {
  ModelConfig config = tiny_config(kLayers, HeadTying::kUntied);
  config.hidden_size = kHidden;
  config.ffn_size = kFfn;
  config.vocab_size = kVocab;
  config.num_heads = config.num_kv_heads = 3;
  config.head_dim = kHidden / 3;
  return config;
}

/// Bytes of shard j of P: L / P layers of a Llama, the token table with the first, final norm and head with the last.
std::int64_t shard_bytes(int shard, int p) {
  const std::int64_t layer = 4 * kHidden * kHidden + 3 * kHidden * kFfn + 2 * kHidden;
  std::int64_t elements = kLayers / p * layer;
  if (shard == 0) elements += kVocab * kHidden;
  if (shard == p - 1) elements += kVocab * kHidden + kHidden;
  return elements * kElement;
}

struct Case {
  int ranks;
  int groups;
  int rounds;
};
constexpr Case kCases[] = {{2, 2, 1}, {2, 2, 3}, {3, 3, 2}, {4, 2, 1}, {4, 2, 2},
                           {4, 4, 2}, {6, 2, 2}, {6, 3, 1}, {6, 3, 3}, {4, 1, 2}};

/// TawPipe's card, item 4 per shard: D - 1 messages each time a shard is fetched: for F and for B, but not at the turns
/// F W_{P-1} -> B W_{P-1} and B W_0 -> F W_0; D - 1 gradients a round.
std::int64_t tawpipe_bytes(const Case& c) {
  std::int64_t bytes = 0;
  for (int j = 0; j < c.ranks; ++j) {
    const int fetches = j == 0 ? c.rounds + 1 : j == c.ranks - 1 ? c.rounds : 2 * c.rounds;
    bytes += std::int64_t{c.groups - 1} * (fetches + c.rounds) * shard_bytes(j, c.ranks);
  }
  return bytes;
}

/// WeiPipe's card, M1: the swap; then every link between groups carries what the flows hold in front of it each turn.
std::int64_t weipipe_bytes(const Case& c) {
  const int p = c.ranks;
  const int per_group = p / c.groups;
  const auto modulo = [p](int value) { return (value % p + p) % p; };
  const auto crosses = [&](int from, int to) { return from / per_group != to / per_group; };
  std::int64_t bytes = 0;
  for (int r = 0; r < p; ++r) {
    const int shard = modulo(p - r);  // after the swap
    if (crosses(modulo(shard + 1), r)) bytes += shard_bytes(shard, p);
  }
  const int turns = (c.rounds + 2) * p - 1;
  for (int r = 0; r < p; ++r) {
    if (!crosses(r, modulo(r + 1))) continue;
    for (int t = 0; t + 1 < (c.rounds + 1) * p; ++t) bytes += shard_bytes(modulo(t - r), p);
    for (int t = p; t + 1 < turns; ++t) bytes += shard_bytes(modulo(r - 1 - t), p);
    // D_j is born on worker 0 in turn 2P - 1 - j, collects R P contributions and goes on for (j + 2) mod P hops.
    for (int j = 0; j < p; ++j) {
      const int hops = c.rounds * p - 1 + (j + 2) % p;
      for (int hop = 0; hop < hops; ++hop)
        if (hop % p == r) bytes += shard_bytes(j, p);
    }
  }
  return bytes;
}

/// A flat ring: D links between groups, each of which carries (P - 1) / P of every gather and scatter. Gathers are as
/// TawPipe's fetches, one scatter a round.
std::int64_t fsdp_bytes(const Case& c) {
  if (c.groups == 1) return 0;
  std::int64_t bytes = 0;
  for (int j = 0; j < c.ranks; ++j) {
    const int gathers = j == 0 ? c.rounds + 1 : j == c.ranks - 1 ? c.rounds : 2 * c.rounds;
    bytes += c.groups * (gathers + c.rounds) * shard_bytes(j, c.ranks) * (c.ranks - 1) / c.ranks;
  }
  return bytes;
}

std::int64_t measured(const char* name, const Case& c) {
  ScheduleShape shape{.ranks = c.ranks, .microbatches = c.ranks * c.rounds, .layers = kLayers};
  if (std::string_view(name) == "tawpipe") shape.groups = c.groups;
  const auto program = program_of(name, shape);
  EXPECT_TRUE(program) << (program ? "" : program.error().message);
  if (!program) return -1;
  const auto engine =
      make_engine(*program, config(), {.type = ComputeType::kFloat64, .optimizer = {.kind = OptimizerKind::kSgd}});
  if (engine == nullptr) return -1;
  auto step = engine->train_step(make_data(c.ranks * c.rounds, 1, 4, kVocab, Mask::kNone, 5), /*learning_rate=*/0.1);
  EXPECT_TRUE(step) << step.error().message;
  if (!step) return -1;
  // Weights and gradients alone: the norm is a few numbers over all ranks, the same for all of them.
  for (std::size_t rank = 0; rank < step->trace.size(); ++rank)
    std::erase_if(step->trace[rank], [&](const TraceEvent& event) {
      const Instr& instr = program->program().rows[rank][static_cast<std::size_t>(event.position)];
      const Collective* collective = std::get_if<Collective>(&instr);
      return collective != nullptr && collective->value.kind() == ValueKind::kNorm;
    });
  return bytes_between_groups(program->program(), *step, c.ranks / c.groups).value();
}

TEST(BytesBetweenGroups, AreTheCards) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(fmt::format("P {}, D {}, R {}", c.ranks, c.groups, c.rounds));
    EXPECT_EQ(measured("tawpipe", c), tawpipe_bytes(c));
    EXPECT_EQ(measured("weipipe", c), weipipe_bytes(c));
    EXPECT_EQ(measured("fsdp", c), fsdp_bytes(c));
  }
}

/// The card's three rates per shard and round, between D nodes: 3 (D - 1), 3 D, and about 3 D.
TEST(BytesBetweenGroups, OfOneMoreRoundAreThreeTimesTheShardsForEveryCrossing) {
  std::int64_t all = 0;
  for (int j = 0; j < 4; ++j) all += shard_bytes(j, 4);
  const auto of_one_round = [](const char* name) { return measured(name, {4, 2, 3}) - measured(name, {4, 2, 2}); };
  EXPECT_EQ(of_one_round("weipipe"), 3 * 2 * all);
  // Two turns a round need no weight: one time each the last and the first shard.
  EXPECT_EQ(of_one_round("tawpipe"), 3 * all - shard_bytes(3, 4) - shard_bytes(0, 4));
  EXPECT_EQ(of_one_round("fsdp"), 2 * (3 * all - shard_bytes(3, 4) - shard_bytes(0, 4)) * 3 / 4);
}

}  // namespace
}  // namespace plait
