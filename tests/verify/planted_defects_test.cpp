#include "plait/ir/lower.h"
#include "plait/ir/text.h"
#include "plait/schedules/schedule_info.h"
#include "plait/verify/notation.h"
#include "plait/verify/verify.h"

#include "tests/verify/random_programs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace plait {
namespace {

/// One place of a program, which a defect may change.
struct Spot {
  Program& program;
  std::size_t rank;
  std::size_t at;
  [[nodiscard]] Row& row() const { return program.rows[rank]; }
  [[nodiscard]] Instr& instr() const { return row()[at]; }
  template <class T>
  [[nodiscard]] T* as() const {
    return std::get_if<T>(&instr());
  }
  template <class T>
  [[nodiscard]] T& get() const {
    return std::get<T>(instr());
  }
  [[nodiscard]] const Layout& layout() const { return program.layout; }
};

/// Plants the defect at a spot where it makes sense there; says whether it did.
using Plant = std::function<bool(const Spot&)>;
struct Defect {
  const char* name;
  Plant plant;
};

auto iterator(Row& row, std::size_t at) {
  return row.begin() + static_cast<std::ptrdiff_t>(at);
}

bool drop(const Spot& s) {
  s.row().erase(iterator(s.row(), s.at));
  return true;
}
bool repeat(const Spot& s) {
  s.row().insert(iterator(s.row(), s.at), Instr{s.instr()});
  return true;
}
/// Moves the instruction so that it stands at `to`, counted before it is taken out.
bool move(const Spot& s, std::size_t to) {
  const Instr instr = s.instr();
  s.row().erase(iterator(s.row(), s.at));
  s.row().insert(iterator(s.row(), to > s.at ? to - 1 : to), instr);
  return true;
}

/// First later (or, backwards, last earlier) place in the row that `fits`.
std::optional<std::size_t> later(const Spot& s, const std::function<bool(const Instr&)>& fits) {
  for (std::size_t k = s.at + 1; k < s.row().size(); ++k)
    if (fits(s.row()[k])) return k;
  return {};
}
std::optional<std::size_t> earlier(const Spot& s, const std::function<bool(const Instr&)>& fits) {
  for (std::size_t k = s.at; k-- > 0;)
    if (fits(s.row()[k])) return k;
  return {};
}

bool same_data(const Op& a, const Op& b) {
  return a.stage == b.stage && a.microbatch == b.microbatch && a.slice == b.slice;
}
bool is_back(OpKind kind) {
  return kind == OpKind::kBackward || kind == OpKind::kBackwardInput;
}
bool is_weight(OpKind kind) {
  return kind == OpKind::kBackward || kind == OpKind::kBackwardWeight;
}

template <class Test>
Plant on_op(OpKind kind, Test test) {
  return [=](const Spot& s) { return s.as<Op>() != nullptr && s.get<Op>().kind == kind && test(s); };
}
template <class T, class Test>
Plant on(Test test) {
  return [=](const Spot& s) { return s.as<T>() != nullptr && test(s); };
}
template <class Test>
Plant on_collective(ValueKind kind, Test test) {
  return [=](const Spot& s) {
    return s.as<Collective>() != nullptr && s.get<Collective>().value.kind() == kind && test(s);
  };
}
template <class Test>
Plant on_wait(ValueKind kind, Test test) {
  return [=](const Spot& s) {
    return s.as<WaitCollective>() != nullptr && s.get<WaitCollective>().value.kind() == kind && test(s);
  };
}

Value with_microbatch(Value v, MicrobatchId m) {
  switch (v.kind()) {
    case ValueKind::kActivation: return Value::activation(v.edge(), m, v.slice());
    case ValueKind::kGradient: return Value::gradient(v.edge(), m, v.slice());
    case ValueKind::kStash: return Value::stash(v.stage(), m, v.slice());
    default: return v;
  }
}
MicrobatchId next(const Layout& layout, MicrobatchId m) {
  return MicrobatchId{(m.value() + 1) % layout.num_microbatches};
}

template <class T>
bool another_peer(const Spot& s) {
  T& x = s.get<T>();
  for (int peer = 0; peer < s.layout().num_ranks; ++peer) {
    if (RankId{peer} == x.peer || static_cast<std::size_t>(peer) == s.rank) continue;
    x.peer = RankId{peer};
    return true;
  }
  return false;
}
template <class T>
bool another_microbatch(const Spot& s) {
  T& x = s.get<T>();
  const Value old = x.value;
  x.value = with_microbatch(x.value, next(s.layout(), x.value.microbatch()));
  return x.value != old;
}
template <class T>
bool other_direction(const Spot& s) {
  T& x = s.get<T>();
  if (!x.value.is_edge()) return false;
  const bool act = x.value.kind() == ValueKind::kActivation;
  x.value = act ? Value::gradient(x.value.edge(), x.value.microbatch(), x.value.slice())
                : Value::activation(x.value.edge(), x.value.microbatch(), x.value.slice());
  return true;
}

bool to_another_rank(const Spot& s) {
  if (s.program.rows.size() < 2) return false;
  const Instr instr = s.instr();
  drop(s);
  Row& other = s.program.rows[(s.rank + 1) % s.program.rows.size()];
  other.insert(other.begin(), instr);
  return true;
}

bool same_op_renamed(const Spot& s) {
  Op& op = s.get<Op>();
  if (s.layout().num_microbatches == 1) return false;
  op.microbatch = next(s.layout(), op.microbatch);
  return true;
}

/// Behind the op that reads the value of the receive at the spot.
bool behind_reader(const Spot& s) {
  const Value value = s.get<Recv>().value;
  if (!value.is_edge()) return false;
  const Edge& edge = s.layout().edges[value.edge().index()];
  const bool act = value.kind() == ValueKind::kActivation;
  const auto reader = later(s, [&](const Instr& i) {
    const Op* op = std::get_if<Op>(&i);
    return op != nullptr && op->stage == (act ? edge.consumer : edge.producer) &&
           op->microbatch == value.microbatch() && op->slice == value.slice() &&
           (act ? op->kind == OpKind::kForward : is_back(op->kind));
  });
  return reader && move(s, *reader + 1);
}

/// The same change on every rank: all instructions that equal the one at the spot.
template <class Change>
bool everywhere(const Spot& s, Change change) {
  const Instr what = s.instr();
  for (std::size_t rank = 0; rank < s.program.rows.size(); ++rank)
    for (std::size_t at = s.program.rows[rank].size(); at-- > 0;)
      if (s.program.rows[rank][at] == what) change(Spot{s.program, rank, at});
  return true;
}

bool pair_dropped(const Spot& s) {
  const Send send = s.get<Send>();
  Row& other = s.program.rows[send.peer.index()];
  const auto recv = std::find(other.begin(), other.end(),
                              Instr{Recv{.value = send.value, .peer = RankId{static_cast<std::int32_t>(s.rank)}}});
  if (recv == other.end()) return false;
  other.erase(recv);
  const Instr wait = WaitSend{.value = send.value, .peer = send.peer};
  drop(s);
  if (const auto found = std::find(s.row().begin(), s.row().end(), wait); found != s.row().end()) s.row().erase(found);
  return true;
}

bool is_step(const Instr& i) {
  return std::holds_alternative<Step>(i);
}
bool is_op(const Instr& i) {
  return std::holds_alternative<Op>(i);
}
Plant before_last_op() {
  return [](const Spot& s) {
    const auto op = earlier(s, is_op);
    return op && move(s, *op);
  };
}

const std::vector<Defect>& defects() {
  static const std::vector<Defect> kDefects = {
      {"a forward is missing", on_op(OpKind::kForward, drop)},
      {"a forward runs twice", on_op(OpKind::kForward, repeat)},
      {"a forward of the wrong micro-batch", on_op(OpKind::kForward, same_op_renamed)},
      {"a forward on the wrong rank", on_op(OpKind::kForward, to_another_rank)},
      {"a backward is missing", on_op(OpKind::kBackward, drop)},
      {"a backward runs twice", on_op(OpKind::kBackward, repeat)},
      {"a backward of the wrong micro-batch", on_op(OpKind::kBackward, same_op_renamed)},
      {"a backward on the wrong rank", on_op(OpKind::kBackward, to_another_rank)},
      {"a backward without its weight gradient", on_op(OpKind::kBackward, [](const Spot& s) { s.get<Op>().kind = OpKind::kBackwardInput; return true; })},
      {"an input gradient is missing", on_op(OpKind::kBackwardInput, drop)},
      {"an input gradient runs twice", on_op(OpKind::kBackwardInput, repeat)},
      {"an input gradient that is a whole backward", on_op(OpKind::kBackwardInput, [](const Spot& s) { s.get<Op>().kind = OpKind::kBackward; return true; })},
      {"a weight gradient is missing", on_op(OpKind::kBackwardWeight, drop)},
      {"a weight gradient runs twice", on_op(OpKind::kBackwardWeight, repeat)},
      {"a weight gradient of the wrong micro-batch", on_op(OpKind::kBackwardWeight, same_op_renamed)},
      {"a backward before its forward", [](const Spot& s) {
         const Op* op = s.as<Op>();
         if (op == nullptr || !is_back(op->kind)) return false;
         const auto f = earlier(s, [&](const Instr& i) { const Op* o = std::get_if<Op>(&i); return o != nullptr && o->kind == OpKind::kForward && same_data(*o, *op); });
         return f && move(s, *f);
       }},
      {"a weight gradient before its input gradient", on_op(OpKind::kBackwardWeight, [](const Spot& s) {
         const Op op = s.get<Op>();
         const auto b = earlier(s, [&](const Instr& i) { const Op* o = std::get_if<Op>(&i); return o != nullptr && o->kind == OpKind::kBackwardInput && same_data(*o, op); });
         return b && move(s, *b);
       })},
      {"an op of a stage that is not there", on<Op>([](const Spot& s) { s.get<Op>().stage = StageId{s.layout().num_stages()}; return true; })},
      {"an op of a micro-batch that is not there", on<Op>([](const Spot& s) { s.get<Op>().microbatch = MicrobatchId{-1}; return true; })},
      {"an op of a slice that is not there", on<Op>([](const Spot& s) { s.get<Op>().slice = SliceId{s.layout().num_slices}; return true; })},
      {"slices out of order", on<Op>([](const Spot& s) {
         const Op op = s.get<Op>();
         const auto other = later(s, [&](const Instr& i) {
           const Op* o = std::get_if<Op>(&i);
           return o != nullptr && o->kind == op.kind && o->stage == op.stage && o->microbatch == op.microbatch && o->slice != op.slice;
         });
         if (!other || op.kind == OpKind::kBackwardWeight) return false;
         std::swap(s.row()[s.at], s.row()[*other]);
         return true;
       })},
      {"a send is missing", on<Send>(drop)},
      {"a send runs twice", on<Send>(repeat)},
      {"a send to the wrong rank", on<Send>(another_peer<Send>)},
      {"a send to itself", on<Send>([](const Spot& s) { s.get<Send>().peer = RankId{static_cast<std::int32_t>(s.rank)}; return true; })},
      {"a send of the wrong micro-batch", on<Send>(another_microbatch<Send>)},
      {"a gradient sent for an activation, or the reverse", on<Send>(other_direction<Send>)},
      {"a send before the op that makes its value", on<Send>([](const Spot& s) {
         const auto op = earlier(s, is_op);
         return op && *op + 1 == s.at && move(s, *op);
       })},
      {"a send over an edge that is not there", on<Send>([](const Spot& s) {
         Value& v = s.get<Send>().value;
         if (!v.is_edge()) return false;
         v = Value::activation(EdgeId{static_cast<std::int32_t>(s.layout().edges.size())}, v.microbatch(), v.slice());
         return true;
       })},
      {"a transfer is missing on both ends", on<Send>(pair_dropped)},
      {"a receive is missing", on<Recv>(drop)},
      {"a receive runs twice", on<Recv>(repeat)},
      {"a receive from the wrong rank", on<Recv>(another_peer<Recv>)},
      {"a receive of the wrong micro-batch", on<Recv>(another_microbatch<Recv>)},
      {"a receive of a gradient for an activation, or the reverse", on<Recv>(other_direction<Recv>)},
      {"a receive behind its reader", on<Recv>(behind_reader)},
      {"two receives exchanged", on<Recv>([](const Spot& s) {
         const Recv first = s.get<Recv>();
         const auto other = later(s, [&](const Instr& i) { const Recv* r = std::get_if<Recv>(&i); return r != nullptr && r->peer == first.peer && r->value.kind() == first.value.kind(); });
         if (!other) return false;
         std::swap(s.row()[s.at], s.row()[*other]);
         return true;
       })},
      {"a wait for a send is missing", on<WaitSend>(drop)},
      {"a wait for a send runs twice", on<WaitSend>(repeat)},
      {"a wait before its send", on<WaitSend>([](const Spot& s) {
         const WaitSend wait = s.get<WaitSend>();
         const auto send = earlier(s, [&](const Instr& i) { return i == Instr{Send{.value = wait.value, .peer = wait.peer}}; });
         return send && move(s, *send);
       })},
      {"a wait for the wrong send", on<WaitSend>(another_microbatch<WaitSend>)},
      {"a rank leaves out a reduction", on_collective(ValueKind::kWeightGrad, drop)},
      {"a rank enters a reduction twice", on_collective(ValueKind::kWeightGrad, repeat)},
      {"nobody reduces a gradient", on_collective(ValueKind::kWeightGrad, [](const Spot& s) {
         const Collective what = s.get<Collective>();
         for (Row& row : s.program.rows)
           std::erase_if(row, [&](const Instr& i) {
             return i == Instr{what} || i == Instr{WaitCollective{.kind = what.kind, .value = what.value}};
           });
         return s.layout().groups[what.value.group().index()].homes.size() > 1 || what.kind == CollectiveKind::kReduceScatter;
       })},
      {"a gradient is reduced before its last backward", on_collective(ValueKind::kWeightGrad, [](const Spot& s) {
         const GroupId group = s.get<Collective>().value.group();
         const auto op = earlier(s, [&](const Instr& i) {
           const Op* o = std::get_if<Op>(&i);
           if (o == nullptr || !is_weight(o->kind)) return false;
           const auto& groups = s.layout().stages[o->stage.index()].groups;
           return std::find(groups.begin(), groups.end(), group) != groups.end();
         });
         return op && move(s, *op);
       })},
      {"a reduction of the wrong group", on_collective(ValueKind::kWeightGrad, [](const Spot& s) {
         Value& v = s.get<Collective>().value;
         if (s.layout().groups.size() < 2) return false;
         v = Value::weight_grad(GroupId{static_cast<std::int32_t>((v.group().index() + 1) % s.layout().groups.size())});
         return true;
       })},
      {"a reduction of another kind", on_collective(ValueKind::kWeightGrad, [](const Spot& s) { s.get<Collective>().kind = CollectiveKind::kReduce; return true; })},
      {"the wait for a reduction is missing", on_wait(ValueKind::kWeightGrad, drop)},
      {"the wait for a reduction runs twice", on_wait(ValueKind::kWeightGrad, repeat)},
      {"a rank leaves out the norm", on_collective(ValueKind::kNorm, [](const Spot& s) { return s.program.rows.size() > 1 && drop(s); })},
      {"the norm is taken before the last backward", on_collective(ValueKind::kNorm, before_last_op())},
      {"the wait for the norm is missing", on_wait(ValueKind::kNorm, drop)},
      {"weights are never gathered", on_collective(ValueKind::kWeight, drop)},
      {"weights are gathered twice", on_collective(ValueKind::kWeight, [](const Spot& s) { return everywhere(s, repeat); })},
      {"weights are gathered behind their first op", on_collective(ValueKind::kWeight, [](const Spot& s) { return move(s, s.row().size()); })},
      {"gathered weights are never freed", on<Free>(drop)},
      {"gathered weights are freed twice", on<Free>(repeat)},
      {"gathered weights are freed at the front", on<Free>([](const Spot& s) { return move(s, 0); })},
      {"gathered weights are freed before their last op", on<Free>([](const Spot& s) {
         const GroupId group = s.get<Free>().value.group();
         const auto op = earlier(s, [&](const Instr& i) {
           const Op* o = std::get_if<Op>(&i);
           if (o == nullptr || o->kind == OpKind::kBackwardWeight) return false;
           const auto& groups = s.layout().stages[o->stage.index()].groups;
           return std::find(groups.begin(), groups.end(), group) != groups.end();
         });
         return op && move(s, *op);
       })},
      {"a step is missing", on<Step>(drop)},
      {"a step runs twice", on<Step>(repeat)},
      {"a step of the wrong group", on<Step>([](const Spot& s) {
         if (s.layout().groups.size() < 2) return false;
         GroupId& g = s.get<Step>().group;
         g = GroupId{static_cast<std::int32_t>((g.index() + 1) % s.layout().groups.size())};
         return true;
       })},
      {"a step before the norm is known", on<Step>([](const Spot& s) {
         const auto norm = earlier(s, [](const Instr& i) { const auto* w = std::get_if<WaitCollective>(&i); return w != nullptr && w->value.kind() == ValueKind::kNorm; });
         return norm && move(s, *norm);
       })},
      {"a step on another rank", on<Step>([](const Spot& s) {
         if (s.program.rows.size() < 2) return false;
         const Instr step = s.instr();
         drop(s);
         s.program.rows[(s.rank + 1) % s.program.rows.size()].push_back(step);
         return true;
       })},
      {"a step before the last backward", on<Step>([](const Spot& s) {
         const GroupId group = s.get<Step>().group;
         const auto op = earlier(s, [&](const Instr& i) {
           const Op* o = std::get_if<Op>(&i);
           if (o == nullptr || !is_weight(o->kind)) return false;
           const auto& groups = s.layout().stages[o->stage.index()].groups;
           return std::find(groups.begin(), groups.end(), group) != groups.end();
         });
         return op && move(s, *op);
       })},
      {"a turn on one rank only", [](const Spot& s) {
         if (s.program.rows.size() < 2) return false;
         s.row().insert(iterator(s.row(), s.at), Turn{});
         return true;
       }},
      {"a pair before one op", [](const Spot& s) {
         if (is_step(s.instr()) || s.as<Op>() != nullptr) return false;
         s.row().insert(iterator(s.row(), s.at), Pair{});
         return true;
       }},
      {"a rank that does nothing", [](const Spot& s) { return s.at == 0 && (s.row().clear(), true); }},
  };
  return kDefects;
}

std::vector<Program> programs() {
  std::vector<Program> all;
  const auto add = [&](const char* name, const ScheduleShape& shape) {
    auto schedule = build_schedule(name, shape);
    ASSERT_TRUE(schedule) << schedule.error().message;
    auto program = lower(*schedule);
    ASSERT_TRUE(program) << program.error().message;
    all.push_back(testing::with_shards(*program));
    all.push_back(std::move(*program));
  };
  add("1f1b", {.ranks = 3, .microbatches = 4});
  add("gpipe", {.ranks = 2, .microbatches = 3, .tying = HeadTying::kTied});
  add("zb-h1", {.ranks = 3, .microbatches = 4});
  add("interleaved-1f1b", {.ranks = 2, .microbatches = 4, .chunks = 2});
  add("chimera", {.ranks = 4, .microbatches = 4});
  add("seq1f1b", {.ranks = 2, .microbatches = 2, .slices = 3});
  add("dualpipev", {.ranks = 2, .microbatches = 4, .chunks = 2});
  add("bpipe", {.ranks = 4, .microbatches = 6});
  add("forward", {.ranks = 3, .microbatches = 2});
  return all;
}

TEST(PlantedDefects, ThereAreAtLeastForty) {
  EXPECT_GE(defects().size(), 40U);
}

TEST(PlantedDefects, EachIsFoundWhereverItIsPlanted) {
  const std::vector<Program> sound = programs();
  for (const Program& program : sound) ASSERT_TRUE(verify(program).empty()) << print_text(program);
  for (const Defect& defect : defects()) {
    int planted = 0;
    for (const Program& program : sound) {
      for (std::size_t rank = 0; rank < program.rows.size(); ++rank) {
        for (std::size_t at = 0; at < program.rows[rank].size(); ++at) {
          Program broken = program;
          if (!defect.plant(Spot{broken, rank, at})) continue;
          ++planted;
          ASSERT_FALSE(verify(broken).empty())
              << defect.name << ": " << program.layout.name << ", rank " << rank << ", position " << at << ", "
              << describe(program.layout, program.rows[rank][at]) << "\n"
              << print_text(broken);
        }
      }
    }
    EXPECT_GT(planted, 0) << defect.name;
  }
}

}  // namespace
}  // namespace plait
