#include "plait/verify/notation.h"

#include "tests/verify/random_programs.h"
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace plait::testing {
namespace {

/// Another coordinate of a value: its kind, subject or micro-batch.
Value changed(Random& random, const Layout& layout, Value v) {
  const MicrobatchId m{below(random, layout.num_microbatches)};
  const SliceId q{below(random, layout.num_slices)};
  const auto edge = [&] {
    return EdgeId{layout.edges.empty() ? 0 : below(random, static_cast<int>(layout.edges.size()))};
  };
  const auto group = [&] { return GroupId{below(random, static_cast<int>(layout.groups.size()))}; };
  switch (v.kind()) {
    case ValueKind::kActivation:
      if (below(random, 4) == 0) return Value::gradient(v.edge(), v.microbatch(), v.slice());
      return below(random, 2) == 0 ? Value::activation(v.edge(), m, q)
                                   : Value::activation(edge(), v.microbatch(), v.slice());
    case ValueKind::kGradient:
      if (below(random, 4) == 0) return Value::activation(v.edge(), v.microbatch(), v.slice());
      return below(random, 2) == 0 ? Value::gradient(v.edge(), m, q)
                                   : Value::gradient(edge(), v.microbatch(), v.slice());
    case ValueKind::kStash: return Value::stash(v.stage(), m, q);
    case ValueKind::kWeightStash: return Value::weight_stash(v.stage(), m, q);
    case ValueKind::kWeight: return Value::weight(group());
    case ValueKind::kWeightGrad: return Value::weight_grad(group());
    default: return v;
  }
}

CollectiveKind another_kind(Random& random, Value v) {
  if (v.kind() == ValueKind::kWeight)
    return below(random, 2) == 0 ? CollectiveKind::kAllGather : CollectiveKind::kBroadcast;
  constexpr CollectiveKind kReductions[] = {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                                            CollectiveKind::kReduce};
  return v.kind() == ValueKind::kNorm ? CollectiveKind::kAllReduce : kReductions[below(random, 3)];
}

/// Changes one operand of an instruction.
void change(Random& random, const Layout& layout, Instr& instr) {
  const RankId peer{below(random, layout.num_ranks)};
  std::visit(
      [&](auto& x) {
        using T = std::decay_t<decltype(x)>;
        if constexpr (std::is_same_v<T, Op>) {
          switch (below(random, 3)) {
            case 0: x.microbatch = MicrobatchId{below(random, layout.num_microbatches)}; break;
            case 1: x.stage = StageId{below(random, layout.num_stages())}; break;
            default:
              if (below(random, 2) == 0 && layout.num_slices > 1)
                x.slice = SliceId{below(random, layout.num_slices)};
              else if (layout.mode == Mode::kTrain)
                x.kind = static_cast<OpKind>(below(random, 5));
          }
        } else if constexpr (std::is_same_v<T, Send> || std::is_same_v<T, Recv> || std::is_same_v<T, WaitSend>) {
          if (below(random, 2) == 0)
            x.peer = peer;
          else
            x.value = changed(random, layout, x.value);
        } else if constexpr (std::is_same_v<T, Collective>) {
          switch (below(random, 3)) {
            case 0: x.ranks = RankSetId{below(random, static_cast<int>(layout.rank_sets.size()))}; break;
            case 1: x.kind = another_kind(random, x.value); break;
            default: x.value = changed(random, layout, x.value);
          }
        } else if constexpr (std::is_same_v<T, WaitCollective> || std::is_same_v<T, Free>) {
          x.value = changed(random, layout, x.value);
        } else if constexpr (std::is_same_v<T, Add> || std::is_same_v<T, Step>) {
          x.group = GroupId{below(random, static_cast<int>(layout.groups.size()))};
        }
      },
      instr);
}

}  // namespace

Mutation mutate(Random& random, const Program& program) {
  Mutation result{.program = program, .what = {}};
  std::vector<Row>& rows = result.program.rows;
  const Layout& layout = program.layout;
  if (std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.empty(); })) return result;
  std::size_t rank = 0;
  do rank = static_cast<std::size_t>(below(random, static_cast<int>(rows.size())));
  while (rows[rank].empty());
  Row& row = rows[rank];
  const auto random_index = [&](std::size_t size) {
    return static_cast<std::size_t>(below(random, static_cast<int>(size)));
  };
  const auto iterator = [](Row& in, std::size_t at) { return in.begin() + static_cast<std::ptrdiff_t>(at); };
  const std::size_t at = random_index(row.size());
  const Instr instr = row[at];
  const auto say = [&](const std::string& what) {
    result.what = fmt::format("rank {}, position {}, {}: {}", rank, at, describe(layout, instr), what);
  };
  switch (below(random, 8)) {
    case 0:
      row.erase(iterator(row, at));
      say("deleted");
      break;
    case 1: {
      const std::size_t to = random_index(row.size() + 1);
      row.insert(iterator(row, to), instr);
      say(fmt::format("copied to {}", to));
      break;
    }
    case 2:
      if (at + 1 < row.size()) std::swap(row[at], row[at + 1]);
      say("swapped with the next");
      break;
    case 3: {
      const std::size_t other = random_index(row.size());
      std::swap(row[at], row[other]);
      say(fmt::format("swapped with {}", other));
      break;
    }
    case 4: {
      row.erase(iterator(row, at));
      const std::size_t to = random_index(row.size() + 1);
      row.insert(iterator(row, to), instr);
      say(fmt::format("moved to {}", to));
      break;
    }
    case 5: {
      row.erase(iterator(row, at));
      Row& other = rows[random_index(rows.size())];
      const std::size_t to = random_index(other.size() + 1);
      other.insert(iterator(other, to), instr);
      say(fmt::format("moved to rank {}, position {}", &other - rows.data(), to));
      break;
    }
    default: change(random, layout, row[at]); say("changed to " + describe(layout, row[at]));
  }
  return result;
}

}  // namespace plait::testing
