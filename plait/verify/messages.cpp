#include "plait/verify/messages.h"

#include "plait/base/check.h"
#include "plait/verify/notation.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace plait::verifying {
namespace {

constexpr std::uint32_t kNone = UINT32_MAX;

enum class End : std::uint8_t { kSend, kReceive };

/// Collects the lanes of one end: one walk counts, one fills.
class LaneBuilder {
 public:
  LaneBuilder(const Space& space, const std::vector<Row>& rows)
      : space_(space), rows_(rows), slots_(rows.size() * 8, kNone) {}

  template <class Transfer>
  void build(End end, std::size_t total, std::vector<Lane>& lanes, std::vector<std::uint32_t>& begin,
             std::vector<Cell>& cells) {
    // Cells in row order and the lane of each; then a counting sort by lane, which is stable.
    std::vector<std::pair<std::uint32_t, Cell>> found;
    std::uint32_t filled = 0;
    cells.resize(total);
    std::vector<std::uint32_t> cursor;
    for (std::size_t rank = 0; rank < rows_.size(); ++rank) {
      const auto first = static_cast<std::uint32_t>(lanes.size());
      begin.push_back(first);
      found.clear();
      for (const Instr& instr : rows_[rank]) {
        const Transfer* transfer = std::get_if<Transfer>(&instr);
        if (transfer == nullptr) continue;
        std::uint32_t& slot = slots_[lane_slot(transfer->peer, transfer->value.kind())];
        if (slot == kNone) {
          slot = static_cast<std::uint32_t>(lanes.size());
          const auto here = static_cast<std::int32_t>(rank);
          const std::int32_t peer = transfer->peer.value();
          lanes.push_back(Lane{.from = end == End::kSend ? here : peer,
                               .to = end == End::kSend ? peer : here,
                               .kind = transfer->value.kind()});
        }
        ++lanes[slot].count;
        found.emplace_back(slot - first, space_.cell(transfer->value));
      }
      cursor.clear();
      for (std::size_t lane = first; lane < lanes.size(); ++lane) {
        lanes[lane].begin = filled;
        cursor.push_back(filled);
        filled += lanes[lane].count;
        slots_[lane_slot(RankId{end == End::kSend ? lanes[lane].to : lanes[lane].from}, lanes[lane].kind)] = kNone;
      }
      for (const auto& [lane, cell] : found) cells[cursor[lane]++] = cell;
    }
    begin.push_back(static_cast<std::uint32_t>(lanes.size()));
    cells.resize(filled);
  }

 private:
  const Space& space_;
  const std::vector<Row>& rows_;
  std::vector<std::uint32_t> slots_;
};

/// Compares lanes that do not agree and words what is wrong.
class Mismatches {
 public:
  Mismatches(const Space& space, const std::vector<Row>& rows, Messages& messages, Report& report)
      : space_(space), rows_(rows), messages_(messages), report_(report) {}

  struct Loose {
    Cell cell = 0;
    std::int32_t from = 0;
    std::int32_t to = 0;
    std::uint32_t index = 0;  ///< among the lane's sends or receives
    bool repeated = false;    ///< the lane has a matched message of the same value
  };

  /// Matches by name, first come first served, and reports the first place where the matched ones are out of order.
  void match_by_name(const Lane* out, const Lane* in, std::vector<MessageId>& of_receive) {
    std::map<Cell, std::vector<std::uint32_t>> waiting;  // newest last; taken from the front through `taken`
    std::map<Cell, std::uint32_t> taken;
    const std::uint32_t num_sends = out == nullptr ? 0 : out->count;
    for (std::uint32_t k = 0; k < num_sends; ++k) waiting[messages_.sends[out->begin + k]].push_back(k);
    std::vector<bool> received(num_sends);
    for (std::uint32_t k = 0; in != nullptr && k < in->count; ++k) {
      const Cell cell = messages_.receives[in->begin + k];
      const auto sends = waiting.find(cell);
      std::uint32_t& next = taken[cell];
      if (sends == waiting.end() || next >= sends->second.size()) {
        loose_receives_.push_back(
            Loose{.cell = cell, .from = in->from, .to = in->to, .index = k, .repeated = next > 0});
        of_receive.push_back(kNoMessage);
        continue;
      }
      const std::uint32_t send = sends->second[next++];
      received[send] = true;
      of_receive.push_back(out->begin + send);
    }
    for (std::uint32_t k = 0; k < num_sends; ++k) {
      if (received[k]) continue;
      const Cell cell = messages_.sends[out->begin + k];
      loose_sends_.push_back(
          Loose{.cell = cell, .from = out->from, .to = out->to, .index = k, .repeated = taken[cell] > 0});
      if (messages_.unmatched.empty()) messages_.unmatched.resize(messages_.sends.size());
      messages_.unmatched[out->begin + k] = true;
    }
    if (out != nullptr && in != nullptr) report_order(*out, *in, received, of_receive);
  }

  /// What is left over on both ends, after all lanes.
  void report_loose() {
    // Newest first, so that the oldest is taken from the back.
    std::unordered_map<Cell, std::vector<std::size_t>> by_value;
    std::map<LaneKey, std::vector<std::size_t>> by_lane;
    for (std::size_t k = loose_sends_.size(); k-- > 0;) {
      const Loose& send = loose_sends_[k];
      report_.suspect(send.cell);
      by_value[send.cell].push_back(k);
      if (!send.repeated) by_lane[lane_key(send)].push_back(k);
    }
    std::vector<bool> done(loose_sends_.size());
    const auto take = [&](auto& index, const auto& key) -> const Loose* {
      const auto found = index.find(key);
      if (found == index.end()) return nullptr;
      while (!found->second.empty()) {
        const std::size_t k = found->second.back();
        found->second.pop_back();
        if (done[k]) continue;
        done[k] = true;
        return &loose_sends_[k];
      }
      return nullptr;
    };
    std::vector<const Loose*> others;
    for (const Loose& receive : loose_receives_) {
      report_.suspect(receive.cell);
      if (receive.repeated) {
        report_receive(Rule::kDuplicateReceive, receive, [&] {
          return fmt::format("rank {} sends it fewer times than it is received; remove one receive", receive.from);
        });
      } else if (const Loose* send = take(by_value, receive.cell)) {
        // On its way to, or from, another rank than the receive thinks.
        report_receive(Rule::kWrongPeer, receive, [&] {
          return fmt::format("expects it from rank {}, but it is sent from rank {} to rank {} ({}); correct the peer",
                             receive.from, send->from, send->to, place(*send));
        });
      } else {
        others.push_back(&receive);
      }
    }
    for (const Loose* receive : others) {
      if (const Loose* send = take(by_lane, lane_key(*receive))) {
        report_receive(Rule::kMessageMismatch, *receive, [&] {
          return fmt::format(
              "expects the {}, but rank {} sends the {} in its stead ({}); name the same value on both ends",
              name(receive->cell), send->from, name(send->cell), place(*send));
        });
      } else {
        report_receive(Rule::kReceiveWithoutSend, *receive, [&] {
          return fmt::format("rank {} never sends the {} to rank {}; add the send, or remove the receive",
                             receive->from, name(receive->cell), receive->to);
        });
      }
    }
    for (std::size_t k = 0; k < loose_sends_.size(); ++k)
      if (!done[k]) report_send(loose_sends_[k]);
  }

 private:
  using LaneKey = std::tuple<std::int32_t, std::int32_t, ValueKind>;
  [[nodiscard]] LaneKey lane_key(const Loose& loose) const { return {loose.from, loose.to, kind(loose.cell)}; }

  [[nodiscard]] std::string name(Cell cell) const { return describe(space_.layout(), space_.value(cell)); }

  template <class Body>
  void report_receive(Rule rule, const Loose& receive, const Body& body) {
    report_.at(
        rule, static_cast<std::size_t>(receive.to), [&] { return position_of<Recv>(receive, End::kReceive); }, body);
  }

  void report_send(const Loose& send) {
    report_.at(
        send.repeated ? Rule::kDuplicateSend : Rule::kSendWithoutReceive, static_cast<std::size_t>(send.from),
        [&] { return position_of<Send>(send, End::kSend); },
        [&] {
          return send.repeated
                     ? fmt::format("rank {} receives it fewer times than it is sent; remove one send", send.to)
                     : fmt::format("rank {} never receives the {} from rank {}; add the receive, or remove the send",
                                   send.to, name(send.cell), send.from);
        });
  }

  [[nodiscard]] ValueKind kind(Cell cell) const { return space_.value(cell).kind(); }

  /// Finds the row position of a lane's n-th transfer. Only for messages, so a walk over the row is good enough.
  template <class Transfer>
  [[nodiscard]] std::size_t position_of(const Loose& loose, End end) const {
    const auto rank = static_cast<std::size_t>(end == End::kSend ? loose.from : loose.to);
    const RankId peer{end == End::kSend ? loose.to : loose.from};
    std::uint32_t seen = 0;
    for (std::size_t at = 0; at < rows_[rank].size(); ++at) {
      const Transfer* transfer = std::get_if<Transfer>(&rows_[rank][at]);
      if (transfer != nullptr && transfer->peer == peer && transfer->value.kind() == kind(loose.cell) &&
          seen++ == loose.index)
        return at;
    }
    PLAIT_CHECK(false, "transfer {} of a lane is not in row {}", loose.index, rank);
  }

  [[nodiscard]] std::string place(const Loose& send) const {
    const std::size_t at = position_of<Send>(send, End::kSend);
    return fmt::format("rank {}, position {}, {}", send.from, at,
                       report_.name(static_cast<std::size_t>(send.from), at));
  }

  void report_order(const Lane& out, const Lane& in, const std::vector<bool>& received,
                    const std::vector<MessageId>& of_receive) {
    std::uint32_t next = 0;
    for (std::uint32_t k = 0; k < in.count; ++k) {
      if (of_receive[k] == kNoMessage) continue;
      while (!received[next]) ++next;
      const std::uint32_t expected = next++;
      if (of_receive[k] == out.begin + expected) continue;
      const Loose receive{.cell = messages_.receives[in.begin + k], .from = in.from, .to = in.to, .index = k};
      const Loose send{
          .cell = messages_.sends[out.begin + expected], .from = out.from, .to = out.to, .index = expected};
      report_receive(Rule::kMessageOrder, receive, [&] {
        return fmt::format("receives the {} where rank {} sends the {} ({}); receive in the order of the sends",
                           name(receive.cell), in.from, name(send.cell), place(send));
      });
      return;  // what follows on the lane is a consequence
    }
  }

  const Space& space_;
  const std::vector<Row>& rows_;
  Messages& messages_;
  Report& report_;
  std::vector<Loose> loose_sends_;
  std::vector<Loose> loose_receives_;
};

}  // namespace

const Lane& Messages::lane_of(MessageId message) const {
  const auto after =
      std::upper_bound(out.begin(), out.end(), message, [](MessageId id, const Lane& lane) { return id < lane.begin; });
  return *(after - 1);
}

Messages match_messages(const Space& space, const std::vector<Row>& rows, const Structure& structure, Report& report) {
  Messages messages;
  LaneBuilder builder(space, rows);
  builder.build<Send>(End::kSend, structure.num_sends, messages.out, messages.out_begin, messages.sends);
  builder.build<Recv>(End::kReceive, structure.num_receives, messages.in, messages.in_begin, messages.receives);

  const auto key = [](const Lane& lane) { return std::tuple(lane.from, lane.to, lane.kind); };
  std::vector<std::uint32_t> by_key(messages.in.size());
  for (std::uint32_t k = 0; k < by_key.size(); ++k) by_key[k] = k;
  std::sort(by_key.begin(), by_key.end(),
            [&](std::uint32_t a, std::uint32_t b) { return key(messages.in[a]) < key(messages.in[b]); });

  messages.out_of_in.assign(messages.in.size(), kNoMessage);
  messages.remapped.resize(messages.in.size());
  Mismatches mismatches(space, rows, messages, report);
  for (std::uint32_t o = 0; o < messages.out.size(); ++o) {
    const Lane& out = messages.out[o];
    const auto found =
        std::lower_bound(by_key.begin(), by_key.end(), key(out),
                         [&](std::uint32_t k, const auto& wanted) { return key(messages.in[k]) < wanted; });
    if (found == by_key.end() || key(messages.in[*found]) != key(out)) {
      std::vector<MessageId> none;
      mismatches.match_by_name(&out, nullptr, none);
      continue;
    }
    const Lane& in = messages.in[*found];
    messages.out_of_in[*found] = o;
    const bool same = in.count == out.count &&
                      std::equal(messages.sends.begin() + out.begin, messages.sends.begin() + out.begin + out.count,
                                 messages.receives.begin() + in.begin);
    if (!same) mismatches.match_by_name(&out, &in, messages.remapped[*found]);
  }
  for (std::uint32_t i = 0; i < messages.in.size(); ++i)
    if (messages.out_of_in[i] == kNoMessage) mismatches.match_by_name(nullptr, &messages.in[i], messages.remapped[i]);
  mismatches.report_loose();
  return messages;
}

}  // namespace plait::verifying
