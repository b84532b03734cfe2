#include "plait/ir/swaps.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace plait {
namespace {

/// Gap g lies before the g-th instruction of a row that is no transfer.
using Gap = std::size_t;

/// Where a receive may stand.
struct Bounds {
  Gap first = 0;
  Gap last = 0;
};

/// What one gap sends to one peer.
struct Bundle {
  Gap gap = 0;
  std::vector<Value> values;
  Bounds receive;  ///< at the peer
};

/// Transfers of one gap with one peer, posted together.
struct Exchange {
  std::int32_t peer = 0;
  std::vector<Value> sends;
  std::vector<Value> receives;
};

bool uses(const Layout& layout, const Op& op, GroupId group) {
  const std::vector<GroupId>& groups = layout.stages[op.stage.index()].groups;
  return op.kind != OpKind::kBackwardWeight && std::find(groups.begin(), groups.end(), group) != groups.end();
}

/// Whether an instruction reads a received value first.
bool reads(const Layout& layout, const Instr& instr, const Value& value) {
  if (value.kind() == ValueKind::kWeightGrad) {
    const Add* add = std::get_if<Add>(&instr);
    return add != nullptr && add->group == value.group();
  }
  if (value.kind() == ValueKind::kWeight) {
    const Free* freed = std::get_if<Free>(&instr);
    if (freed != nullptr) return freed->value == value;
    const Op* op = std::get_if<Op>(&instr);
    return op != nullptr && uses(layout, *op, value.group());
  }
  const Op* op = std::get_if<Op>(&instr);
  if (op == nullptr || op->microbatch != value.microbatch() || op->slice != value.slice()) return false;
  const bool backward = op->kind == OpKind::kBackward || op->kind == OpKind::kBackwardInput;
  switch (value.kind()) {
    case ValueKind::kActivation:
      return op->kind == OpKind::kForward && layout.edges[value.edge().index()].consumer == op->stage;
    // A recompute right before its backward starts with it.
    case ValueKind::kGradient:
      return (backward || op->kind == OpKind::kRecompute) && layout.edges[value.edge().index()].producer == op->stage;
    case ValueKind::kStash: return (backward || op->kind == OpKind::kRecompute) && value.stage() == op->stage;
    case ValueKind::kWeightStash: return op->kind == OpKind::kBackwardWeight && value.stage() == op->stage;
    default: return true;  // keys and values are read by many: they stay where they are
  }
}

class SwapPass {
 public:
  SwapPass(const Layout& layout, const std::vector<Row>& rows) : layout_(layout), rows_(rows), anchors_(rows.size()) {
    for (std::size_t rank = 0; rank < rows.size(); ++rank)
      for (const Instr& instr : rows[rank])
        if (!is_transfer(instr)) anchors_[rank].push_back(&instr);
  }

  std::vector<Row> run() {
    for (std::size_t rank = 0; rank < rows_.size(); ++rank) collect_receives(rank);
    for (std::size_t rank = 0; rank < rows_.size(); ++rank) collect_sends(rank);
    exchanges_.assign(rows_.size(), {});
    for (std::int32_t a = 0; a < static_cast<std::int32_t>(rows_.size()); ++a)
      for (std::int32_t b = a + 1; b < static_cast<std::int32_t>(rows_.size()); ++b) exchange(a, b);
    std::vector<Row> out;
    for (std::size_t rank = 0; rank < rows_.size(); ++rank) out.push_back(rebuild(rank));
    return out;
  }

 private:
  using Channel = std::pair<std::int32_t, std::int32_t>;  // from, to

  void collect_receives(std::size_t rank) {
    const Row& row = rows_[rank];
    Gap gap = 0;
    std::map<GroupId, Gap> freed;  // a copy comes only behind the free of the one before
    for (std::size_t at = 0; at < row.size(); ++at) {
      if (const Free* free = std::get_if<Free>(&row[at])) freed[free->value.group()] = gap + 1;
      if (const Recv* recv = std::get_if<Recv>(&row[at])) {
        Bounds bounds{.first = 0, .last = gap};
        if (recv->value.kind() == ValueKind::kWeight) bounds.first = freed[recv->value.group()];
        std::size_t earlier = 0;  // partial gradients that wait for an Add before this one
        if (recv->value.kind() == ValueKind::kWeightGrad) earlier = pending_[{rank, recv->value}]++;
        Gap reader = gap;
        for (std::size_t i = at + 1; i < row.size(); ++i) {
          if (is_transfer(row[i])) continue;
          if (reads(layout_, row[i], recv->value) && earlier-- == 0) break;
          ++reader;
        }
        bounds.last = std::max(reader, bounds.first);
        bounds_[{recv->peer.value(), static_cast<std::int32_t>(rank)}].emplace_back(recv->value, bounds);
      }
      if (const Add* add = std::get_if<Add>(&row[at])) --pending_[{rank, Value::weight_grad(add->group)}];
      if (!is_transfer(row[at])) ++gap;
    }
  }

  /// Bounds of the oldest receive of the value over the channel; nothing where it is never received.
  std::optional<Bounds> take_bounds(const Channel& channel, const Value& value) {
    auto& list = bounds_[channel];
    const auto found = std::find_if(list.begin(), list.end(), [&](const auto& entry) { return entry.first == value; });
    if (found == list.end()) return {};
    const Bounds bounds = found->second;
    list.erase(found);
    return bounds;
  }

  void collect_sends(std::size_t rank) {
    Gap gap = 0;
    for (const Instr& instr : rows_[rank]) {
      if (!is_transfer(instr)) {
        ++gap;
        continue;
      }
      const Send* send = std::get_if<Send>(&instr);
      if (send == nullptr) continue;
      const Channel channel{static_cast<std::int32_t>(rank), send->peer.value()};
      auto& bundles = bundles_[channel];
      if (bundles.empty() || bundles.back().gap != gap)
        bundles.push_back(Bundle{.gap = gap, .values = {}, .receive = {.first = 0, .last = SIZE_MAX}});
      Bundle& bundle = bundles.back();
      bundle.values.push_back(send->value);
      if (const auto bounds = take_bounds(channel, send->value)) {
        bundle.receive.first = std::max(bundle.receive.first, bounds->first);
        bundle.receive.last = std::min(bundle.receive.last, bounds->last);
      }
    }
  }

  /// Micro-batches of one fold are worked on in turn with those of the others.
  [[nodiscard]] std::optional<int> fold_of(const std::vector<Value>& values) const {
    for (const Value& value : values)
      if (!value.is_group()) return value.microbatch().value() % layout_.folds;
    return {};
  }

  /// Of an op that works on from what was exchanged; a recompute does not.
  [[nodiscard]] std::optional<int> fold_at(const Instr& instr) const {
    const Op* op = std::get_if<Op>(&instr);
    if (op == nullptr || op->kind == OpKind::kRecompute) return {};
    return op->microbatch.value() % layout_.folds;
  }

  [[nodiscard]] bool swappable(const Bundle& x, const Bundle& y) const {
    const auto within = [](const Bounds& bounds, Gap gap) { return bounds.first <= gap && gap <= bounds.last; };
    return within(x.receive, y.gap) && within(y.receive, x.gap) && fold_of(x.values) == fold_of(y.values);
  }

  /// Whether one of the next bundles, one of each fold, can be swapped with `other`.
  [[nodiscard]] bool partner_follows(const std::vector<Bundle>& bundles, std::size_t at, const Bundle& other) const {
    for (int k = 1; k < 2 * layout_.folds && at + static_cast<std::size_t>(k) < bundles.size(); ++k)
      if (swappable(bundles[at + static_cast<std::size_t>(k)], other)) return true;
    return false;
  }

  /// Behind the op of its fold before the reader, where its receive is posted.
  [[nodiscard]] Gap posted_at(std::int32_t rank, const Bundle& sent) const {
    const auto fold = fold_of(sent.values);
    if (!fold) return 0;
    const std::vector<const Instr*>& anchors = anchors_[static_cast<std::size_t>(rank)];
    for (Gap gap = std::min(sent.receive.last, anchors.size()); gap > 0; --gap)
      if (fold_at(*anchors[gap - 1]) == fold) return gap;
    return 0;
  }

  /// Merges the two directions between two ranks in the one order that both follow.
  void exchange(std::int32_t a, std::int32_t b) {
    const std::vector<Bundle>& down = bundles_[{a, b}];
    const std::vector<Bundle>& up = bundles_[{b, a}];
    Gap behind_a = 0;  // no exchange may stand before the previous one
    Gap behind_b = 0;
    std::size_t x = 0;
    std::size_t y = 0;
    const auto alone = [&](const Bundle& sent, std::int32_t from, std::int32_t to, Gap& behind_from, Gap& behind_to) {
      behind_from = sent.gap;
      behind_to = std::clamp(std::max(behind_to, posted_at(to, sent)), sent.receive.first,
                             std::max(sent.receive.first, sent.receive.last));
      put(from, behind_from, Exchange{.peer = to, .sends = sent.values, .receives = {}});
      put(to, behind_to, Exchange{.peer = from, .sends = {}, .receives = sent.values});
    };
    while (x < down.size() || y < up.size()) {
      if (y >= up.size()) {
        alone(down[x++], a, b, behind_a, behind_b);
        continue;
      }
      if (x >= down.size()) {
        alone(up[y++], b, a, behind_b, behind_a);
        continue;
      }
      const Bundle& from_a = down[x];
      const Bundle& from_b = up[y];
      if (swappable(from_a, from_b)) {
        behind_a = from_a.gap;
        behind_b = from_b.gap;
        put(a, behind_a, Exchange{.peer = b, .sends = from_a.values, .receives = from_b.values});
        put(b, behind_b, Exchange{.peer = a, .sends = from_b.values, .receives = from_a.values});
        ++x;
        ++y;
        continue;
      }
      // What is read before the other one is made goes first; else what leaves the other its partner.
      const bool a_must = from_a.receive.last < from_b.gap || from_a.gap < from_b.receive.first;
      const bool b_must = from_b.receive.last < from_a.gap || from_b.gap < from_a.receive.first;
      if (a_must || (!b_must && (partner_follows(down, x, from_b) || !partner_follows(up, y, from_a))))
        alone(down[x++], a, b, behind_a, behind_b);
      else
        alone(up[y++], b, a, behind_b, behind_a);
    }
  }

  void put(std::int32_t rank, Gap gap, Exchange exchange) {
    exchanges_[static_cast<std::size_t>(rank)][gap].push_back(std::move(exchange));
  }

  Row rebuild(std::size_t rank) {
    Row out;
    out.reserve(rows_[rank].size() * 2);
    std::map<int, std::vector<WaitSend>> under_way;  // per fold
    const auto post = [&](Gap gap) {
      const auto found = exchanges_[rank].find(gap);
      if (found == exchanges_[rank].end()) return;
      for (const Exchange& exchange : found->second) {
        const RankId peer{exchange.peer};
        out.push_back(Batch{.count = static_cast<int>(exchange.sends.size() + exchange.receives.size())});
        const auto fold = fold_of(exchange.sends);
        for (const Value& value : exchange.sends) {
          out.push_back(Send{.value = value, .peer = peer});
          if (fold) under_way[*fold].push_back(WaitSend{.value = value, .peer = peer});
        }
        for (const Value& value : exchange.receives) out.push_back(Recv{.value = value, .peer = peer});
      }
    };
    Gap gap = 0;
    for (const Instr& instr : rows_[rank]) {
      if (is_transfer(instr)) continue;
      post(gap++);
      if (const auto fold = fold_at(instr)) wait_for(under_way[*fold], out);
      out.push_back(instr);
    }
    post(gap);
    for (auto& [fold, waits] : under_way) wait_for(waits, out);
    return out;
  }

  static void wait_for(std::vector<WaitSend>& waits, Row& out) {
    out.insert(out.end(), waits.begin(), waits.end());
    waits.clear();
  }

  static bool is_transfer(const Instr& instr) {
    return std::holds_alternative<Send>(instr) || std::holds_alternative<Recv>(instr);
  }

  const Layout& layout_;
  const std::vector<Row>& rows_;
  std::map<Channel, std::vector<std::pair<Value, Bounds>>> bounds_;
  std::map<std::pair<std::size_t, Value>, std::size_t> pending_;
  std::map<Channel, std::vector<Bundle>> bundles_;
  std::vector<std::vector<const Instr*>> anchors_;  ///< per rank: what is no transfer
  std::vector<std::map<Gap, std::vector<Exchange>>> exchanges_;
};

}  // namespace

Result<std::vector<Row>> add_swaps(const Layout& layout, const std::vector<Row>& rows) {
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    const auto pair = std::find_if(rows[rank].begin(), rows[rank].end(),
                                   [](const Instr& instr) { return std::holds_alternative<Pair>(instr); });
    if (pair != rows[rank].end())
      return make_error(ErrorCode::kInvalidSchedule, "lower.swaps",
                        "rank {}, position {}: a pair of ops, inside of which nothing can be swapped; lower one way",
                        rank, pair - rows[rank].begin());
  }
  return SwapPass(layout, rows).run();
}

}  // namespace plait
