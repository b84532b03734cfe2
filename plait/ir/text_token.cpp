#include "plait/ir/text_token.h"

#include "plait/ir/text_names.h"

#include <fmt/format.h>

#include <charconv>

namespace plait {

std::optional<std::int32_t> take_number(std::string_view& text) {
  if (text.empty() || text.front() < '0' || text.front() > '9') return {};
  std::int32_t number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc{}) return {};
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

TokenReader::TokenReader(const Layout& layout) : layout_(layout) {
  chain_ = layout.edges.size() + 1 == layout.stages.size();
  for (std::size_t e = 0; chain_ && e < layout.edges.size(); ++e)
    chain_ = layout.edges[e].producer.index() == e && layout.edges[e].consumer.index() == e + 1;
  for (std::size_t e = 0; !chain_ && e < layout.edges.size(); ++e) {
    const std::pair key{layout.edges[e].producer.value(), layout.edges[e].consumer.value()};
    const auto [at, inserted] = edges_.try_emplace(key, EdgeId{static_cast<std::int32_t>(e)});
    if (!inserted) at->second.reset();
  }
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    const auto [at, inserted] = groups_.try_emplace(layout.groups[g].name, GroupId{static_cast<std::int32_t>(g)});
    if (!inserted) at->second.reset();
  }
}

std::optional<EdgeId> TokenReader::edge_between(std::int32_t producer, std::int32_t consumer) const {
  if (chain_) {
    const bool there = consumer - 1 == producer && static_cast<std::size_t>(producer) < layout_.edges.size();
    return there ? std::optional(EdgeId{producer}) : std::nullopt;
  }
  const auto found = edges_.find({producer, consumer});
  return found == edges_.end() ? std::nullopt : found->second;
}

/// One token being read: what is left of it, and the first failure.
class TokenReader::Scan {
 public:
  Scan(const TokenReader& reader, std::string_view token, TokenError& error)
      : reader_(reader), token_(token), left_(token), error_(error) {}

  bool instruction(Row& row) {
    if (token_.size() == 1) {
      switch (token_.front()) {
        case '.': row.emplace_back(Idle{}); return true;
        case '|': row.emplace_back(Turn{}); return true;
        case '&': row.emplace_back(Pair{}); return true;
        default: break;
      }
    }
    if (!left_.empty() && left_.front() >= '0' && left_.front() <= '9') return op(row);
    const std::string_view word = take_word();
    if (word.empty() || !take('(')) return fail("an op such as 3F7, one of . | &, or a word and its (...)", token_);
    if (word == "send") return send(row);
    if (word == "recv") return recv(row);
    if (word == "wait") return wait(row);
    if (word == "free") return free(row);
    if (word == "add") return group_call<Add>(row);
    if (word == "step") return group_call<Step>(row);
    if (word == "validate") return validate(row);
    if (word == "batch") return batch(row);
    if (const auto kind = collective_kind(word)) return collective(row, *kind);
    return fail("send, recv, wait, free, add, step, validate, batch or the name of a collective", token_);
  }

 private:
  bool fail(std::string expected, std::string_view at) {
    error_.offset = static_cast<std::size_t>(at.data() - token_.data());
    error_.expected = std::move(expected);
    return false;
  }
  bool fail(std::string expected) { return fail(std::move(expected), left_); }

  bool take(char c) {
    if (left_.empty() || left_.front() != c) return false;
    left_.remove_prefix(1);
    return true;
  }
  bool take(std::string_view text) {
    if (!left_.starts_with(text)) return false;
    left_.remove_prefix(text.size());
    return true;
  }
  bool need(char c) { return take(c) || fail(fmt::format("'{}'", c)); }
  bool end() { return left_.empty() || fail("the end of the token"); }

  std::string_view take_word() {
    std::size_t size = 0;
    while (size < left_.size() && ((left_[size] >= 'a' && left_[size] <= 'z') || left_[size] == '_')) ++size;
    const std::string_view word = left_.substr(0, size);
    left_.remove_prefix(size);
    return word;
  }

  bool number(std::int32_t& result, std::string_view what) {
    const auto taken = take_number(left_);
    if (!taken) return fail(fmt::format("{} (a number)", what));
    result = *taken;
    return true;
  }

  bool data(std::int32_t& microbatch, std::int32_t& slice) {
    slice = 0;
    return number(microbatch, "a micro-batch") && (!take('.') || number(slice, "a slice"));
  }

  bool op(Row& row) {
    std::int32_t stage = 0;
    std::int32_t microbatch = 0;
    std::int32_t slice = 0;
    OpKind kind = OpKind::kForward;
    if (!number(stage, "a stage")) return false;
    if (take('F'))
      kind = OpKind::kForward;
    else if (take("BW"))
      kind = OpKind::kBackward;
    else if (take('B'))
      kind = OpKind::kBackwardInput;
    else if (take('W'))
      kind = OpKind::kBackwardWeight;
    else if (take('R'))
      kind = OpKind::kRecompute;
    else
      return fail("F, B, W, BW or R");
    if (!data(microbatch, slice) || !end()) return false;
    row.emplace_back(
        Op{.kind = kind, .stage = StageId{stage}, .microbatch = MicrobatchId{microbatch}, .slice = SliceId{slice}});
    return true;
  }

  bool group(GroupId& result) {
    const std::string_view at = left_;
    const Layout& layout = reader_.layout_;
    if (take('#')) {
      std::int32_t index = 0;
      if (!number(index, "the index of a group")) return false;
      if (static_cast<std::size_t>(index) >= layout.groups.size())
        return fail(fmt::format("a group below #{}", layout.groups.size()), at);
      result = GroupId{index};
      return true;
    }
    std::size_t size = 0;
    while (size < left_.size() && text_names::is_plain_name(left_.substr(size, 1))) ++size;
    const auto found = reader_.groups_.find(left_.substr(0, size));
    if (found == reader_.groups_.end()) return fail("the name of a group of the header", at);
    if (!found->second) return fail("#N, since several groups have this name", at);
    left_.remove_prefix(size);
    result = *found->second;
    return true;
  }

  bool edge(EdgeId& result) {
    const std::string_view at = left_;
    if (take('#')) {
      std::int32_t index = 0;
      if (!number(index, "the index of an edge")) return false;
      if (static_cast<std::size_t>(index) >= reader_.layout_.edges.size())
        return fail(fmt::format("an edge below #{}", reader_.layout_.edges.size()), at);
      result = EdgeId{index};
      return true;
    }
    std::int32_t producer = 0;
    std::int32_t consumer = 0;
    if (!number(producer, "an edge PRODUCER>CONSUMER") || !need('>') || !number(consumer, "the consumer stage"))
      return false;
    const auto found = reader_.edge_between(producer, consumer);
    if (!found) return fail("an edge of the header, or #N where two stages have several", at);
    result = *found;
    return true;
  }

  bool value(Value& result) {
    const std::string_view at = left_;
    const std::string_view word = take_word();
    std::optional<ValueKind> kind;
    for (const auto& [name, candidate] : text_names::kValues)
      if (name == word) kind = candidate;
    if (!kind) return fail("act, grad, stash, wstash, kv, kvgrad, weight, wgrad or norm", at);
    if (*kind == ValueKind::kNorm) {
      result = Value::norm();
      return true;
    }
    if (!need(',')) return false;
    if (*kind == ValueKind::kWeight || *kind == ValueKind::kWeightGrad) {
      GroupId id;
      if (!group(id)) return false;
      result = *kind == ValueKind::kWeight ? Value::weight(id) : Value::weight_grad(id);
      return true;
    }
    EdgeId edge_id;
    std::int32_t stage = 0;
    std::int32_t m = 0;
    std::int32_t q = 0;
    const bool on_edge = *kind == ValueKind::kActivation || *kind == ValueKind::kGradient;
    if (!(on_edge ? edge(edge_id) : number(stage, "a stage")) || !need(',') || !data(m, q)) return false;
    const MicrobatchId microbatch{m};
    const SliceId slice{q};
    const StageId stage_id{stage};
    switch (*kind) {
      case ValueKind::kActivation: result = Value::activation(edge_id, microbatch, slice); break;
      case ValueKind::kGradient: result = Value::gradient(edge_id, microbatch, slice); break;
      case ValueKind::kStash: result = Value::stash(stage_id, microbatch, slice); break;
      case ValueKind::kWeightStash: result = Value::weight_stash(stage_id, microbatch, slice); break;
      case ValueKind::kKv: result = Value::kv(stage_id, microbatch, slice); break;
      case ValueKind::kKvGrad: result = Value::kv_grad(stage_id, microbatch, slice); break;
      case ValueKind::kWeight:
      case ValueKind::kWeightGrad:
      case ValueKind::kNorm: break;
    }
    return true;
  }

  bool peer(std::string_view arrow, RankId& result) {
    std::int32_t rank = 0;
    if (!need(')')) return false;
    if (!take(arrow)) return fail(fmt::format("'{}' and the peer's rank", arrow));
    if (!number(rank, "the peer's rank") || !end()) return false;
    result = RankId{rank};
    return true;
  }

  bool send(Row& row) {
    Send result;
    if (!value(result.value) || !peer("->", result.peer)) return false;
    row.emplace_back(result);
    return true;
  }

  bool recv(Row& row) {
    Recv result;
    if (!value(result.value) || !peer("<-", result.peer)) return false;
    row.emplace_back(result);
    return true;
  }

  bool wait(Row& row) {
    const std::string_view at = left_;
    const std::string_view word = take_word();
    if (word == "send") {
      WaitSend result;
      if (!need(',') || !value(result.value) || !peer("->", result.peer)) return false;
      row.emplace_back(result);
      return true;
    }
    const auto kind = collective_kind(word);
    if (!kind) return fail("send or the name of a collective", at);
    WaitCollective result{.kind = *kind};
    if (!need(',') || !value(result.value) || !need(')') || !end()) return false;
    row.emplace_back(result);
    return true;
  }

  bool free(Row& row) {
    Free result;
    if (!value(result.value) || !need(')') || !end()) return false;
    row.emplace_back(result);
    return true;
  }

  template <class Call>
  bool group_call(Row& row) {
    Call result;
    if (!group(result.group) || !need(')') || !end()) return false;
    row.emplace_back(result);
    return true;
  }

  bool validate(Row& row) {
    const std::string_view at = left_;
    if (take_word() != "norm") return fail("norm", at);
    if (!need(')') || !end()) return false;
    row.emplace_back(Validate{});
    return true;
  }

  bool batch(Row& row) {
    std::int32_t count = 0;
    if (!number(count, "how many transfers are posted together") || !need(')') || !end()) return false;
    row.emplace_back(Batch{.count = count});
    return true;
  }

  static std::optional<CollectiveKind> collective_kind(std::string_view word) {
    for (const CollectiveKind kind : text_names::kCollectives)
      if (to_string(kind) == word) return kind;
    return {};
  }

  bool collective(Row& row, CollectiveKind kind) {
    Collective result{.kind = kind};
    std::int32_t set = 0;
    std::int32_t root = 0;
    if (!value(result.value) || !need(')') || !need('@')) return false;
    const std::string_view at = left_;
    if (!number(set, "a rank set")) return false;
    if (static_cast<std::size_t>(set) >= reader_.layout_.rank_sets.size())
      return fail(fmt::format("a rank set of the header (there are {})", reader_.layout_.rank_sets.size()), at);
    const bool rooted = kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce;
    if (take(":root=")) {
      if (!number(root, "the root's rank")) return false;
    } else if (rooted) {
      return fail(":root= and the root's rank");
    }
    if (!end()) return false;
    result.ranks = RankSetId{set};
    result.root = RankId{root};
    row.emplace_back(result);
    return true;
  }

  const TokenReader& reader_;
  std::string_view token_;
  std::string_view left_;
  TokenError& error_;
};

bool TokenReader::read(std::string_view token, Row& row, TokenError& error) const {
  return Scan(*this, token, error).instruction(row);
}

}  // namespace plait
