#include "tests/verify/random_programs.h"

#include "plait/ir/lower.h"
#include "plait/ir/text.h"
#include "plait/schedules/schedule_info.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

namespace plait::testing {
namespace {

struct Family {
  const char* name;
  int chunks = 1;
  int slices = 1;
};
constexpr Family kFamilies[] = {
    {"gpipe"},        {"1f1b"},          {"interleaved-1f1b", 2},       {"zb-h1"},    {"zb-v", 2},
    {"hanayo", 2},    {"seq1f1b", 1, 3}, {"seq1f1b-interleaved", 2, 2}, {"dualpipe"}, {"chimera"},
    {"dualpipev", 2}, {"forward"},       {"seq1f1b-zb", 1, 2}};

Schedule random_schedule(Random& random) {
  for (;;) {
    const Family& family = kFamilies[static_cast<std::size_t>(below(random, static_cast<int>(std::size(kFamilies))))];
    ScheduleShape shape{.ranks = 1 + below(random, 4), .microbatches = 1 + below(random, 6)};
    if (family.chunks > 1) shape.chunks = family.chunks;
    if (family.slices > 1) shape.slices = family.slices;
    shape.tying = below(random, 3) == 0 ? HeadTying::kTied : HeadTying::kUntied;
    if (auto schedule = build_schedule(family.name, shape)) return std::move(*schedule);
  }
}

/// Which ops have run, and whether an op could be next.
class Order {
 public:
  explicit Order(const Layout& layout)
      : layout_(layout),
        done_(static_cast<std::size_t>(layout.num_stages() * layout.num_microbatches * layout.num_slices) * 3) {}

  void recompute(const Op& op) { recomputed_.push_back(op); }

  [[nodiscard]] bool ready(const Op& op) const {
    if (op.kind == OpKind::kRecompute) return done_[slot(op, 0)];
    const auto earlier = [&](EdgeId e, bool forward) {
      Op other = op;
      other.stage = forward ? layout_.edges[e.index()].producer : layout_.edges[e.index()].consumer;
      return done_[slot(other, forward ? 0 : 1)];
    };
    const auto slice = [&](int step, std::size_t phase) {
      Op other = op;
      other.slice = SliceId{op.slice.value() + step};
      return other.slice.value() < 0 || other.slice.value() >= layout_.num_slices || done_[slot(other, phase)];
    };
    if (op.kind == OpKind::kBackwardWeight) return done_[slot(op, 1)];
    const bool forward = op.kind == OpKind::kForward;
    if (!slice(forward ? -1 : 1, forward ? 0 : 1) || (!forward && !done_[slot(op, 0)])) return false;
    if (!forward && std::any_of(recomputed_.begin(), recomputed_.end(), [&](const Op& r) {
          return r.stage == op.stage && r.microbatch == op.microbatch && r.slice == op.slice;
        }))
      return false;
    const auto edges = forward ? layout_.edges_into(op.stage) : layout_.edges_out_of(op.stage);
    return std::all_of(edges.begin(), edges.end(), [&](EdgeId e) { return earlier(e, forward); });
  }
  void mark(const Op& op) {
    if (op.kind == OpKind::kRecompute) {
      std::erase(recomputed_, op);
      return;
    }
    done_[slot(op, op.kind == OpKind::kForward ? 0 : op.kind == OpKind::kBackwardWeight ? 2 : 1)] = true;
  }

 private:
  [[nodiscard]] std::size_t slot(const Op& op, std::size_t phase) const {
    const int index =
        (op.stage.value() * layout_.num_microbatches + op.microbatch.value()) * layout_.num_slices + op.slice.value();
    return static_cast<std::size_t>(index) * 3 + phase;
  }
  const Layout& layout_;
  std::vector<bool> done_;
  std::vector<Op> recomputed_;  ///< recomputes still to come, which hold back their backward
};

Schedule shuffled(Random& random, const Schedule& schedule) {
  std::vector<std::pair<std::size_t, Op>> pending;
  Order order(schedule.layout);
  const bool recomputes = schedule.layout.mode == Mode::kTrain && below(random, 6) == 0;
  for (std::size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    for (const Instr& instr : schedule.rows[rank]) {
      const Op* op = std::get_if<Op>(&instr);
      if (op == nullptr) continue;
      if (recomputes && op->kind == OpKind::kForward && below(random, 2) == 0) {
        Op again = *op;
        again.kind = OpKind::kRecompute;
        pending.emplace_back(rank, again);
        order.recompute(again);
      }
      if (op->kind == OpKind::kBackward && below(random, 4) == 0) {
        Op half = *op;
        half.kind = OpKind::kBackwardInput;
        pending.emplace_back(rank, half);
        half.kind = OpKind::kBackwardWeight;
        pending.emplace_back(rank, half);
      } else {
        pending.emplace_back(rank, *op);
      }
    }
  }
  Schedule result{.layout = schedule.layout, .rows = std::vector<Row>(schedule.rows.size())};
  while (!pending.empty()) {
    std::vector<std::size_t> ready;
    for (std::size_t k = 0; k < pending.size(); ++k)
      if (order.ready(pending[k].second)) ready.push_back(k);
    const std::size_t chosen = ready[static_cast<std::size_t>(below(random, static_cast<int>(ready.size())))];
    const auto [rank, op] = pending[chosen];
    order.mark(op);
    result.rows[rank].push_back(op);
    pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(chosen));
  }
  return result;
}

bool is_gradient_reduction(const Instr& instr) {
  if (const auto* collective = std::get_if<Collective>(&instr))
    return collective->value.kind() == ValueKind::kWeightGrad;
  if (const auto* wait = std::get_if<WaitCollective>(&instr)) return wait->value.kind() == ValueKind::kWeightGrad;
  return false;
}

bool is_norm(const Instr& instr) {
  const auto* collective = std::get_if<Collective>(&instr);
  return collective != nullptr && collective->value.kind() == ValueKind::kNorm;
}

/// Sound programs of the corpus that pass under every transfer rule.
std::vector<Program> written_programs() {
  std::vector<Program> programs;
  for (const char* name : {"weights_travel", "sharded_replicas", "two_replicas", "two_slices", "three_ranks"}) {
    std::ifstream file(std::string(PLAIT_SOURCE_DIR) + "/tests/error/sound/" + name + ".plait");
    std::stringstream text;
    text << file.rdbuf();
    programs.push_back(std::get<Program>(*parse_text(text.str(), name)));
  }
  return programs;
}

}  // namespace

int below(Random& random, int bound) {
  return static_cast<int>(random() % static_cast<std::uint64_t>(bound));
}

Program with_shards(Program program) {
  Layout& layout = program.layout;
  std::vector<RankSetId> homes;
  for (ParamGroup& group : layout.groups) {
    group.residency = Residency::kSharded;
    homes.push_back(intern_rank_set(layout, group.homes));
  }
  for (std::size_t rank = 0; rank < program.rows.size(); ++rank) {
    Row row;
    Row frees;
    Row reductions;
    Row waits;
    for (std::size_t g = 0; g < layout.groups.size(); ++g) {
      const auto& members = layout.rank_sets[homes[g].index()];
      if (!std::binary_search(members.begin(), members.end(), RankId{static_cast<std::int32_t>(rank)})) continue;
      const GroupId id{static_cast<std::int32_t>(g)};
      row.push_back(
          Collective{.kind = CollectiveKind::kAllGather, .ranks = homes[g], .root = {}, .value = Value::weight(id)});
      frees.push_back(Free{.value = Value::weight(id)});
      reductions.push_back(Collective{
          .kind = CollectiveKind::kReduceScatter, .ranks = homes[g], .root = {}, .value = Value::weight_grad(id)});
      waits.push_back(WaitCollective{.kind = CollectiveKind::kReduceScatter, .value = Value::weight_grad(id)});
    }
    const auto append = [&](const Row& more) { row.insert(row.end(), more.begin(), more.end()); };
    bool ended = false;
    for (const Instr& instr : program.rows[rank]) {
      if (is_gradient_reduction(instr)) continue;
      if (is_norm(instr)) {
        ended = true;
        append(frees);
        append(reductions);
        append(waits);
      }
      row.push_back(instr);
    }
    if (!ended) append(frees);
    program.rows[rank] = std::move(row);
  }
  return program;
}

Program random_program(Random& random) {
  static const std::vector<Program> kWritten = written_programs();
  if (below(random, 12) == 0)
    return kWritten[static_cast<std::size_t>(below(random, static_cast<int>(kWritten.size())))];
  Schedule schedule = shuffled(random, random_schedule(random));
  if (below(random, 3) == 0) schedule.layout.steps = StepOrder::kPostValidated;
  auto program = lower(schedule);
  return below(random, 3) == 0 ? with_shards(std::move(*program)) : std::move(*program);
}

}  // namespace plait::testing
