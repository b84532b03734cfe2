#include "tests/verify/reference_interpreter.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <set>
#include <tuple>
// clang-format off
namespace plait::testing {
namespace {
// A value is the bag of symbols it sums; most hold one. A symbol is a hash of what it was made from.
using Symbol = std::uint64_t;
using Bag = std::multiset<Symbol>;
using Lane = std::tuple<int, int, ValueKind>;  // from, to
using Ticket = std::pair<Lane, std::size_t>;   // the n-th message of a lane
using RunKey = std::pair<int, std::size_t>;    // the n-th collective of a rank set
struct Channel { std::vector<Bag> sent; std::size_t posted = 0; };
struct Run { std::optional<Collective> what; std::set<int> entered; Bag bag; };
struct Blocked {}; struct Crash { const char* why; };
constexpr Symbol kUnknown = 11;  // the norm, where a step does not know it
struct Trial {                   // a step that is not validated
  GroupId group;
  Symbol before = 0, gradient = 0;
};
struct Rank {
  std::size_t at = 0;
  std::vector<Trial> trials;
  std::map<Value, Bag> held;                                   // weights at home too
  std::map<Value, std::deque<Ticket>> coming;                  // posted receives
  std::map<Value, std::pair<CollectiveKind, RunKey>> running;  // collectives not waited for
  std::map<std::pair<Value, int>, std::deque<Ticket>> sends;   // not waited for
  std::map<int, std::size_t> entries;                          // by rank set
  std::map<GroupId, Symbol> home;                              // weight, or shard of it
  std::map<Value, int> copies;                                 // of a weight that came, beside the home's own
  std::map<GroupId, Bag> shards;                               // scattered sums
};
Symbol total(const auto& parts) {
  Symbol h = 1469598103934665603u;
  for (Symbol part : parts) h = (h ^ (part + 0x9e3779b97f4a7c15u + (h << 6) + (h >> 2))) * 1099511628211u;
  return h;
}
Symbol mix(std::initializer_list<Symbol> parts) { return total(parts); }
class Interpreter {
 public:
  explicit Interpreter(const Program& program) : p_(program), l_(program.layout), ranks_(program.rows.size()) {
    for (GroupId g; g.index() < l_.groups.size(); g = GroupId{g.value() + 1})
      for (RankId home : l_.groups[g.index()].homes) {
        ranks_[home.index()].home[g] = mix({7, g.index()});
        if (resident(g)) ranks_[home.index()].held[Value::weight(g)] = {mix({7, g.index()})};
      }
  }
  Meaning run() {
    try {
      for (moved_ = true; moved_;) for (moved_ = false, me_ = 0; me_ < std::ssize(ranks_); ++me_) advance();
      for (me_ = 0; me_ < std::ssize(ranks_); ++me_) finish();
      for (const auto& [lane, channel] : channels_) leak(channel.sent.size() != channel.posted, "message");
    } catch (const Crash& crash) {
      out_.end = Meaning::End::kCrash;
      out_.crash = std::to_string(me_) + "@" + std::to_string(r().at) + ": " + crash.why;
    }
    return out_;
  }
 private:
  std::size_t me() const { return static_cast<std::size_t>(me_); }
  Rank& r() { return ranks_[me()]; }
  bool resident(GroupId g) const { return l_.groups[g.index()].residency == Residency::kResident; }
  static void demand(bool ok, const char* why) { if (!ok) throw Crash{why}; }
  static void wait_until(bool ok) { if (!ok) throw Blocked{}; }
  void leak(bool is, const char* what) { if (is) out_.leaks.push_back(std::to_string(me_) + " " + what); }
  void advance() try {
    for (const Row& row = p_.rows[me()]; r().at < row.size(); ++r().at, moved_ = true)
      std::visit([this](const auto& x) { step(x); }, row[r().at]);
  } catch (Blocked) {}
  Bag& arrived(const Ticket& t) {
    wait_until(channels_[t.first].sent.size() > t.second);
    return channels_[t.first].sent[t.second];
  }
  Run& complete(RunKey key) {
    wait_until(runs_[key].entered.size() == l_.rank_sets[static_cast<std::size_t>(key.first)].size());
    return runs_[key];
  }
  Bag& read(Value v) {  // waits for what brings the value; does not consume
    const bool weight = v.kind() == ValueKind::kWeight;
    const bool gathered = weight && r().running.contains(v);
    if (gathered) r().held[v] = complete(r().running[v].second).bag, r().running.erase(v), ++r().copies[v];
    const bool received = v.kind() != ValueKind::kWeightGrad && r().coming.contains(v);
    if (received && !(weight && r().held.contains(v))) take_copy(v);
    demand(r().held.contains(v), "reads what is not here");
    return r().held[v];
  }
  void take_copy(Value v) {  // the oldest one that is coming
    auto& tickets = r().coming[v];
    r().held[v] = arrived(tickets.front());
    if (v.kind() == ValueKind::kWeight) ++r().copies[v];
    if (tickets.pop_front(), tickets.empty()) r().coming.erase(v);
  }
  Bag& whole_gradient(GroupId g) {
    demand(r().home.contains(g) && !r().coming.contains(Value::weight_grad(g)), "a gradient that is not whole");
    if (r().shards.contains(g)) return r().shards[g];
    return read(Value::weight_grad(g));
  }
  bool absent(Value v) { return !r().held.contains(v) && !r().coming.contains(v); }
  void write(Value v, Symbol s) { demand(absent(v), "writes over a value"); r().held[v] = {s}; }
  void step(const auto&) {}  // pairs, turns and idle cells change nothing
  void step(const Op& op) {
    const auto [kind, s, m, q] = std::tuple(op.kind, op.stage, op.microbatch, op.slice);
    const bool backs = kind == OpKind::kBackwardInput || kind == OpKind::kBackward;
    Bag inputs = {mix({s.index(), m.index(), q.index()})};
    std::vector<Value> eaten;
    const auto use = [&](Value v) { inputs.insert(total(read(v))); };
    const auto eat = [&](Value v) { use(v), eaten.push_back(v); };
    for (GroupId g : l_.stages[s.index()].groups) if (kind != OpKind::kBackwardWeight) use(Value::weight(g));
    for (int k = 0; k < q.value() && kind != OpKind::kBackwardWeight; ++k) use(Value::kv(s, m, SliceId{k}));
    if (kind == OpKind::kBackwardWeight) eat(Value::weight_stash(s, m, q));
    if (kind == OpKind::kForward) for (EdgeId e : l_.edges_into(s)) eat(Value::activation(e, m, q));
    if (backs) for (EdgeId e : l_.edges_out_of(s)) eat(Value::gradient(e, m, q));
    if (backs) eat(Value::stash(s, m, q));
    if (kind == OpKind::kRecompute) use(Value::stash(s, m, q));
    if (backs && l_.num_slices > 1) eat(Value::kv(s, m, q));
    if (backs && r().held.contains(Value::kv_grad(s, m, q))) eat(Value::kv_grad(s, m, q));
    for (Value v : eaten) r().held.erase(v);  // every input is here
    const Symbol made = total(inputs);
    if (kind == OpKind::kForward) {
      for (EdgeId e : l_.edges_out_of(s)) write(Value::activation(e, m, q), mix({made, 1}));
      if (l_.mode == Mode::kTrain) write(Value::stash(s, m, q), mix({made, 2}));
      if (l_.num_slices > 1) write(Value::kv(s, m, q), mix({made, 3}));
      for (int k = 0; l_.mode == Mode::kForward && q.value() == l_.num_slices - 1 && k <= q.value(); ++k)
        r().held.erase(Value::kv(s, m, SliceId{k}));
      if (l_.edges_out_of(s).empty()) demand(out_.losses.emplace(std::tuple(s, m, q), made).second, "a second loss");
    }
    if (backs) for (EdgeId e : l_.edges_into(s)) write(Value::gradient(e, m, q), mix({made, 4}));
    for (int k = 0; backs && k < q.value(); ++k) r().held[Value::kv_grad(s, m, SliceId{k})].insert(made);
    if (kind == OpKind::kBackwardInput) write(Value::weight_stash(s, m, q), mix({made, 5}));
    for (GroupId g : l_.stages[s.index()].groups) {
      if (kind != OpKind::kBackward && kind != OpKind::kBackwardWeight) continue;
      demand(!r().running.contains(Value::weight_grad(g)), "adds to a gradient under reduction");
      r().held[Value::weight_grad(g)].insert(mix({made, g.index()}));
    }
  }
  void step(const Send& x) {
    const Lane lane{me_, x.peer.value(), x.value.kind()};
    channels_[lane].sent.push_back(read(x.value));
    r().sends[{x.value, x.peer.value()}].emplace_back(lane, channels_[lane].sent.size() - 1);
    if (x.value.kind() != ValueKind::kWeight) r().held.erase(x.value);
  }
  void step(const Recv& x) {
    const Lane lane{x.peer.value(), me_, x.value.kind()};
    demand(x.value.is_group() || absent(x.value), "receives over a value");
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
    const bool weight = x.value.kind() == ValueKind::kWeight, gathers = x.kind == CollectiveKind::kAllGather;
    const bool gives = x.kind != CollectiveKind::kBroadcast || x.root.value() == me_;
    if (gathers) run.bag.insert(r().home[x.value.group()]);
    else if (gives && (weight || r().held.contains(x.value))) run.bag.merge(Bag(read(x.value)));
    if (x.value.kind() == ValueKind::kNorm)
      for (const auto& [g, symbol] : r().home) run.bag.insert(mix({total(whole_gradient(g)), g.index()}));
    if (x.value.kind() == ValueKind::kWeightGrad) r().held.erase(x.value);
    if (!weight || !gives || gathers) {
      const bool goes_on = x.kind == CollectiveKind::kReduce || x.kind == CollectiveKind::kReduceScatter;
      demand(goes_on || absent(x.value), "has it already");
      demand(r().running.emplace(x.value, std::pair(x.kind, key)).second, "enters it twice");
    }
    run.what = x, run.entered.insert(me_), ++r().entries[x.ranks.value()];
  }
  void step(const WaitCollective& x) {
    if (x.value.kind() == ValueKind::kWeight) return void(read(x.value));
    const auto found = r().running.find(x.value);
    demand(found != r().running.end() && found->second.first == x.kind, "waits for no collective");
    const Run& run = complete(found->second.second);
    const bool keeps = x.kind != CollectiveKind::kReduce || run.what->root.value() == me_;
    if (x.kind == CollectiveKind::kReduceScatter && !resident(x.value.group()))
      r().shards[x.value.group()].merge(Bag(run.bag));
    else if (keeps) r().held[x.value] = run.bag;
    r().running.erase(found);
  }
  void step(const Free& x) {
    const bool own = r().home.contains(x.value.group()) && resident(x.value.group());
    if (!own) read(x.value);
    else if (r().copies[x.value] == 0 && r().coming.contains(x.value)) take_copy(x.value);
    demand(r().copies[x.value] > 0, "frees no copy");
    if (--r().copies[x.value] == 0 && !own) r().held.erase(x.value);
  }
  void step(const Add& x) {
    const auto partials = r().coming.find(Value::weight_grad(x.group));
    demand(partials != r().coming.end() && !r().running.contains(partials->first), "adds nothing, or under way");
    r().held[partials->first].merge(Bag(arrived(partials->second.front())));
    if (partials->second.pop_front(), partials->second.empty()) r().coming.erase(partials);
  }
  void step(const Step& x) {
    const Row& row = p_.rows[me()];
    const bool knows = r().held.contains(Value::norm()) && !r().running.contains(Value::norm());
    const bool on_trial = !knows && std::any_of(row.begin() + static_cast<std::ptrdiff_t>(r().at), row.end(),
                                                [](const Instr& i) { return std::holds_alternative<Validate>(i); });
    demand(!r().running.contains(Value::norm()) || on_trial, "steps before the norm");
    const Symbol gradient = total(whole_gradient(x.group));
    const Symbol before = r().home[x.group];
    if (on_trial) {
      r().trials.push_back({.group = x.group, .before = before, .gradient = gradient});
      become(x.group, mix({before, gradient, kUnknown}));
      return;  // the gradient stays
    }
    become(x.group, mix({before, gradient, total(r().held[Value::norm()])}));
    end_gradient(x.group);
  }
  void end_gradient(GroupId group) {
    r().held.erase(Value::weight_grad(group));
    r().shards.erase(group);
  }
  void step(const Validate&) {
    step(WaitCollective{.kind = CollectiveKind::kAllReduce, .value = Value::norm()});
    const Symbol norm = total(r().held[Value::norm()]);
    for (const Trial& trial : r().trials) {
      become(trial.group, mix({trial.before, trial.gradient, norm}));
      end_gradient(trial.group);
    }
    r().trials.clear();
  }
  void become(GroupId group, Symbol weight) {
    r().home[group] = weight;
    if (resident(group)) r().held[Value::weight(group)] = {weight};
  }
  void finish() {
    if (r().at < p_.rows[me()].size()) out_.end = Meaning::End::kDeadlock;
    for (const auto& [g, weight] : r().home) {
      out_.weights[{me_, g}] = weight;
      leak(resident(g) && r().held.erase(Value::weight(g)) == 0, "lost weight");
    }
    r().held.erase(Value::norm());
    leak(!r().trials.empty(), "step that is not validated");
    for (const auto& [value, count] : r().copies) leak(count > 0, "copy");
    leak(!r().held.empty() || !r().coming.empty() || !r().running.empty(), "value");
    for (const auto& [value, sends] : r().sends) leak(!sends.empty(), "send");
  }
  const Program& p_; const Layout& l_;
  std::vector<Rank> ranks_;
  std::map<Lane, Channel> channels_;
  std::map<RunKey, Run> runs_;
  int me_ = 0; bool moved_ = true;
  Meaning out_;
};
}  // namespace
Meaning interpret(const Program& program) { return Interpreter(program).run(); }
}  // namespace plait::testing
