#include "plait/base/check.h"
#include "plait/sim/replay.h"

#include <algorithm>

namespace plait::sim_detail {
namespace {

std::size_t mix(std::size_t seed, std::size_t value) {
  return (seed ^ (value + 0x9e3779b97f4a7c15ULL + (seed << 6) + (seed >> 2))) * 0xff51afd7ed558ccdULL;
}

std::size_t hash_of(const Value& value) {
  std::size_t seed = mix(static_cast<std::size_t>(value.kind()), value.edge().index());
  seed = mix(seed, value.microbatch().index());
  return mix(seed, value.slice().index());
}

}  // namespace

std::size_t RouteKeyHash::operator()(const RouteKey& key) const noexcept {
  return mix(mix(hash_of(key.value), static_cast<std::size_t>(key.from)), static_cast<std::size_t>(key.to));
}

std::size_t CollectiveHash::operator()(const Collective& collective) const noexcept {
  return mix(mix(hash_of(collective.value), static_cast<std::size_t>(collective.kind)),
             mix(collective.ranks.index(), collective.root.index()));
}

bool Replay::valid(const Value& value) const {
  const auto subject = static_cast<std::size_t>(value.edge().value());
  switch (value.kind()) {
    case ValueKind::kActivation:
    case ValueKind::kGradient:
      return subject < layout_.edges.size() && value.microbatch().index() < num_microbatches_ &&
             value.slice().index() < num_slices_ &&
             (value.kind() == ValueKind::kActivation || layout_.mode == Mode::kTrain);
    case ValueKind::kStash:
    case ValueKind::kWeightStash:
    case ValueKind::kKv:
    case ValueKind::kKvGrad:
      return subject < layout_.stages.size() && value.microbatch().index() < num_microbatches_ &&
             value.slice().index() < num_slices_;
    case ValueKind::kWeight:
    case ValueKind::kWeightGrad: return subject < layout_.groups.size();
    case ValueKind::kNorm: return true;
  }
  return false;
}

EdgeCell* Replay::edge_of(const Value& value) {
  if (!value.is_edge()) return nullptr;
  auto& cells = value.kind() == ValueKind::kActivation ? activations_ : gradients_;
  return &cells[edge_cell(value.edge().index(), value.microbatch(), value.slice())];
}

OpCell* Replay::stash_of(const Value& value) {
  if (value.kind() != ValueKind::kStash && value.kind() != ValueKind::kWeightStash) return nullptr;
  return &ops_[edge_cell(value.stage().index(), value.microbatch(), value.slice())];
}

Message& Replay::message_of(const Value& value, std::int32_t from, std::int32_t to, Role role) {
  if (EdgeCell* cell = edge_of(value)) {
    Message& message = cell->message;
    if (message.from == kNobody && role != Role::kWait) {
      message.from = from;
      message.to = to;
    }
    const bool used = (role == Role::kSend && message.send_done) || (role == Role::kRecv && message.recv_done);
    if (message.from == from && message.to == to && !used) return message;
  }
  Route& route = routes_[RouteKey{.value = value, .from = from, .to = to}];
  const std::size_t index = role == Role::kSend   ? route.next_send
                            : role == Role::kRecv ? route.next_recv
                                                  : route.next_wait;
  while (route.messages.size() <= index) route.messages.push_back(Message{.from = from, .to = to, .is_route = true});
  return route.messages[index];
}

/// The lane is past the instruction: the next one of this value and channel is another message.
Replay::Progress Replay::close(Message& message, const Value& value, Role role) {
  if (role == Role::kSend) message.send_done = true;
  if (role == Role::kRecv) message.recv_done = true;
  if (message.is_route) {
    Route& route = routes_[RouteKey{.value = value, .from = message.from, .to = message.to}];
    ++(role == Role::kSend ? route.next_send : role == Role::kRecv ? route.next_recv : route.next_wait);
  }
  return Progress::kDone;
}

std::int64_t Replay::buffer_bytes(const Value& value) const {
  const std::int64_t bytes = value_bytes(costs_, value).value();
  const std::int64_t block = costs_.block_bytes.value();
  return block == 1 ? bytes : (bytes + block - 1) / block * block;
}

void Replay::hold_bytes(std::size_t rank, std::int64_t bytes) {
  Lane& lane = lanes_[rank];
  lane.bytes += bytes;
  if (lane.bytes > lane.peak_bytes) {
    lane.peak_bytes = lane.bytes;
    lane.peak_position = static_cast<int>(lane.next);
  }
}

void Replay::stand_still(std::size_t rank, std::int64_t until) {
  Lane& lane = lanes_[rank];
  if (until <= lane.clock) return;
  lane.exposed_since_op += until - lane.clock;
  lane.clock = until;
}

std::int64_t Replay::arrival(std::int32_t from, std::int32_t to, std::int64_t now, std::int64_t bytes) {
  if (options_.transfers == TransferMode::kFree) return now;
  if (!ordered_) return now + costs_.latency;
  const Cluster& cluster = *costs_.cluster;
  const auto source = static_cast<std::size_t>(from);
  const auto target = static_cast<std::size_t>(to);
  const bool inside = cluster.node_of[source] == cluster.node_of[target];
  const Link& link = inside ? cluster.inner : cluster.outer;
  const auto port = [&](std::size_t rank) {
    const auto ports = static_cast<std::size_t>(cluster.outer_ports);
    return static_cast<std::size_t>(cluster.node_of[rank]) * ports + rank % ports;
  };
  std::int64_t& out = inside ? inner_out_[source] : outer_out_[port(source)];
  std::int64_t& in = inside ? inner_in_[target] : outer_in_[port(target)];
  const std::int64_t start = std::max({now, out, in});
  const std::int64_t end = start + wire_ticks(cluster, link, Bytes{bytes});
  out = end;
  in = end;
  return end + link.latency_ticks;
}

void Replay::depart(const Value& value, Message& message, std::int64_t now) {
  const std::int64_t bytes = value_bytes(costs_, value).value();
  message.left = now;
  message.arrived = arrival(message.from, message.to, now, bytes);
  message.is_moving = true;
  ++transfers_.count;
  transfers_.bytes += bytes;
  if (timeline_)
    messages_.push_back(TransferTime{.from = RankId{message.from},
                                     .to = RankId{message.to},
                                     .value = value,
                                     .sent = now,
                                     .arrived = message.arrived,
                                     .bytes = bytes});
}

void Replay::deliver(const Value& value, const Message& message) {
  const auto target = static_cast<std::size_t>(message.to);
  if (EdgeCell* edge = edge_of(value)) {
    edge->holder = message.to;
    edge->message.arrived = message.arrived;
    edge->message.left = message.left;
    wake(edge->waiter, message.arrived);
  } else if (OpCell* stash = stash_of(value)) {
    stash->holder = message.to;
    stash->ready = message.arrived;
    stash->left = message.left;
    Lane& lane = lanes_[target];
    lane.peak_stashes = std::max(lane.peak_stashes, ++lane.stashes);
    wake(stash->waiter, message.arrived);
  } else if (value.is_group()) {
    GroupCell& cell = groups_[value.group().index() * num_ranks_ + target];
    if (value.kind() == ValueKind::kWeight) {
      cell.copies.push_back({.ready = message.arrived, .left = message.left});
    } else {
      const auto posted = std::find_if(cell.partials.begin(), cell.partials.end(), [&](const GroupCell::Partial& p) {
        return p.from == message.from && !p.arrives;
      });
      PLAIT_CHECK(posted != cell.partials.end(), "a partial gradient came that nobody receives");
      posted->arrives = true;
      posted->ready = message.arrived;
      posted->left = message.left;
    }
    push(message.to, message.arrived);
  }
}

/// The sender gives its value away; it must hold it.
Replay::Progress Replay::take_for_send(std::size_t rank, const Send& send) {
  const auto here = static_cast<std::int32_t>(rank);
  if (!valid(send.value) || send.peer.index() >= num_ranks_ || send.peer.index() == rank)
    return fail(rank, "sim.unverified", "value or peer is out of range");
  if (EdgeCell* edge = edge_of(send.value)) {
    if (edge->holder != here) {
      wait_on(edge->waiter, rank);
      return Progress::kBlocked;
    }
    stand_still(rank, edge->message.arrived);
    edge->holder = kNobody;
  } else if (OpCell* stash = stash_of(send.value)) {
    if (stash->holder != here) {
      wait_on(stash->waiter, rank);
      return Progress::kBlocked;
    }
    stand_still(rank, stash->ready);
    stash->holder = kNobody;
    --lanes_[rank].stashes;
  } else if (send.value.is_group()) {
    GroupCell& cell = groups_[send.value.group().index() * num_ranks_ + rank];
    if (send.value.kind() == ValueKind::kWeight) {
      if (!cell.readable()) return Progress::kBlocked;
      stand_still(rank, cell.ready());
    } else if (cell.partial) {
      cell.partial = false;
    } else if (!cell.partials.empty() && cell.partials.front().arrives) {
      // A partial that only passes through.
      stand_still(rank, cell.partials.front().ready);
      cell.partials.pop_front();
    } else {
      return Progress::kBlocked;  // whoever brings it wakes this rank
    }
  }
  return Progress::kDone;
}

Replay::Progress Replay::send(std::size_t rank, const Send& send) {
  Lane& lane = lanes_[rank];
  const auto here = static_cast<std::int32_t>(rank);
  const std::int32_t peer = send.peer.value();
  if (!valid(send.value) || send.peer.index() >= num_ranks_ || send.peer.index() == rank)
    return fail(rank, "sim.unverified", "value or peer is out of range");
  if (options_.transfers == TransferMode::kBounded && !in_batch(rank)) {
    Channel& channel = channels_[rank * num_ranks_ + send.peer.index()];
    if (channel.taken == options_.buffers && channel.released.empty()) {
      channel.waiter = here;
      return Progress::kBlocked;
    }
  }
  Message& message = message_of(send.value, here, peer, Role::kSend);
  if (!message.is_sent) {
    if (const Progress progress = take_for_send(rank, send); progress != Progress::kDone) return progress;
    message.is_sent = true;
    message.left = lane.clock;
    if (!at_both_ends(send.value)) lane.bytes -= buffer_bytes(send.value);
  }
  if (in_batch(rank) && options_.transfers != TransferMode::kBounded) {
    post(rank, &message, send.value);
    return close(message, send.value, Role::kSend);
  }
  switch (options_.transfers) {
    case TransferMode::kFree:
    case TransferMode::kFixed:
    case TransferMode::kBuffered: depart(send.value, message, lane.clock); break;
    case TransferMode::kBounded: {
      if (in_batch(rank)) {  // needs no slot
        depart(send.value, message, lane.clock);
        break;
      }
      Channel& channel = channels_[rank * num_ranks_ + send.peer.index()];
      if (channel.taken < options_.buffers) {
        ++channel.taken;
      } else {
        stand_still(rank, channel.released.front());
        channel.released.pop_front();
      }
      depart(send.value, message, lane.clock);
      if (message.is_posted) channel.released.push_back(std::max(message.posted, message.arrived));
      break;
    }
    case TransferMode::kRendezvous:
    case TransferMode::kBlocking:
      if (!message.is_moving) {
        if (!message.is_posted) return Progress::kBlocked;  // the receiver wakes this rank
        depart(send.value, message, std::max(lane.clock, message.posted));
        deliver(send.value, message);
        push(peer, message.left);
      }
      stand_still(rank, options_.transfers == TransferMode::kBlocking ? message.arrived : message.left);
      return close(message, send.value, Role::kSend);
  }
  if (message.is_posted) deliver(send.value, message);
  return close(message, send.value, Role::kSend);
}

Replay::Progress Replay::recv(std::size_t rank, const Recv& recv) {
  Lane& lane = lanes_[rank];
  const auto here = static_cast<std::int32_t>(rank);
  const std::int32_t peer = recv.peer.value();
  if (!valid(recv.value) || recv.peer.index() >= num_ranks_ || recv.peer.index() == rank)
    return fail(rank, "sim.unverified", "value or peer is out of range");
  Message& message = message_of(recv.value, peer, here, Role::kRecv);
  if (!message.is_posted) {
    message.is_posted = true;
    message.posted = lane.clock;
    if (recv.value.kind() == ValueKind::kWeightGrad)
      groups_[recv.value.group().index() * num_ranks_ + rank].partials.push_back({.from = peer});
    if (at_both_ends(recv.value)) hold_bytes(rank, buffer_bytes(recv.value));
  }
  if (in_batch(rank) && options_.transfers != TransferMode::kBounded) {
    post(rank, &message, recv.value);
    return close(message, recv.value, Role::kRecv);
  }
  switch (options_.transfers) {
    case TransferMode::kFree:
    case TransferMode::kFixed:
    case TransferMode::kBuffered:
    case TransferMode::kBounded:
      if (message.is_sent) deliver(recv.value, message);
      if (options_.transfers == TransferMode::kBounded && message.is_sent && !in_batch(rank)) {
        Channel& channel = channels_[static_cast<std::size_t>(peer) * num_ranks_ + rank];
        channel.released.push_back(std::max(message.posted, message.arrived));
        wake(channel.waiter, channel.released.back());
      }
      if (message.sender_waits) push(peer, lane.clock);
      return close(message, recv.value, Role::kRecv);
    case TransferMode::kRendezvous:
    case TransferMode::kBlocking:
      if (!message.is_moving) {
        if (!message.is_sent) return Progress::kBlocked;  // the sender wakes this rank
        depart(recv.value, message, std::max(lane.clock, message.left));
        deliver(recv.value, message);
        push(peer, message.left);
      }
      stand_still(rank, options_.transfers == TransferMode::kBlocking ? message.arrived : message.left);
      return close(message, recv.value, Role::kRecv);
  }
  return Progress::kDone;
}

Replay::Progress Replay::wait_send(std::size_t rank, const WaitSend& wait) {
  const auto here = static_cast<std::int32_t>(rank);
  if (!valid(wait.value) || wait.peer.index() >= num_ranks_)
    return fail(rank, "sim.unverified", "value or peer is out of range");
  Message& message = message_of(wait.value, here, wait.peer.value(), Role::kWait);
  if (!message.is_sent) return fail(rank, "sim.unverified", "waits for a send that was not issued");
  // A weight or its gradient is sent out of a buffer of its own, which is read until the peer takes it. All else is given
  // away, and buffers without limit take it at once.
  const bool handed_over = !wait.value.is_group() &&
                           (options_.transfers == TransferMode::kFree || options_.transfers == TransferMode::kFixed ||
                            options_.transfers == TransferMode::kBuffered);
  const bool blocked = options_.transfers == TransferMode::kRendezvous || options_.transfers == TransferMode::kBlocking;
  if (!handed_over) {
    if (!message.is_moving || !message.is_posted) {
      message.sender_waits = true;  // the receiver wakes this rank
      return Progress::kBlocked;
    }
    if (!blocked || message.in_batch) stand_still(rank, std::max(message.posted, message.arrived));
  }
  // A weight that was sent is still here: it ends with its Free.
  if (at_both_ends(wait.value) && wait.value.kind() != ValueKind::kWeight)
    lanes_[rank].bytes -= buffer_bytes(wait.value);
  return close(message, wait.value, Role::kWait);
}

// --- batches ---

void Replay::make_batches() {
  struct End {
    std::int32_t send = kNobody;
    std::int32_t recv = kNobody;
  };
  std::unordered_map<RouteKey, std::vector<End>, RouteKeyHash> ends;
  std::unordered_map<RouteKey, std::pair<std::size_t, std::size_t>, RouteKeyHash> seen;
  batch_at_.resize(num_ranks_);
  for (std::size_t rank = 0; rank < num_ranks_; ++rank) {
    const Row& row = program_.rows[rank];
    batch_at_[rank].resize(row.size(), kNobody);
    std::size_t end = 0;  // of the latest batch
    for (std::size_t at = 0; at < row.size(); ++at) {
      if (const Batch* batch = std::get_if<Batch>(&row[at])) {
        batches_.push_back(PostedBatch{.parent = static_cast<std::int32_t>(batches_.size())});
        end = at + 1 + static_cast<std::size_t>(std::max(batch->count, 0));
      }
      if (at >= end) continue;
      const Send* send = std::get_if<Send>(&row[at]);
      const Recv* recv = std::get_if<Recv>(&row[at]);
      const std::int32_t peer = send != nullptr ? send->peer.value() : recv != nullptr ? recv->peer.value() : kNobody;
      if (peer != kNobody) {
        const auto batch = static_cast<std::int32_t>(batches_.size()) - 1;
        ++batches_.back().missing;
        batch_at_[rank][at] = batch;
        const auto here = static_cast<std::int32_t>(rank);
        const RouteKey key{.value = send != nullptr ? send->value : recv->value,
                           .from = send != nullptr ? here : peer,
                           .to = send != nullptr ? peer : here};
        auto& count = seen[key];
        const std::size_t index = send != nullptr ? count.first++ : count.second++;
        auto& list = ends[key];
        if (list.size() <= index) list.resize(index + 1);
        (send != nullptr ? list[index].send : list[index].recv) = batch;
      }
    }
  }
  for (const auto& [key, list] : ends) {
    for (const End& end : list) {
      if (end.send == kNobody || end.recv == kNobody) continue;  // never moves; found as a deadlock
      const std::int32_t a = root_of(end.send);
      const std::int32_t b = root_of(end.recv);
      if (a == b) continue;
      batches_[static_cast<std::size_t>(std::max(a, b))].parent = std::min(a, b);
      batches_[static_cast<std::size_t>(std::min(a, b))].missing +=
          batches_[static_cast<std::size_t>(std::max(a, b))].missing;
    }
  }
}

std::int32_t Replay::root_of(std::int32_t batch) {
  while (batches_[static_cast<std::size_t>(batch)].parent != batch) {
    std::int32_t& parent = batches_[static_cast<std::size_t>(batch)].parent;
    parent = batches_[static_cast<std::size_t>(parent)].parent;
    batch = parent;
  }
  return batch;
}

void Replay::post(std::size_t rank, Message* message, const Value& value) {
  const std::int64_t now = lanes_[rank].clock;
  PostedBatch& batch = batches_[static_cast<std::size_t>(root_of(batch_at_[rank][lanes_[rank].next]))];
  batch.posted = std::max(batch.posted, now);
  message->in_batch = true;
  if (message->is_sent && message->is_posted) batch.messages.emplace_back(message, value);
  if (--batch.missing > 0) return;
  std::int64_t arrived = batch.posted;
  for (const auto& [moved, carried] : batch.messages) {
    depart(carried, *moved, batch.posted);
    arrived = std::max(arrived, moved->arrived);
  }
  for (const auto& [moved, carried] : batch.messages) {
    moved->arrived = arrived;
    deliver(carried, *moved);
    if (moved->sender_waits) push(moved->from, arrived);
  }
}

// --- weights, gradients, collectives ---

Replay::Progress Replay::weights_of(std::size_t rank, const Op& op, std::int64_t& ready, std::int64_t& left) {
  if (op.kind == OpKind::kBackwardWeight) return Progress::kDone;  // reads no weight
  for (const GroupId g : layout_.stages[op.stage.index()].groups) {
    const GroupCell& cell = groups_[g.index() * num_ranks_ + rank];
    if (cell.present) continue;
    if (cell.copies.empty()) return Progress::kBlocked;  // whoever brings it wakes this rank
    if (cell.copies.front().ready > ready) {
      ready = cell.copies.front().ready;
      left = cell.copies.front().left;
    }
  }
  return Progress::kDone;
}

Replay::Progress Replay::enter(std::size_t rank, const Collective& collective) {
  Lane& lane = lanes_[rank];
  if (!valid(collective.value) || collective.ranks.index() >= layout_.rank_sets.size())
    return fail(rank, "sim.unverified", "value or rank set is out of range");
  const std::vector<RankId>& members = layout_.rank_sets[collective.ranks.index()];
  if (!std::binary_search(members.begin(), members.end(), RankId{static_cast<std::int32_t>(rank)}))
    return fail(rank, "sim.unverified", "this rank is not a member");
  const bool brings_weight = collective.value.kind() == ValueKind::kWeight;
  GroupCell* here =
      collective.value.is_group() ? &groups_[collective.value.group().index() * num_ranks_ + rank] : nullptr;
  // A root may hand on what is still on its way to it: the lane does not wait, the broadcast does.
  const bool gives = brings_weight && collective.kind == CollectiveKind::kBroadcast && collective.root.index() == rank;
  if (gives && !here->readable()) return Progress::kBlocked;
  const std::size_t round = lane.rounds[collective]++;
  auto& rounds = collective_rounds_[collective];
  while (rounds.size() <= round) {
    rounds.push_back(collectives_.size());
    collectives_.emplace_back();
  }
  const std::size_t index = rounds[round];
  CollectiveState& state = collectives_[index];
  state.start = std::max(state.start, gives ? std::max(lane.clock, here->ready()) : lane.clock);
  if (collective.kind == CollectiveKind::kReduce) state.keeper = collective.root.index();
  if (collective.kind == CollectiveKind::kReduceScatter) state.keeper = num_ranks_;
  if (!brings_weight)
    lane.entered.emplace_back(WaitCollective{.kind = collective.kind, .value = collective.value}, index);
  const std::int64_t bytes = value_bytes(costs_, collective.value).value();
  if (brings_weight && !here->readable()) hold_bytes(rank, buffer_bytes(collective.value));
  if (++state.entered < members.size()) return Progress::kDone;
  state.complete = true;
  if (members.size() == 1 || options_.transfers == TransferMode::kFree) {
    state.done = state.start;
  } else if (costs_.cluster) {
    // One communicator runs its collectives in order.
    state.start = std::max(state.start, set_free_[collective.ranks.index()]);
    state.done = state.start + collective_ticks(*costs_.cluster, collective.kind, members, Bytes{bytes});
  } else {
    state.done = state.start + (brings_weight ? costs_.latency : 0);
  }
  set_free_[collective.ranks.index()] = state.done;
  for (const RankId member : members) {
    if (brings_weight) {
      GroupCell& cell = groups_[collective.value.group().index() * num_ranks_ + member.index()];
      if (!cell.readable()) cell.copies.push_back({.ready = state.done, .left = state.start});
    }
    if (member.index() != rank) push(member.value(), state.done);
  }
  return Progress::kDone;
}

Replay::Progress Replay::wait_collective(std::size_t rank, const WaitCollective& wait) {
  Lane& lane = lanes_[rank];
  const auto found =
      std::find_if(lane.entered.begin(), lane.entered.end(), [&](const auto& entry) { return entry.first == wait; });
  if (found == lane.entered.end()) return fail(rank, "sim.unverified", "waits for a collective that it did not enter");
  const CollectiveState& state = collectives_[found->second];
  if (!state.complete) return Progress::kBlocked;  // the last member wakes this rank
  if (state.done > lane.clock) {
    lane.exposed_since_op += state.done - std::max(lane.clock, state.start);
    lane.clock = state.done;
  }
  // What was given to another rank, or scattered, leaves its buffer now.
  const bool given = wait.value.kind() == ValueKind::kWeightGrad && state.keeper.value_or(rank) != rank;
  if (given) {
    GroupCell& cell = groups_[wait.value.group().index() * num_ranks_ + rank];
    if (cell.partial && !cell.kept) {
      cell.partial = false;
      lane.bytes -= buffer_bytes(wait.value);
    }
  }
  lane.entered.erase(found);
  return Progress::kDone;
}

Replay::Progress Replay::free_weight(std::size_t rank, const Free& free) {
  if (!valid(free.value) || free.value.kind() != ValueKind::kWeight)
    return fail(rank, "sim.unverified", "only a weight is freed");
  GroupCell& cell = groups_[free.value.group().index() * num_ranks_ + rank];
  if (cell.copies.empty()) return Progress::kBlocked;  // still under way, or never here
  stand_still(rank, cell.copies.front().ready);
  cell.copies.pop_front();
  lanes_[rank].bytes -= buffer_bytes(free.value);
  return Progress::kDone;
}

Replay::Progress Replay::add(std::size_t rank, const Add& add) {
  if (add.group.index() >= layout_.groups.size()) return fail(rank, "sim.unverified", "group is out of range");
  GroupCell& cell = groups_[add.group.index() * num_ranks_ + rank];
  if (cell.partials.empty() || !cell.partials.front().arrives) return Progress::kBlocked;  // the sender wakes this rank
  Lane& lane = lanes_[rank];
  const GroupCell::Partial partial = cell.partials.front();
  cell.partials.pop_front();
  if (partial.ready > lane.clock) {
    lane.exposed_since_op += partial.ready - std::max(lane.clock, partial.left);
    lane.clock = partial.ready;
  }
  const bool sums = cell.partial;
  const std::int64_t ticks = sums ? costs_.groups[add.group.index()].add_ticks : 0;
  lane.clock += ticks;
  lane.busy += ticks;
  if (ticks > 0) lane.last_busy_end = lane.clock;
  // The first one is taken as it is.
  if (sums) lane.bytes -= buffer_bytes(Value::weight_grad(add.group));
  cell.partial = true;
  return Progress::kDone;
}

}  // namespace plait::sim_detail
