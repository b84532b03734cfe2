#include "tests/verify/reference_interpreter.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <set>
#include <tuple>

namespace plait::testing {
namespace {

// A value is the bag of symbols it sums; most hold one. A symbol is a hash of what it was made from.
using Symbol = std::uint64_t;
using Bag = std::multiset<Symbol>;
using Lane = std::tuple<int, int, ValueKind>;  // from, to
using Ticket = std::pair<Lane, std::size_t>;   // the n-th message of a lane
using RunKey = std::pair<int, std::size_t>;    // the n-th collective of a rank set
struct Channel {
  std::vector<Bag> sent;
  std::size_t posted = 0;
};
struct Run {
  std::optional<Collective> what;
  std::set<int> entered;
  Bag bag;
};
struct Crash {
  const char* why;
};
struct Blocked {};

struct Rank {
  std::size_t at = 0;
  std::map<Value, Bag> held;                                   // weights at home too
  std::map<Value, std::deque<Ticket>> coming;                  // posted receives
  std::map<Value, std::pair<CollectiveKind, RunKey>> running;  // collectives not waited for
  std::map<std::pair<Value, int>, std::deque<Ticket>> sends;   // not waited for
  std::map<int, std::size_t> entries;                          // by rank set
  std::map<int, Symbol> home;                                  // by group: weight, or shard of it
};

Symbol mix(std::initializer_list<Symbol> parts) {
  Symbol h = 1469598103934665603u;
  for (Symbol part : parts) h = (h ^ (part + 0x9e3779b97f4a7c15u + (h << 6) + (h >> 2))) * 1099511628211u;
  return h;
}
Symbol total(const Bag& bag) {
  Symbol h = bag.size();
  for (Symbol part : bag) h = mix({h, part});
  return h;
}
Symbol symbol(int number) {
  return static_cast<Symbol>(number);
}

class Interpreter {
 public:
  explicit Interpreter(const Program& program) : p_(program), l_(program.layout), ranks_(program.rows.size()) {
    for (int g = 0; g < static_cast<int>(l_.groups.size()); ++g)
      for (RankId home : group(g).homes) {
        Rank& rank = ranks_[home.index()];
        rank.home[g] = mix({7, symbol(g)});
        if (group(g).residency == Residency::kResident) rank.held[Value::weight(GroupId{g})] = {rank.home[g]};
      }
  }

  Meaning run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (me_ = 0; me_ < static_cast<int>(ranks_.size()); ++me_) try {
          for (const Row& row = p_.rows[symbol(me_)]; r().at < row.size(); ++r().at, moved = true)
            std::visit([this](const auto& x) { step(x); }, row[r().at]);
        } catch (Blocked) {
          continue;
        } catch (const Crash& crash) {
          out_.end = Meaning::End::kCrash;
          out_.crash = std::to_string(me_) + "@" + std::to_string(r().at) + ": " + crash.why;
          return out_;
        }
    }
    for (me_ = 0; me_ < static_cast<int>(ranks_.size()); ++me_) finish();
    for (const auto& [lane, channel] : channels_) leak(channel.sent.size() != channel.posted, "message");
    return out_;
  }

 private:
  Rank& r() { return ranks_[symbol(me_)]; }
  const ParamGroup& group(int g) const { return l_.groups[symbol(g)]; }
  static void demand(bool ok, const char* why) {
    if (!ok) throw Crash{why};
  }
  static void wait_until(bool ok) {
    if (!ok) throw Blocked{};
  }

  Bag& arrived(const Ticket& t) {
    wait_until(channels_[t.first].sent.size() > t.second);
    return channels_[t.first].sent[t.second];
  }
  Run& complete(RunKey key) {
    wait_until(runs_[key].entered.size() == l_.rank_sets[symbol(key.first)].size());
    return runs_[key];
  }
  Bag& read(Value v) {  // waits for what brings the value; does not consume
    if (v.kind() != ValueKind::kWeightGrad && r().coming.contains(v)) {
      r().held[v] = arrived(r().coming[v].front());
      r().coming.erase(v);
    } else if (v.kind() == ValueKind::kWeight && r().running.contains(v)) {
      r().held[v] = complete(r().running[v].second).bag;
      r().running.erase(v);
    }
    demand(r().held.contains(v), "reads what is not here");
    return r().held[v];
  }
  void write(Value v, Symbol s) {
    demand(!r().coming.contains(v) && r().held.emplace(v, Bag{s}).second, "writes over a value");
  }

  void step(const Op& op) {
    const auto [kind, s, m, q] = std::tuple(op.kind, op.stage, op.microbatch, op.slice);
    demand(s.index() < l_.stages.size() && m.value() < l_.num_microbatches && q.value() < l_.num_slices, "no such op");
    const bool backs = kind == OpKind::kBackwardInput || kind == OpKind::kBackward;
    Bag inputs = {mix({symbol(s.value()), symbol(m.value()), symbol(q.value())})};
    std::vector<Value> eaten;
    const auto use = [&](Value v) { inputs.insert(total(read(v))); };
    const auto eat = [&](Value v) { use(v), eaten.push_back(v); };
    if (kind != OpKind::kBackwardWeight)
      for (GroupId g : l_.stages[s.index()].groups) use(Value::weight(g));
    if (kind == OpKind::kForward)
      for (EdgeId e : l_.edges_into(s)) eat(Value::activation(e, m, q));
    if (kind == OpKind::kBackwardWeight) eat(Value::weight_stash(s, m, q));
    if (kind == OpKind::kRecompute) use(Value::stash(s, m, q));
    if (backs) {
      for (EdgeId e : l_.edges_out_of(s)) eat(Value::gradient(e, m, q));
      eat(Value::stash(s, m, q));
      if (l_.num_slices > 1) eat(Value::kv(s, m, q));
      if (r().held.contains(Value::kv_grad(s, m, q))) eat(Value::kv_grad(s, m, q));
    }
    for (int k = 0; k < q.value() && kind != OpKind::kBackwardWeight; ++k) use(Value::kv(s, m, SliceId{k}));
    for (Value v : eaten) r().held.erase(v);
    const Symbol made = total(inputs);
    if (kind == OpKind::kForward) {
      for (EdgeId e : l_.edges_out_of(s)) write(Value::activation(e, m, q), mix({made, 1}));
      if (l_.mode == Mode::kTrain) write(Value::stash(s, m, q), mix({made, 2}));
      if (l_.num_slices > 1) write(Value::kv(s, m, q), mix({made, 3}));
      for (int k = 0; l_.mode == Mode::kForward && q.value() == l_.num_slices - 1 && k <= q.value(); ++k)
        r().held.erase(Value::kv(s, m, SliceId{k}));
      if (l_.edges_out_of(s).empty())
        demand(out_.losses.emplace(std::vector{s.value(), m.value(), q.value()}, made).second, "a second loss");
    }
    if (backs) {
      for (EdgeId e : l_.edges_into(s)) write(Value::gradient(e, m, q), mix({made, 4}));
      for (int k = 0; k < q.value(); ++k) r().held[Value::kv_grad(s, m, SliceId{k})].insert(made);
    }
    if (kind == OpKind::kBackwardInput) write(Value::weight_stash(s, m, q), mix({made, 5}));
    if (kind == OpKind::kBackward || kind == OpKind::kBackwardWeight)
      for (GroupId g : l_.stages[s.index()].groups) {
        demand(!r().running.contains(Value::weight_grad(g)), "adds to a gradient under reduction");
        r().held[Value::weight_grad(g)].insert(mix({made, symbol(g.value())}));
      }
  }
  void step(const Pair&) {}
  void step(const Idle&) {}
  void step(const Turn&) {}
  void step(const Send& x) {
    Channel& channel = channels_[{me_, x.peer.value(), x.value.kind()}];
    const Bag bag = read(x.value);
    if (x.value.kind() != ValueKind::kWeight) r().held.erase(x.value);
    r().sends[{x.value, x.peer.value()}].emplace_back(Lane{me_, x.peer.value(), x.value.kind()}, channel.sent.size());
    channel.sent.push_back(bag);
  }
  void step(const Recv& x) {
    const Lane lane{x.peer.value(), me_, x.value.kind()};
    if (x.value.kind() != ValueKind::kWeightGrad)
      demand(!r().held.contains(x.value) && !r().coming.contains(x.value), "receives over a value");
    r().coming[x.value].emplace_back(lane, channels_[lane].posted++);
  }
  void step(const WaitSend& x) {
    auto& sends = r().sends[{x.value, x.peer.value()}];
    demand(!sends.empty(), "waits for no send");
    wait_until(channels_[sends.front().first].posted > sends.front().second);
    sends.pop_front();
  }
  void step(const Collective& x) {
    const RunKey key{x.ranks.value(), r().entries[x.ranks.value()]};
    Run& run = runs_[key];
    demand(std::ranges::count(l_.rank_sets[x.ranks.index()], RankId{me_}) == 1, "is not a member");
    demand(!run.what || *run.what == x, "members disagree");
    const bool gives = x.kind != CollectiveKind::kBroadcast || x.root.value() == me_;
    if (x.value.kind() == ValueKind::kNorm) {
      for (const auto& [g, weight] : r().home) {
        const Value gradient = Value::weight_grad(GroupId{g});
        demand(r().held.contains(gradient) && !r().coming.contains(gradient), "norm of an incomplete gradient");
        run.bag.insert(mix({total(r().held[gradient]), symbol(g)}));
      }
    } else if (x.kind == CollectiveKind::kAllGather) {
      run.bag.insert(r().home[x.value.group().value()]);
    } else if (gives && (x.value.kind() == ValueKind::kWeight || r().held.contains(x.value))) {
      run.bag.merge(Bag(read(x.value)));
    }
    if (x.value.kind() == ValueKind::kWeightGrad) r().held.erase(x.value);
    const bool gets = x.value.kind() != ValueKind::kWeight || !gives || x.kind == CollectiveKind::kAllGather;
    if (gets) demand(!r().held.contains(x.value) && !r().coming.contains(x.value), "has it already");
    if (gets) demand(r().running.emplace(x.value, std::pair(x.kind, key)).second, "enters it twice");
    run.what = x;
    run.entered.insert(me_);
    ++r().entries[x.ranks.value()];
  }
  void step(const WaitCollective& x) {
    if (x.value.kind() == ValueKind::kWeight) return void(read(x.value));
    const auto found = r().running.find(x.value);
    demand(found != r().running.end() && found->second.first == x.kind, "waits for no collective");
    const Run& run = complete(found->second.second);
    if (x.kind != CollectiveKind::kReduce || run.what->root.value() == me_) r().held[x.value] = run.bag;
    r().running.erase(found);
  }
  void step(const Free& x) {
    read(x.value);
    r().held.erase(x.value);
  }
  void step(const Add& x) {
    auto& partials = r().coming[Value::weight_grad(x.group)];
    demand(!partials.empty(), "adds nothing");
    r().held[Value::weight_grad(x.group)].merge(Bag(arrived(partials.front())));
    partials.pop_front();
    if (partials.empty()) r().coming.erase(Value::weight_grad(x.group));
  }
  void step(const Step& x) {
    const Value gradient = Value::weight_grad(x.group);
    demand(r().home.contains(x.group.value()) && r().held.contains(gradient), "steps without the gradient");
    demand(!r().running.contains(Value::norm()), "steps before the norm");
    Symbol& weight = r().home[x.group.value()];
    weight = mix({weight, total(r().held[gradient]), total(r().held[Value::norm()])});
    r().held.erase(gradient);
    if (group(x.group.value()).residency == Residency::kResident) r().held[Value::weight(x.group)] = {weight};
  }

  void leak(bool is, const char* what) {
    if (is) out_.leaks.push_back(std::to_string(me_) + " " + what);
  }
  void finish() {
    if (r().at < p_.rows[symbol(me_)].size()) out_.end = Meaning::End::kDeadlock;
    for (const auto& [g, weight] : r().home) {
      out_.weights[{me_, g}] = weight;
      if (group(g).residency == Residency::kResident)
        leak(r().held.erase(Value::weight(GroupId{g})) == 0, "lost weight");
    }
    r().held.erase(Value::norm());
    leak(!r().held.empty() || !r().coming.empty() || !r().running.empty(), "value");
    for (const auto& [value, sends] : r().sends) leak(!sends.empty(), "send");
  }

  const Program& p_;
  const Layout& l_;
  std::vector<Rank> ranks_;
  std::map<Lane, Channel> channels_;
  std::map<RunKey, Run> runs_;
  int me_ = 0;
  Meaning out_;
};

}  // namespace

bool Meaning::same_as(const Meaning& other) const {
  return end == other.end && weights == other.weights && losses == other.losses && leaks == other.leaks;
}

Meaning interpret(const Program& program) {
  return Interpreter(program).run();
}

}  // namespace plait::testing
