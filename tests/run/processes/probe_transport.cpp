// The probe's checks of transports alone: what is sent arrives as it was, what is summed has the bits of one process.

#include "plait/run/engine/byte_stream.h"
#include "plait/run/engine/delayed_transport.h"
#include "plait/run/engine/rank_threads.h"

#include "probe.h"
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <vector>

namespace plait::testing {
namespace {

/// Elements that depend on member, tensor and place, and whose sums depend on their order.
at::Tensor elements(std::int64_t size, int member, std::size_t tensor, at::ScalarType type) {
  const at::Tensor values = at::empty({size}, at::kDouble);
  auto* data = values.data_ptr<double>();
  for (std::int64_t i = 0; i < size; ++i)
    data[i] = static_cast<double>((i * 7919 + 31 * member + 977 * static_cast<int>(tensor)) % 1000) / 333.0 *
              (member % 2 == 0 ? 1.0 : 1e5);
  return values.to(type);
}

struct CollectiveCase {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::vector<RankId> members;
  int root = 0;
  std::vector<std::int64_t> sizes;
  int absent = -1;  ///< a member without the last tensor
  at::ScalarType type = at::kFloat;
};

/// Every member's tensors behind the collective, of the ranks of this process.
Result<std::vector<std::vector<at::Tensor>>> run_collectives(const std::vector<CollectiveCase>& cases,
                                                             Transport& transport, RankRange here) {
  std::vector<std::vector<at::Tensor>> results(cases.size());
  std::vector<std::vector<std::vector<at::Tensor>>> of_rank(static_cast<std::size_t>(here.size()));
  RankThreads threads(RankId{here.begin}, here.size());
  bool late = false;
  threads.run([&](RankId rank) {
    auto& mine = of_rank[rank.index() - static_cast<std::size_t>(here.begin)];
    mine.resize(cases.size());
    // Two at a time under way, so that their messages could mix.
    const auto finish = [&](std::size_t c) {
      if (mine[c].empty()) return;
      late |= transport.finish(static_cast<CollectiveId>(c), rank, Clock::now() + std::chrono::seconds(30)) !=
              WaitStatus::kReady;
    };
    for (std::size_t c = 0; c < cases.size(); ++c) {
      const CollectiveCase& one = cases[c];
      const auto place = std::find(one.members.begin(), one.members.end(), rank);
      if (place != one.members.end()) {
        for (std::size_t t = 0; t < one.sizes.size(); ++t) {
          const bool absent = place - one.members.begin() == one.absent && t + 1 == one.sizes.size();
          mine[c].push_back(absent ? at::Tensor() : elements(one.sizes[t], rank.value(), t, one.type));
        }
        transport.enter(static_cast<CollectiveId>(c), rank, mine[c]);
      }
      if (c > 0) finish(c - 1);
    }
    finish(cases.size() - 1);
  });
  if (late) return make_error(ErrorCode::kTimeout, "probe", "a collective did not end");
  for (std::size_t c = 0; c < cases.size(); ++c)
    for (const auto& mine : of_rank)
      for (const at::Tensor& tensor : mine[c]) results[c].push_back(tensor);
  return results;
}

}  // namespace

Result<> check_collectives(const std::shared_ptr<JobProcesses>& job) {
  constexpr int kRanks = 5;
  std::vector<CollectiveCase> cases;
  Routes routes{.num_ranks = kRanks, .transfers = {}, .collectives = {}};
  for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduce, CollectiveKind::kReduceScatter,
                                    CollectiveKind::kAllGather, CollectiveKind::kBroadcast})
    for (const std::vector<int>& members : {std::vector{0, 1, 2, 3, 4}, {0, 4}, {1, 2, 3}, {2}})
      for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{3}, {0, 17, 1}, {70001, 5, 1024}})
        for (const bool absent : {false, true})
          for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
            CollectiveCase one{.kind = kind, .members = {}, .sizes = sizes, .type = type};
            for (const int member : members) one.members.push_back(RankId{member});
            one.root = members.back();
            if (absent && kind != CollectiveKind::kReduceScatter && members.size() > 1) one.absent = 0;
            routes.collectives.push_back({.kind = kind,
                                          .members = one.members,
                                          .root = RankId{one.root},
                                          .value = Value::weight_grad(GroupId{static_cast<int>(cases.size())})});
            cases.push_back(one);
          }
  const RankRange here = ranks_of_process(job->index(), job->size(), kRanks);
  PLAIT_TRY(auto inner, job->open(routes, here));
  PLAIT_TRY(const auto transport, wrap(std::move(inner), job.get()));
  const auto alone = make_in_process_transport(routes);
  alone->begin_step();
  PLAIT_TRY(const auto expected, run_collectives(cases, *alone, RankRange{.begin = 0, .end = kRanks}));
  for (int step = 0; step < 3; ++step) {
    // Only then may others send.
    transport->begin_step();
    PLAIT_TRY_VOID(job->meet());
    PLAIT_TRY(const auto results, run_collectives(cases, *transport, here));
    std::string difference;
    for (std::size_t c = 0; c < cases.size(); ++c) {
      std::size_t first = 0;  // of this process among the members' tensors
      for (const RankId member : cases[c].members)
        if (member.value() < here.begin) first += cases[c].sizes.size();
      for (std::size_t i = 0; i < results[c].size(); ++i) {
        const at::Tensor& result = results[c][i];
        const at::Tensor& want = expected[c][first + i];
        if (result.defined() != want.defined() || (result.defined() && !at::equal(result, want)))
          difference += fmt::format(" collective {} tensor {}", c, i);
      }
      // Of a segment that a reduction leaves behind nothing is promised, yet it is the same where nothing is written.
    }
    PLAIT_TRY(const auto all, job->gather(difference));
    for (std::size_t process = 0; process < all.size(); ++process)
      say(*job, fmt::format("collectives of step {} on process {}", step, process), all[process]);
    PLAIT_TRY_VOID(job->meet());
  }
  return {};
}

namespace {

/// Rank 0 sends to rank 1, on the other side; forms that came up in stashes and in payloads.
Message message_of(int form, Value value) {
  Message message{.value = value, .tensors = {}, .counts = {}};
  const at::Tensor large = elements(3 << 20, 1, 0, at::kFloat);
  switch (form) {
    case 0: break;  // nothing at all
    case 1: message.tensors = {elements(5, 1, 0, at::kFloat), at::Tensor(), elements(0, 1, 0, at::kDouble)}; break;
    case 2: {  // views of one storage, one of them turned
      const at::Tensor whole = elements(6 * 8 * 4, 2, 0, at::kBFloat16).view({6, 8, 4});
      message.tensors = {whole.narrow(2, 0, 2), whole.transpose(0, 1), whole.narrow(0, 3, 2)};
      message.counts = {1, 2};
      break;
    }
    case 3: message.tensors = {large.view({1024, 3072}).narrow(1, 17, 9)}; break;  // wide gaps
    case 5:  // many: the head alone is larger than what lies ready for a message
      for (int i = 0; i < 150; ++i) message.tensors.push_back(elements(i, i, 0, at::kFloat));
      message.counts = {150};
      break;
    case 4: message.tensors = {large, elements(1, 3, 0, at::kDouble), large.narrow(0, 100, 7)}; break;
    default: message.tensors = {elements(std::int64_t{1} << form, 4, 0, at::kDouble)}; break;
  }
  return message;
}

std::string difference_of(const Message& a, const Message& b) {
  if (a.value != b.value || a.counts != b.counts || a.tensors.size() != b.tensors.size())
    return "name, counts or number";
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    const at::Tensor& x = a.tensors[i];
    const at::Tensor& y = b.tensors[i];
    if (x.defined() != y.defined()) return fmt::format("tensor {} there or not", i);
    if (!x.defined()) continue;
    if (x.scalar_type() != y.scalar_type() || x.sizes() != y.sizes() || !at::equal(x, y))
      return fmt::format("tensor {}", i);
    const bool gaps = a.tensors.size() == 1 && !y.is_contiguous();
    if (!gaps && x.numel() > 0 && x.strides() != y.strides()) return fmt::format("strides of tensor {}", i);
  }
  if (a.tensors.size() == 3 && a.counts.size() == 2 && !a.tensors[0].is_alias_of(a.tensors[1])) return "one storage";
  return {};
}

}  // namespace

Result<> check_messages(const std::shared_ptr<JobProcesses>& job) {
  constexpr int kForms = 22;
  Routes routes{.num_ranks = 2, .transfers = {}, .collectives = {}};
  for (int form = 0; form < kForms; ++form)
    routes.transfers.push_back({.source = RankId{0},
                                .destination = RankId{1},
                                .value = Value::activation(EdgeId{0}, MicrobatchId{form}, SliceId{0})});
  PLAIT_TRY(auto inner, job->open(routes, ranks_of_process(job->index(), job->size(), 2)));
  PLAIT_TRY(const auto transport, wrap(std::move(inner), job.get()));
  for (int step = 0; step < 3; ++step) {
    transport->begin_step();
    PLAIT_TRY_VOID(job->meet());
    std::string difference;
    const Clock::time_point deadline = Clock::now() + std::chrono::seconds(60);
    for (int at = 0; at < kForms; ++at) {
      // In another order than they are sent, and some posted early; by a line of NCCL, in order, as the verifier wants them.
      const int form = job->index() == 0 || probe_way().over_nccl ? at : kForms - 1 - at;
      const Value value = routes.transfers[static_cast<std::size_t>(form)].value;
      if (job->index() == 0) {
        transport->send(form, message_of(form, value));
        continue;
      }
      for (int other = form; other >= 0 && other > form - (probe_way().over_nccl ? 1 : 3); --other)
        transport->post_receive(other);
    }
    for (int at = 0; at < kForms; ++at) {
      const int form = probe_way().over_nccl ? kForms - 1 - at : at;
      if (job->index() == 0) {
        if (transport->wait_sent(form, deadline) != WaitStatus::kReady) difference += fmt::format(" {} is late", form);
        continue;
      }
      Message message;
      if (transport->receive(form, message, deadline) != WaitStatus::kReady)
        difference += fmt::format(" {} is late", form);
      else if (const std::string what =
                   difference_of(message, message_of(form, routes.transfers[static_cast<std::size_t>(form)].value));
               !what.empty())
        difference += fmt::format(" {}: {}", form, what);
    }
    PLAIT_TRY(const auto all, job->gather(difference));
    for (std::size_t process = 0; process < all.size(); ++process)
      say(*job, fmt::format("messages of step {} on process {}", step, process), all[process]);
  }
  return {};
}

namespace {}  // namespace

/// Ranks 0 and 1, then 2 and 3, are groups. Both of the first send 10,000 bytes to the second, at 100,000 bytes/s and 50 ms:
/// they leave by one port one after the other, whatever processes they are in. Then all reduce.
Result<> check_links(const std::shared_ptr<JobProcesses>& job) {
  constexpr std::chrono::milliseconds kBusy{100};
  constexpr std::chrono::milliseconds kLatency{50};
  Routes routes{.num_ranks = 4, .transfers = {}, .collectives = {}};
  for (const int rank : {0, 1})
    routes.transfers.push_back({.source = RankId{rank},
                                .destination = RankId{rank + 2},
                                .value = Value::activation(EdgeId{0}, MicrobatchId{rank}, SliceId{0})});
  routes.collectives.push_back({.kind = CollectiveKind::kAllReduce,
                                .members = {RankId{0}, RankId{1}, RankId{2}, RankId{3}},
                                .root = RankId{0},
                                .value = Value::norm()});
  const RankRange here = ranks_of_process(job->index(), job->size(), routes.num_ranks);
  PLAIT_TRY(auto inner, job->open(routes, here));
  const EmulatedLink outer{.latency = Nanos{std::chrono::nanoseconds(kLatency).count()}, .bytes_per_second = 1e5};
  PLAIT_TRY(const auto transport,
            emulate_cluster({.ranks_per_group = 2, .inner = {}, .outer = outer})(std::move(inner), job.get()));
  for (int step = 0; step < 3; ++step) {
    transport->begin_step();
    PLAIT_TRY_VOID(job->meet());
    const Clock::time_point deadline = Clock::now() + std::chrono::seconds(30);
    // Of each rank: when it sent or had received, entered, and was through.
    std::vector<std::array<std::int64_t, 3>> times(static_cast<std::size_t>(here.size()));
    std::atomic<bool> late = false;
    RankThreads threads(RankId{here.begin}, here.size());
    threads.run([&](RankId rank) {
      auto& mine = times[rank.index() - static_cast<std::size_t>(here.begin)];
      const TransferId id = rank.value() % 2;
      const auto now = [] { return Clock::now().time_since_epoch().count(); };
      if (rank.value() < 2) {
        mine[0] = now();
        transport->send(id, {.value = routes.transfers[static_cast<std::size_t>(id)].value,
                             .tensors = {elements(2500, 1, 0, at::kFloat)},
                             .counts = {}});
      } else {
        Message message;
        transport->post_receive(id);
        late = late || transport->receive(id, message, deadline) != WaitStatus::kReady;
        mine[0] = now();
      }
      const at::Tensor summand = elements(100, rank.value(), 0, at::kFloat);
      mine[1] = now();
      transport->enter(0, rank, {&summand, 1});
      late = late || transport->finish(0, rank, deadline) != WaitStatus::kReady;
      mine[2] = now();
      if (rank.value() < 2) late = late || transport->wait_sent(id, deadline) != WaitStatus::kReady;
    });
    if (late) return make_error(ErrorCode::kTimeout, "probe", "something did not arrive");
    PLAIT_TRY(const auto all, job->gather(ByteWriter().put_list(times).take()));
    std::vector<std::array<std::int64_t, 3>> of_all;
    for (const std::string& bytes : all)
      for (const auto& one : ByteReader(bytes).get_list<std::array<std::int64_t, 3>>()) of_all.push_back(one);
    if (of_all.empty()) continue;
    const auto since = [](std::int64_t from, std::int64_t to) { return Clock::duration(to - from); };
    const auto last = std::max(of_all[2][0], of_all[3][0]);
    const Clock::duration both = since(std::min(of_all[0][0], of_all[1][0]), last);
    say(*job, fmt::format("port of step {}", step),
        both >= 2 * kBusy + kLatency ? "" : fmt::format("{} ns for both", both.count()));
    std::int64_t all_in = 0;
    std::int64_t first_out = of_all[0][2];
    for (const auto& one : of_all) {
      all_in = std::max(all_in, one[1]);
      first_out = std::min(first_out, one[2]);
    }
    // Twice three hops, each with a quarter of 400 bytes.
    const Clock::duration ring = 6 * (kLatency + std::chrono::milliseconds(1));
    say(*job, fmt::format("ring of step {}", step),
        since(all_in, first_out) >= ring ? "" : fmt::format("{} ns", (first_out - all_in)));
  }
  return {};
}

}  // namespace plait::testing
