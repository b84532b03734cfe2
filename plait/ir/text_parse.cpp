#include "plait/ir/text.h"
#include "plait/ir/text_names.h"
#include "plait/ir/text_token.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

namespace plait {
namespace {

// Sizes that a header may claim. Later passes allocate tables of stages x micro-batches x slices, so that product is
// held against the size of the text too: a complete text has an op for each.
constexpr std::int64_t kMostRanks = std::int64_t{1} << 20;
constexpr std::int64_t kMostLayers = std::int64_t{1} << 16;
constexpr std::int64_t kMostMicrobatches = std::int64_t{1} << 24;
constexpr std::int64_t kMostSlices = std::int64_t{1} << 20;
constexpr std::int64_t kAlwaysAllowedCells = std::int64_t{1} << 20;
constexpr std::size_t kMostListMembers = std::size_t{1} << 24;  // of all homes, users and rank sets together

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view file_name) : text_(text), file_name_(file_name) {}

  Result<std::variant<Schedule, Program>> run() {
    bool is_program = false;
    if (!magic(is_program) || !header() || !finish_header() || !rows()) return *error_;
    if (is_program)
      return std::variant<Schedule, Program>(Program{.layout = std::move(layout_), .rows = std::move(rows_)});
    return std::variant<Schedule, Program>(Schedule{.layout = std::move(layout_), .rows = std::move(rows_)});
  }

 private:
  // --- errors -------------------------------------------------------------------------------------------------------

  bool fail_at(std::size_t at, std::string_view rule, std::string_view message) {
    const std::string_view before = text_.substr(0, at);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const std::size_t line_start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
    error_ =
        make_error(ErrorCode::kInvalidSchedule, rule, "{}:{}:{}: {}", file_name_, line, at - line_start + 1, message);
    return false;
  }

  [[nodiscard]] std::string found_at(std::size_t at) const {
    if (at >= text_.size()) return "the end of the file";
    if (text_[at] == '\n' || text_[at] == '\r') return "the end of the line";
    if (is_blank(text_[at])) return "the end of the token";
    constexpr std::size_t kMostShown = 32;
    std::string shown;
    for (std::size_t i = at; i < text_.size() && !is_blank(text_[i]) && text_[i] != '\n'; ++i) {
      if (shown.size() >= kMostShown) return '\'' + shown + "...'";
      const bool printable = text_[i] >= 0x20 && text_[i] < 0x7f;
      shown += printable ? std::string(1, text_[i]) : fmt::format("\\x{:02x}", static_cast<unsigned char>(text_[i]));
    }
    return '\'' + shown + '\'';
  }

  bool expected(std::string_view what, std::size_t at) {
    return fail_at(at, "text.syntax", fmt::format("expected {}, found {}", what, found_at(at)));
  }
  bool expected(std::string_view what) { return expected(what, at_); }

  // --- words of a line ----------------------------------------------------------------------------------------------

  void skip_blanks() {
    while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
  }
  /// To the next word, over line ends and comments. False at the end of the text.
  bool next_word() {
    for (;;) {
      skip_blanks();
      if (at_ >= text_.size()) return false;
      if (text_[at_] == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (text_[at_] == '\n') {
        ++at_;
      } else {
        return true;
      }
    }
  }
  [[nodiscard]] bool line_ended() const { return at_ >= text_.size() || text_[at_] == '\n' || text_[at_] == '#'; }
  bool end_line() {
    skip_blanks();
    return line_ended() || expected("the end of the line");
  }
  std::string_view peek_word() const {
    std::size_t end = at_;
    while (end < text_.size() && !is_blank(text_[end]) && text_[end] != '\n') ++end;
    return text_.substr(at_, end - at_);
  }
  /// The next word of the line; empty at its end.
  std::string_view word() {
    skip_blanks();
    if (line_ended()) return {};
    const std::string_view taken = peek_word();
    at_ += taken.size();
    return taken;
  }
  [[nodiscard]] std::size_t offset_of(std::string_view part) const {
    return static_cast<std::size_t>(part.data() - text_.data());
  }

  bool keyword(std::string_view wanted) {
    skip_blanks();
    const std::size_t start = at_;
    return word() == wanted || expected(fmt::format("'{}'", wanted), start);
  }

  bool size_word(std::string_view what, std::int64_t most, int& result) {
    skip_blanks();
    const std::size_t start = at_;
    const std::string_view taken = word();
    std::int64_t number = 0;
    const auto [end, status] = std::from_chars(taken.data(), taken.data() + taken.size(), number);
    const bool digits =
        !taken.empty() && std::all_of(taken.begin(), taken.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits) return expected(fmt::format("a number of {}", what), start);
    if (status != std::errc{} || number < 1 || number > most)
      return fail_at(start, "text.size", fmt::format("expected 1..{} {}, found {}", most, what, found_at(start)));
    result = static_cast<int>(number);
    return true;
  }

  bool index_word(std::string_view what, std::size_t wanted) {
    skip_blanks();
    const std::size_t start = at_;
    std::string_view taken = word();
    const auto number = take_number(taken);
    if (!number || !taken.empty() || static_cast<std::size_t>(*number) != wanted)
      return expected(fmt::format("{} {}, the next in order", what, wanted), start);
    return true;
  }

  /// "0,3..5" ascending and below `limit`; "none" is empty.
  template <class Id>
  bool ids(std::string_view list, std::string_view what, std::size_t limit, std::vector<Id>& result) {
    if (list == "none") return true;
    std::string_view left = list;
    const auto one = [&](std::int32_t& number) {
      const std::size_t start = offset_of(left);
      const auto taken = take_number(left);
      if (!taken) return expected(fmt::format("{} numbers such as 0,3..5 or none", what), start);
      if (static_cast<std::size_t>(*taken) >= limit)
        return expected(fmt::format("{} numbers below {}", what, limit), start);
      number = *taken;
      return true;
    };
    for (;;) {
      const std::size_t start = offset_of(left);
      std::int32_t first = 0;
      if (!one(first)) return false;
      std::int32_t last = first;
      if (left.starts_with("..")) {
        left.remove_prefix(2);
        if (!one(last)) return false;
      }
      if (last < first || (!result.empty() && result.back().value() >= first))
        return expected("ascending numbers", start);
      list_members_ += static_cast<std::size_t>(last - first) + 1;
      if (list_members_ > kMostListMembers)
        return fail_at(start, "text.size",
                       fmt::format("the lists of ranks hold more than {} numbers", kMostListMembers));
      for (std::int32_t id = first; id <= last; ++id) result.push_back(Id{id});
      if (left.empty()) return true;
      if (left.front() != ',') return expected("',' or '..'", offset_of(left));
      left.remove_prefix(1);
    }
  }

  // --- header -------------------------------------------------------------------------------------------------------

  bool magic(bool& is_program) {
    constexpr std::string_view kExpected = "'plait 1 schedule' or 'plait 1 program'";
    if (!next_word() || peek_word() != "plait") return expected(kExpected);
    word();
    skip_blanks();
    const std::size_t version = at_;
    if (word() != "1") return expected("version 1 of the format, which this Plait reads", version);
    skip_blanks();
    const std::size_t kind = at_;
    const std::string_view what = word();
    if (what != "schedule" && what != "program") return expected("schedule or program", kind);
    is_program = what == "program";
    return end_line();
  }

  bool once(std::string_view key, bool& seen, std::size_t at) {
    if (seen) return fail_at(at, "text.header", fmt::format("'{}' stands twice; remove one", key));
    seen = true;
    return true;
  }

  bool header() {
    for (;;) {
      if (!next_word()) return expected("'rank 0:' or a line of the header");
      const std::size_t start = at_;
      const std::string_view key = peek_word();
      if (key == "rank") return true;
      word();
      bool ok = false;
      if (key == "name")
        ok = once(key, seen_.name, start) && quoted(layout_.name);
      else if (key == "mode")
        ok = once(key, seen_.mode, start) && choice("train", "forward", Mode::kTrain, Mode::kForward, layout_.mode);
      else if (key == "head")
        ok = once(key, seen_.head, start) &&
             choice("untied", "tied", HeadTying::kUntied, HeadTying::kTied, layout_.tying);
      else if (key == "recompute")
        ok = once(key, seen_.recompute, start) && recompute();
      else if (key == "exchanges")
        ok = once(key, seen_.exchanges, start) &&
             choice("one-way", "swaps", Exchanges::kOneWay, Exchanges::kSwaps, layout_.exchanges);
      else if (key == "steps")
        ok = once(key, seen_.steps, start) &&
             choice("behind-norm", "post-validated", StepOrder::kBehindNorm, StepOrder::kPostValidated, layout_.steps);
      else if (key == "folds")
        ok = once(key, seen_.folds, start) && size_word("folds", kMostMicrobatches, layout_.folds);
      else if (key == "newline")
        ok = once(key, seen_.newline, start) && choice("lf", "crlf", Newline::kLf, Newline::kCrlf, layout_.newline);
      else if (key == "ranks")
        ok = once(key, seen_.ranks, start) && size_word("ranks", most_ranks(), layout_.num_ranks);
      else if (key == "microbatches")
        ok = once(key, seen_.microbatches, start) &&
             size_word("micro-batches", kMostMicrobatches, layout_.num_microbatches);
      else if (key == "slices")
        ok = once(key, seen_.slices, start) && size_word("slices", kMostSlices, layout_.num_slices);
      else if (key == "layers")
        ok = once(key, seen_.layers, start) && size_word("layers", kMostLayers, layout_.num_layers);
      else if (key == "stage")
        ok = stage(start);
      else if (key == "edge")
        ok = edge(start);
      else if (key == "edges")
        ok = keyword("none") && once(key, seen_.edges, start);
      else if (key == "group")
        ok = group(start);
      else if (key == "groups")
        ok = keyword("none") && once(key, seen_.groups, start);
      else if (key == "set")
        ok = rank_set(start);
      else
        ok = expected(
            "'rank 0:' or a line of the header (name, mode, ranks, microbatches, slices, layers, head, recompute, "
            "exchanges, steps, folds, newline, stage, edge, group, set)",
            start);
      if (!ok || !end_line()) return false;
    }
  }

  /// Every rank takes a block, so the text's size bounds their number.
  [[nodiscard]] std::int64_t most_ranks() const {
    return std::min(kMostRanks, static_cast<std::int64_t>(text_.size()));
  }

  template <class Enum>
  bool choice(std::string_view a, std::string_view b, Enum if_a, Enum if_b, Enum& result) {
    skip_blanks();
    const std::size_t start = at_;
    const std::string_view taken = word();
    if (taken != a && taken != b) return expected(fmt::format("{} or {}", a, b), start);
    result = taken == a ? if_a : if_b;
    return true;
  }

  bool recompute() {
    skip_blanks();
    const std::size_t start = at_;
    const std::string_view taken = word();
    if (taken == "none")
      layout_.recompute = Recompute::kNone;
    else if (taken == "full")
      layout_.recompute = Recompute::kFull;
    else if (taken == "no-attention")
      layout_.recompute = Recompute::kNoAttention;
    else
      return expected("none, full or no-attention", start);
    return true;
  }

  bool quoted(std::string& result) {
    skip_blanks();
    if (at_ >= text_.size() || text_[at_] != '"') return expected("a name in double quotes");
    for (++at_; at_ < text_.size() && text_[at_] != '\n'; ++at_) {
      if (text_[at_] == '"') {
        ++at_;
        return true;
      }
      if (text_[at_] != '\\') {
        result += text_[at_];
        continue;
      }
      const std::string_view escape = text_.substr(at_, 4);
      unsigned char byte = 0;
      if (escape.size() >= 2 && (escape[1] == '"' || escape[1] == '\\')) {
        result += escape[1];
        at_ += 1;
      } else if (escape.size() == 4 && escape[1] == 'x' &&
                 std::from_chars(escape.data() + 2, escape.data() + 4, byte, 16).ptr == escape.data() + 4) {
        result += static_cast<char>(byte);
        at_ += 3;
      } else {
        return expected("an escape: \\\", \\\\ or \\xNN");
      }
    }
    return expected("the closing double quote");
  }

  bool needs(bool there, std::string_view what, std::string_view line, std::size_t at) {
    return there || fail_at(at, "text.header", fmt::format("a '{}' line must stand before this '{}' line", what, line));
  }

  bool part(std::string_view name, int& result) {
    const int last_layer = layout_.num_layers - 1;
    constexpr std::pair<std::string_view, PartKind> kLayerParts[] = {
        {"norm.", PartKind::kNorm}, {"qkv.", PartKind::kQkv}, {"attn.", PartKind::kAttn}, {"post.", PartKind::kPost}};
    if (name == "embed" || name == "head") {
      result = name == "embed" ? 0 : num_parts(layout_.num_layers) - 1;
      return true;
    }
    for (const auto& [prefix, kind] : kLayerParts) {
      if (!name.starts_with(prefix)) continue;
      std::string_view left = name.substr(prefix.size());
      const auto layer = take_number(left);
      if (!layer || !left.empty() || *layer > last_layer)
        return expected(fmt::format("a part of layers 0..{}", last_layer), offset_of(name));
      result = part_index(layout_.num_layers, Part{.kind = kind, .layer = *layer});
      return true;
    }
    return expected("a part: embed, norm.L, qkv.L, attn.L, post.L or head", offset_of(name));
  }

  /// "embed..post.0" or "attn.0": both ends included.
  bool part_range(std::string_view text, PartRange& result) {
    const std::size_t dots = text.find("..");
    int last = 0;
    if (!part(text.substr(0, dots), result.begin)) return false;
    last = result.begin;
    if (dots != std::string_view::npos && !part(text.substr(dots + 2), last)) return false;
    if (last < result.begin) return expected("a first part that stands before the last one", offset_of(text));
    result.end = last + 1;
    return true;
  }

  bool stage(std::size_t start) {
    if (!needs(seen_.ranks, "ranks", "stage", start) || !needs(seen_.layers, "layers", "stage", start)) return false;
    if (!layout_.edges.empty() || !layout_.groups.empty())
      return fail_at(start, "text.header", "a 'stage' line must stand before the 'edge' and 'group' lines");
    Stage result;
    if (!index_word("stage", layout_.stages.size())) return false;
    skip_blanks();
    const std::size_t parts = at_;
    const std::string_view range = word();
    if (range.empty()) return expected("the stage's parts", parts);
    if (!part_range(range, result.parts)) return false;
    skip_blanks();
    if (line_ended() || text_[at_] != '@') return expected("'@' and the stage's home ranks");
    if (!ids(word().substr(1), "rank", static_cast<std::size_t>(layout_.num_ranks), result.homes)) return false;
    layout_.stages.push_back(std::move(result));
    return true;
  }

  bool edge(std::size_t start) {
    if (!needs(!layout_.stages.empty(), "stage", "edge", start)) return false;
    skip_blanks();
    const std::size_t at = at_;
    std::string_view left = word();
    const auto producer = take_number(left);
    const bool arrow = left.starts_with('>');
    if (arrow) left.remove_prefix(1);
    const auto consumer = take_number(left);
    if (!producer || !arrow || !consumer || !left.empty()) return expected("PRODUCER>CONSUMER", at);
    if (std::max(*producer, *consumer) >= layout_.num_stages())
      return expected(fmt::format("stages below {}", layout_.num_stages()), at);
    layout_.edges.push_back(Edge{.producer = StageId{*producer}, .consumer = StageId{*consumer}});
    return true;
  }

  bool group_parts(std::string_view list, std::vector<int>& result) {
    if (list == "none") return true;
    part_owned_.resize(static_cast<std::size_t>(num_parts(layout_.num_layers)));
    while (!list.empty()) {
      const std::string_view item = list.substr(0, list.find(','));
      PartRange range;
      if (!part_range(item, range)) return false;
      for (int p = range.begin; p < range.end; ++p) {
        if (range.size() > 1 && part_at(layout_.num_layers, p).kind == PartKind::kAttn) continue;
        if (part_owned_[static_cast<std::size_t>(p)])
          return fail_at(offset_of(item), "text.header",
                         fmt::format("part {} is in two groups", to_string(part_at(layout_.num_layers, p))));
        part_owned_[static_cast<std::size_t>(p)] = true;
        result.push_back(p);
      }
      list.remove_prefix(item.size());
      if (list == ",") return expected("a part behind the comma", offset_of(list));
      if (!list.empty()) list.remove_prefix(1);
    }
    return true;
  }

  bool group(std::size_t start) {
    if (!needs(!layout_.stages.empty(), "stage", "group", start)) return false;
    ParamGroup result;
    skip_blanks();
    const std::size_t name = at_;
    if (at_ < text_.size() && text_[at_] == '"') {
      if (!quoted(result.name)) return false;
    } else {
      result.name = word();
      if (!text_names::is_plain_name(result.name)) return expected("the group's name", name);
    }
    const auto list = [&](std::string_view key, std::string_view& text) {
      if (!keyword(key)) return false;
      skip_blanks();
      const std::size_t at = at_;
      text = word();
      return !text.empty() || expected(fmt::format("a list of {} or none", key), at);
    };
    std::string_view text;
    if (!list("parts", text) || !group_parts(text, result.parts)) return false;
    if (!list("users", text) || !ids(text, "stage", layout_.stages.size(), result.users)) return false;
    if (!list("homes", text) || !ids(text, "rank", static_cast<std::size_t>(layout_.num_ranks), result.homes))
      return false;
    skip_blanks();
    if (!line_ended()) {
      if (!keyword("sharded")) return false;
      result.residency = Residency::kSharded;
    }
    const GroupId id{static_cast<std::int32_t>(layout_.groups.size())};
    for (const StageId user : result.users) layout_.stages[user.index()].groups.push_back(id);
    layout_.groups.push_back(std::move(result));
    return true;
  }

  bool rank_set(std::size_t start) {
    if (!needs(seen_.ranks, "ranks", "set", start) || !index_word("set", layout_.rank_sets.size())) return false;
    skip_blanks();
    const std::size_t at = at_;
    const std::string_view list = word();
    if (list.empty()) return expected("the ranks of the set", at);
    std::vector<RankId> members;
    if (!ids(list, "rank", static_cast<std::size_t>(layout_.num_ranks), members)) return false;
    layout_.rank_sets.push_back(std::move(members));
    return true;
  }

  bool finish_header() {
    const std::pair<bool, std::string_view> required[] = {{seen_.ranks, "ranks"},
                                                          {seen_.microbatches, "microbatches"},
                                                          {seen_.layers, "layers"},
                                                          {!layout_.stages.empty(), "stage"}};
    for (const auto& [there, key] : required)
      if (!there) return fail_at(at_, "text.header", fmt::format("a '{}' line is missing before this line", key));
    if ((seen_.edges && !layout_.edges.empty()) || (seen_.groups && !layout_.groups.empty()))
      return fail_at(at_, "text.header", "the header says both 'none' and a line of the same kind");
    if (!seen_.edges && layout_.edges.empty()) {
      for (int s = 1; s < layout_.num_stages(); ++s)
        layout_.edges.push_back(Edge{.producer = StageId{s - 1}, .consumer = StageId{s}});
    }
    const auto subjects = static_cast<std::int64_t>(std::max(layout_.stages.size(), layout_.edges.size()));
    const std::int64_t most_cells = std::max(kAlwaysAllowedCells, static_cast<std::int64_t>(text_.size()));
    if (subjects > most_cells || layout_.num_microbatches > most_cells / subjects ||
        layout_.num_slices > most_cells / subjects / layout_.num_microbatches)
      return fail_at(at_, "text.size",
                     fmt::format("{} stages x {} micro-batches x {} slices: a text of this size cannot hold their ops",
                                 layout_.num_stages(), layout_.num_microbatches, layout_.num_slices));
    return seen_.groups || !layout_.groups.empty() || derive_groups();
  }

  bool derive_groups() {
    LayoutSpec spec{.num_ranks = layout_.num_ranks, .num_layers = layout_.num_layers, .tying = layout_.tying};
    for (const Stage& stage : layout_.stages) {
      spec.stages.push_back(stage.parts);
      spec.homes.push_back(stage.homes);
    }
    auto derived = make_layout(spec);
    if (!derived)
      return fail_at(at_, "text.header",
                     fmt::format("without 'group' lines they are derived, but {}", derived.error().message));
    layout_.groups = std::move(derived->groups);
    for (std::size_t s = 0; s < layout_.stages.size(); ++s)
      layout_.stages[s].groups = std::move(derived->stages[s].groups);
    return true;
  }

  // --- rows ---------------------------------------------------------------------------------------------------------

  bool rank_line() {
    skip_blanks();
    const std::size_t start = at_;
    std::string_view taken = word();
    const auto number = take_number(taken);
    if (!number || taken != ":" || static_cast<std::size_t>(*number) != rows_.size() || *number >= layout_.num_ranks)
      return rows_.size() < static_cast<std::size_t>(layout_.num_ranks)
                 ? expected(fmt::format("'{}:', the next in order", rows_.size()), start)
                 : expected(fmt::format("no more ranks than the {} of the header", layout_.num_ranks), start);
    rows_.emplace_back();
    return true;
  }

  bool rows() {
    const TokenReader reader(layout_);
    TokenError token_error;
    while (next_word()) {
      const std::size_t start = at_;
      const std::string_view token = peek_word();
      at_ += token.size();
      if (token == "rank") {
        if (!rank_line()) return false;
      } else if (!reader.read(token, rows_.back(), token_error)) {
        return expected(token_error.expected, start + token_error.offset);
      }
    }
    if (rows_.size() != static_cast<std::size_t>(layout_.num_ranks))
      return expected(fmt::format("'rank {}:' (the header says ranks {})", rows_.size(), layout_.num_ranks),
                      text_.size());
    return true;
  }

  struct Seen {
    bool name = false;
    bool mode = false;
    bool head = false;
    bool recompute = false;
    bool exchanges = false;
    bool steps = false;
    bool folds = false;
    bool newline = false;
    bool ranks = false;
    bool microbatches = false;
    bool slices = false;
    bool layers = false;
    bool edges = false;   ///< "edges none"
    bool groups = false;  ///< "groups none"
  };

  std::string_view text_;
  std::string_view file_name_;
  std::size_t at_ = 0;
  Seen seen_;
  std::size_t list_members_ = 0;
  std::vector<bool> part_owned_;
  Layout layout_;
  std::vector<Row> rows_;
  std::optional<Error> error_;
};

}  // namespace

Result<std::variant<Schedule, Program>> parse_text(std::string_view text, std::string_view file_name) {
  return Parser(text, file_name).run();
}

}  // namespace plait
