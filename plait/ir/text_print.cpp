#include "plait/ir/text.h"
#include "plait/ir/text_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>

namespace plait {
namespace {

constexpr std::size_t kLineWidth = 110;  // columns at which rows wrap

void append(std::string& out, std::int64_t number) {
  char digits[24];
  const auto end = std::to_chars(std::begin(digits), std::end(digits), number).ptr;
  out.append(digits, end);
}

void append_quoted(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

/// "0", "0,3", "0..7,9"; "none" where there is none.
template <class Id>
void append_ids(std::string& out, const std::vector<Id>& ids) {
  if (ids.empty()) out += "none";
  for (std::size_t first = 0; first < ids.size();) {
    std::size_t last = first;
    while (last + 1 < ids.size() && std::int64_t{ids[last + 1].value()} == std::int64_t{ids[last].value()} + 1) ++last;
    if (first > 0) out += ',';
    append(out, ids[first].value());
    if (last > first) {
      out += "..";
      append(out, ids[last].value());
    }
    first = last + 1;
  }
}

/// Parts of a group. A range stands for the parts in it that own weights, so it may step over attention.
void append_group_parts(std::string& out, const std::vector<int>& parts, int num_layers) {
  if (parts.empty()) out += "none";
  const auto owns_weights = [&](int part) { return part_at(num_layers, part).kind != PartKind::kAttn; };
  const auto follows = [&](int part, int next) {
    return owns_weights(next) && (next == part + 1 || (next == part + 2 && !owns_weights(part + 1)));
  };
  for (std::size_t first = 0; first < parts.size();) {
    std::size_t last = first;
    while (owns_weights(parts[first]) && last + 1 < parts.size() && follows(parts[last], parts[last + 1])) ++last;
    if (first > 0) out += ',';
    out += to_string(part_at(num_layers, parts[first]));
    if (last > first) out += ".." + to_string(part_at(num_layers, parts[last]));
    first = last + 1;
  }
}

class Printer {
 public:
  Printer(const Layout& layout, const std::vector<Row>& rows) : layout_(layout), rows_(rows) {
    for (std::size_t e = 0; e < layout.edges.size(); ++e) {
      const Edge& edge = layout.edges[e];
      const auto [at, inserted] =
          edge_of_.try_emplace({edge.producer.value(), edge.consumer.value()}, static_cast<std::int32_t>(e));
      if (!inserted) at->second = kAmbiguous;
    }
    std::unordered_map<std::string_view, int> uses;
    for (const ParamGroup& group : layout.groups) ++uses[group.name];
    for (std::size_t g = 0; g < layout.groups.size(); ++g) {
      const std::string& name = layout.groups[g].name;
      const bool by_name = text_names::is_plain_name(name) && uses[name] == 1;
      group_words_.push_back(by_name ? name : fmt::format("#{}", g));
    }
    for (std::size_t e = 0; e < layout.edges.size(); ++e) {
      const Edge& edge = layout.edges[e];
      const bool by_name = edge_of_.at({edge.producer.value(), edge.consumer.value()}) != kAmbiguous;
      edge_words_.push_back(by_name ? fmt::format("{}>{}", edge.producer.value(), edge.consumer.value())
                                    : fmt::format("#{}", e));
    }
  }

  std::string print(std::string_view what) {
    out_ += "plait 1 ";
    out_ += what;
    out_ += '\n';
    header();
    std::string token;
    for (std::size_t rank = 0; rank < rows_.size(); ++rank) {
      out_ += "\nrank ";
      append(out_, static_cast<std::int64_t>(rank));
      out_ += ":\n";
      std::size_t column = 0;
      for (const Instr& instr : rows_[rank]) {
        token.clear();
        token_ = &token;
        std::visit(*this, instr);
        if (column != 0 && column + 1 + token.size() > kLineWidth) {
          out_ += '\n';
          column = 0;
        }
        out_ += column == 0 ? "  " : " ";
        column += (column == 0 ? 2 : 1) + token.size();
        out_ += token;
      }
      if (column != 0) out_ += '\n';
    }
    return std::move(out_);
  }

  void operator()(const Op& op) {
    append(*token_, op.stage.value());
    *token_ += to_string(op.kind);
    data(op.microbatch, op.slice);
  }
  void operator()(const Pair&) { *token_ += '&'; }
  void operator()(const Idle&) { *token_ += '.'; }
  void operator()(const Turn&) { *token_ += '|'; }
  void operator()(const Batch& batch) {
    *token_ += "batch(";
    append(*token_, batch.count);
    *token_ += ')';
  }
  void operator()(const Send& send) { transfer("send(", send.value, ")->", send.peer); }
  void operator()(const Recv& recv) { transfer("recv(", recv.value, ")<-", recv.peer); }
  void operator()(const WaitSend& wait) { transfer("wait(send,", wait.value, ")->", wait.peer); }
  void operator()(const Collective& collective) {
    *token_ += to_string(collective.kind);
    *token_ += '(';
    value(collective.value);
    *token_ += ")@";
    append(*token_, collective.ranks.value());
    const bool has_root = collective.kind == CollectiveKind::kBroadcast || collective.kind == CollectiveKind::kReduce;
    if (!has_root && collective.root == RankId{}) return;
    *token_ += ":root=";
    append(*token_, collective.root.value());
  }
  void operator()(const WaitCollective& wait) {
    *token_ += "wait(";
    *token_ += to_string(wait.kind);
    *token_ += ',';
    value(wait.value);
    *token_ += ')';
  }
  void operator()(const Free& free) {
    *token_ += "free(";
    value(free.value);
    *token_ += ')';
  }
  void operator()(const Add& add) { group_call("add(", add.group); }
  void operator()(const Step& step) { group_call("step(", step.group); }
  void operator()(const Validate&) { *token_ += "validate(norm)"; }

 private:
  static constexpr std::int32_t kAmbiguous = -1;

  void line(std::string_view key, std::int64_t number) {
    out_ += key;
    append(out_, number);
    out_ += '\n';
  }

  void header() {
    out_ += "name ";
    append_quoted(out_, layout_.name);
    out_ += layout_.mode == Mode::kTrain ? "\nmode train\n" : "\nmode forward\n";
    line("ranks ", layout_.num_ranks);
    line("microbatches ", layout_.num_microbatches);
    line("slices ", layout_.num_slices);
    line("layers ", layout_.num_layers);
    out_ += layout_.tying == HeadTying::kTied ? "head tied\n" : "head untied\n";
    if (layout_.recompute != Recompute::kNone)
      out_ += layout_.recompute == Recompute::kFull ? "recompute full\n" : "recompute no-attention\n";
    if (layout_.exchanges == Exchanges::kSwaps) out_ += "exchanges swaps\n";
    if (layout_.steps == StepOrder::kPostValidated) out_ += "steps post-validated\n";
    if (layout_.folds != 1) line("folds ", layout_.folds);
    if (layout_.newline == Newline::kCrlf) out_ += "newline crlf\n";
    for (std::size_t s = 0; s < layout_.stages.size(); ++s) {
      const Stage& stage = layout_.stages[s];
      out_ += "stage ";
      append(out_, static_cast<std::int64_t>(s));
      out_ += ' ' + to_string(part_at(layout_.num_layers, stage.parts.begin));
      if (stage.parts.size() > 1) out_ += ".." + to_string(part_at(layout_.num_layers, stage.parts.end - 1));
      out_ += " @";
      append_ids(out_, stage.homes);
      out_ += '\n';
    }
    edges();
    if (layout_.groups.empty()) out_ += "groups none\n";
    for (const ParamGroup& group : layout_.groups) {
      out_ += "group ";
      if (text_names::is_plain_name(group.name))
        out_ += group.name;
      else
        append_quoted(out_, group.name);
      out_ += " parts ";
      append_group_parts(out_, group.parts, layout_.num_layers);
      out_ += " users ";
      append_ids(out_, group.users);
      out_ += " homes ";
      append_ids(out_, group.homes);
      out_ += group.residency == Residency::kSharded ? " sharded\n" : "\n";
    }
    for (std::size_t set = 0; set < layout_.rank_sets.size(); ++set) {
      out_ += "set ";
      append(out_, static_cast<std::int64_t>(set));
      out_ += ' ';
      append_ids(out_, layout_.rank_sets[set]);
      out_ += '\n';
    }
  }

  void edges() {
    bool chain = layout_.edges.size() + 1 == layout_.stages.size();
    for (std::size_t e = 0; chain && e < layout_.edges.size(); ++e)
      chain = layout_.edges[e].producer.index() == e && layout_.edges[e].consumer.index() == e + 1;
    if (chain) return;
    if (layout_.edges.empty()) out_ += "edges none\n";
    for (const Edge& edge : layout_.edges) {
      out_ += "edge ";
      append(out_, edge.producer.value());
      out_ += '>';
      append(out_, edge.consumer.value());
      out_ += '\n';
    }
  }

  void data(MicrobatchId microbatch, SliceId slice) {
    append(*token_, microbatch.value());
    if (slice == SliceId{}) return;
    *token_ += '.';
    append(*token_, slice.value());
  }

  static void word(std::string& token, const std::vector<std::string>& words, std::int32_t index) {
    if (index >= 0 && static_cast<std::size_t>(index) < words.size()) {
      token += words[static_cast<std::size_t>(index)];
    } else {
      token += '#';
      append(token, index);
    }
  }

  void value(const Value& v) {
    for (const auto& [name, kind] : text_names::kValues)
      if (kind == v.kind()) *token_ += name;
    if (v.kind() == ValueKind::kNorm) return;
    *token_ += ',';
    if (v.is_group()) return word(*token_, group_words_, v.group().value());
    if (v.is_edge())
      word(*token_, edge_words_, v.edge().value());
    else
      append(*token_, v.stage().value());
    *token_ += ',';
    data(v.microbatch(), v.slice());
  }

  void transfer(std::string_view open, const Value& v, std::string_view close, RankId peer) {
    *token_ += open;
    value(v);
    *token_ += close;
    append(*token_, peer.value());
  }

  void group_call(std::string_view open, GroupId group) {
    *token_ += open;
    word(*token_, group_words_, group.value());
    *token_ += ')';
  }

  const Layout& layout_;
  const std::vector<Row>& rows_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> edge_of_;
  std::vector<std::string> edge_words_;
  std::vector<std::string> group_words_;
  std::string out_;
  std::string* token_ = nullptr;
};

}  // namespace

std::string print_text(const Schedule& schedule) {
  return Printer(schedule.layout, schedule.rows).print("schedule");
}
std::string print_text(const Program& program) {
  return Printer(program.layout, program.rows).print("program");
}

}  // namespace plait
