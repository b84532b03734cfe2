#include "plait/ir/torch_cells.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace plait {
namespace {

using enum TorchActionType;

constexpr std::array<std::pair<std::string_view, TorchActionType>, 14> kTypes = {
    {{"F", kForward},
     {"I", kBackwardInput},
     {"W", kBackwardWeight},
     {"B", kBackward},
     {"SEND_F", kSendF},
     {"RECV_F", kRecvF},
     {"SEND_B", kSendB},
     {"RECV_B", kRecvB},
     {"WAIT_SEND_F", kWaitSendF},
     {"WAIT_SEND_B", kWaitSendB},
     {"UNSHARD", kUnshard},
     {"RESHARD", kReshard},
     {"REDUCE_GRAD", kReduceGrad},
     {"WAIT_REDUCE_GRAD", kWaitReduceGrad}}};

constexpr std::string_view kPairWord = "OVERLAP_F_B";

/// Code points of the digit zero in the scripts that Python's \d takes for decimal digits (Unicode 14, category Nd);
/// the other nine digits follow each.
constexpr std::array<char32_t, 65> kDecimalZeros = {
    0x660,   0x6f0,   0x7c0,   0x966,   0x9e6,   0xa66,   0xae6,   0xb66,   0xbe6,   0xc66,   0xce6,
    0xd66,   0xde6,   0xe50,   0xed0,   0xf20,   0x1040,  0x1090,  0x17e0,  0x1810,  0x1946,  0x19d0,
    0x1a80,  0x1a90,  0x1b50,  0x1bb0,  0x1c40,  0x1c50,  0xa620,  0xa8d0,  0xa900,  0xa9d0,  0xa9f0,
    0xaa50,  0xabf0,  0xff10,  0x104a0, 0x10d30, 0x11066, 0x110f0, 0x11136, 0x111d0, 0x112f0, 0x11450,
    0x114d0, 0x11650, 0x116c0, 0x11730, 0x118e0, 0x11950, 0x11c50, 0x11d50, 0x11da0, 0x16a60, 0x16ac0,
    0x16b50, 0x1d7ce, 0x1d7d8, 0x1d7e2, 0x1d7ec, 0x1d7f6, 0x1e140, 0x1e2f0, 0x1e950, 0x1fbf0};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// The word as an error message may show it.
std::string shown(std::string_view word) {
  constexpr std::size_t kMostShown = 40;
  std::string result = "'";
  for (const char c : word.substr(0, kMostShown)) {
    if (c >= 0x20 && c < 0x7f)
      result += c;
    else
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return result + (word.size() > kMostShown ? "...'" : "'");
}

/// One decimal digit of any script off the front of UTF-8 `text`.
std::optional<int> take_unicode_digit(std::string_view& text) {
  if (text.empty()) return {};
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  const std::size_t size = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 0;
  if (size == 0 || size > text.size()) return {};
  char32_t code = size == 1 ? lead : lead & (0x7fU >> size);
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = (code << 6) | (byte(i) & 0x3fU);
  }
  for (const char32_t zero : kDecimalZeros) {
    if (code < zero || code > zero + 9) continue;
    text.remove_prefix(size);
    return static_cast<int>(code - zero);
  }
  if (size > 1 || !is_digit(text.front())) return {};
  text.remove_prefix(1);
  return static_cast<int>(code - '0');
}

class SheetReader {
 public:
  SheetReader(std::string_view text, std::string_view file_name, CsvReading reading)
      : text_(text), file_name_(file_name), lenient_(reading == CsvReading::kLenient) {}

  Result<TorchSheet> run() {
    if (text_.empty()) {
      fail("csv.empty", "the file is empty; expected one row of actions per rank");
      return *error_;
    }
    std::string_view left = text_;
    std::optional<Newline> newline;
    for (place_.row = 1; !left.empty(); ++place_.row) {
      place_.column = 1;
      const std::size_t end = left.find('\n');
      std::string_view line = left.substr(0, end);
      left.remove_prefix(end == std::string_view::npos ? left.size() : end + 1);
      Newline ends_with = Newline::kLf;
      if (line.ends_with('\r')) {
        line.remove_suffix(1);
        ends_with = Newline::kCrlf;
      }
      if (end != std::string_view::npos) {
        if (newline && *newline != ends_with &&
            !tolerate("csv.line_ends", "the line ends with another sequence (LF or CRLF) than the lines before it"))
          return *error_;
        if (!newline) newline = ends_with;
      }
      if (!row(line)) return *error_;
    }
    sheet_.newline = newline.value_or(Newline::kLf);
    return std::move(sheet_);
  }

 private:
  bool fail(std::string_view rule, std::string_view message) {
    error_ = cell_error(file_name_, place_, rule, message);
    return false;
  }
  /// A lenient reading notes it and goes on.
  bool tolerate(std::string_view rule, std::string_view message) {
    if (!lenient_) return fail(rule, message);
    sheet_.ignored.push_back(cell_error(file_name_, place_, rule, message).message);
    return true;
  }

  bool row(std::string_view line) {
    if (line.empty())
      return fail("csv.blank_line", "a blank line counts as a rank, which would have no stage; remove it");
    sheet_.rows.emplace_back();
    for (place_.column = 1;; ++place_.column) {
      const std::size_t comma = line.find(',');
      if (!cell(line.substr(0, comma))) return false;
      if (comma == std::string_view::npos) return true;
      line.remove_prefix(comma + 1);
    }
  }

  bool cell(std::string_view text) {
    if (text.size() >= 2 && text.front() == '"' && text.back() == '"') {
      if (!tolerate("csv.quotes", "the cell is quoted; actions need no quotes")) return false;
      text = text.substr(1, text.size() - 2);
    }
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
    while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
    if (text.empty()) {
      sheet_.rows.back().push_back(TorchCell{.place = place_});
      return true;
    }
    if (text.front() == '(') return compound(text);
    TorchAction action;
    if (!simple(text, action)) return false;
    sheet_.rows.back().push_back(TorchCell{.place = place_, .role = CellRole::kSingle, .action = action});
    return true;
  }

  bool compound(std::string_view text) {
    const std::size_t close = text.find(')');
    if (close == std::string_view::npos)
      return fail("csv.compound", fmt::format("{} has no closing bracket; expected (A;B){}", shown(text), kPairWord));
    const std::string_view word = text.substr(close + 1);
    if (word != kPairWord) {
      const bool other_type =
          std::any_of(kTypes.begin(), kTypes.end(), [&](const auto& type) { return type.first == word; });
      const std::string message =
          fmt::format("a compound is closed by {}, expected {} behind the bracket", shown(word), kPairWord);
      if (!other_type) return fail("csv.compound", message);
      if (!tolerate("csv.compound", message)) return false;
    }
    std::vector<TorchAction> parts;
    std::string_view left = text.substr(1, close - 1);
    for (;;) {
      const std::size_t semicolon = left.find(';');
      std::string_view part = left.substr(0, semicolon);
      if (lenient_) {
        while (part.starts_with(' ')) part.remove_prefix(1);
        while (part.ends_with(' ')) part.remove_suffix(1);
      }
      if (!part.empty()) {
        if (!simple(part, parts.emplace_back())) return false;
        if (!is_compute(parts.back().type))
          return fail("csv.compound",
                      fmt::format("{} is in a compound; only F, I, W and B may be", to_string(parts.back())));
      } else if (!tolerate("csv.compound",
                           fmt::format("{} has an empty part; expected (A;B){}", shown(text), kPairWord))) {
        return false;
      }
      if (semicolon == std::string_view::npos) break;
      left.remove_prefix(semicolon + 1);
    }
    if (parts.size() != 2 &&
        !tolerate("csv.compound", fmt::format("{} has {} parts; expected two", shown(text), parts.size())))
      return false;
    const bool pair = parts.size() == 2;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const CellRole role = !pair ? CellRole::kSingle : i == 0 ? CellRole::kFirstOfPair : CellRole::kSecondOfPair;
      sheet_.rows.back().push_back(TorchCell{.place = place_, .role = role, .action = parts[i]});
    }
    return true;
  }

  bool number(std::string_view& left, std::string_view whole, std::string_view what,
              std::optional<std::int32_t>& result) {
    const std::string_view before = left;
    std::int64_t value = 0;
    constexpr std::int64_t kMost = 2147483647;
    bool foreign = false;
    std::size_t digits = 0;
    for (; !left.empty(); ++digits) {
      int digit = 0;
      if (is_digit(left.front())) {
        digit = left.front() - '0';
        left.remove_prefix(1);
      } else if (const auto taken = take_unicode_digit(left)) {
        digit = *taken;
        foreign = true;
      } else {
        break;
      }
      value = std::min(kMost + 1, value * 10 + digit);
    }
    if (digits == 0) return true;
    if (value > kMost)
      return fail("csv.out_of_range", fmt::format("{}: the {} is larger than {}", shown(whole), what, kMost));
    if (foreign && !tolerate("csv.digits", fmt::format("{}: the digits of the {} are not 0..9", shown(whole), what)))
      return false;
    if (digits > 1 && before.front() == '0' &&
        !tolerate("csv.digits", fmt::format("{}: the {} has leading zeros", shown(whole), what)))
      return false;
    result = static_cast<std::int32_t>(value);
    return true;
  }

  bool unknown(std::string_view whole) {
    const bool oldest = whole.size() > 1 && (whole.front() == 'F' || whole.front() == 'B' || whole.front() == 'W') &&
                        whole.find("_s") != std::string_view::npos;
    if (oldest)
      return fail("csv.old_notation",
                  fmt::format("{} is the notation of torch 2.4 (action, micro-batch, stage); write stage, "
                              "action, micro-batch: F0_s1 is 1F0",
                              shown(whole)));
    return fail(
        "csv.unknown_action",
        fmt::format(
            "{}: expected STAGE ACTION [MICROBATCH] such as 2F0, with one of F, I, W, B, SEND_F, RECV_F, SEND_B, "
            "RECV_B, WAIT_SEND_F, WAIT_SEND_B, UNSHARD, RESHARD, REDUCE_GRAD, WAIT_REDUCE_GRAD",
            shown(whole)));
  }

  bool simple(std::string_view whole, TorchAction& action) {
    std::string_view left = whole;
    std::optional<std::int32_t> stage;
    std::optional<std::int32_t> microbatch;
    if (!number(left, whole, "stage", stage)) return false;
    if (!stage) return unknown(whole);
    std::optional<std::size_t> longest;
    for (std::size_t i = 0; i < kTypes.size(); ++i) {
      if (left.starts_with(kTypes[i].first) && (!longest || kTypes[i].first.size() > kTypes[*longest].first.size()))
        longest = i;
    }
    if (!longest) return unknown(whole);
    const auto& [word, type] = kTypes[*longest];
    left.remove_prefix(word.size());
    if (!number(left, whole, "micro-batch", microbatch)) return false;
    if (type == kBackward && left.starts_with('W') && !microbatch)
      return fail("csv.old_notation",
                  fmt::format("{}: BW is the full backward of files before October 2024; today B is the full "
                              "backward and I the gradient of the input",
                              shown(whole)));
    if (has_microbatch(type) && !microbatch)
      return fail("csv.missing_microbatch",
                  fmt::format("{}: {} needs a micro-batch, as in {}{}0", shown(whole), word, *stage, word));
    if (!left.empty() &&
        !tolerate("csv.trailing", fmt::format("{}: {} stands behind the action", shown(whole), shown(left))))
      return false;
    if (!has_microbatch(type) && microbatch &&
        !tolerate("csv.unexpected_microbatch", fmt::format("{}: {} has no micro-batch", shown(whole), word)))
      return false;
    action = TorchAction{.type = type, .stage = *stage, .microbatch = has_microbatch(type) ? *microbatch : 0};
    return true;
  }

  std::string_view text_;
  std::string_view file_name_;
  bool lenient_;
  CellPlace place_;
  TorchSheet sheet_;
  std::optional<Error> error_;
};

}  // namespace

std::string_view to_string(TorchActionType type) {
  for (const auto& [word, candidate] : kTypes)
    if (candidate == type) return word;
  return "?";
}

std::string to_string(const TorchAction& action) {
  const std::string microbatch = has_microbatch(action.type) ? fmt::format("{}", action.microbatch) : "";
  return fmt::format("{}{}{}", action.stage, to_string(action.type), microbatch);
}

Error cell_error(std::string_view file_name, CellPlace place, std::string_view rule, std::string_view message) {
  return make_error(ErrorCode::kInvalidSchedule, rule, "{}, row {}, column {}: {}", file_name, place.row, place.column,
                    message);
}

Result<TorchSheet> read_torch_sheet(std::string_view text, std::string_view file_name, CsvReading reading) {
  return SheetReader(text, file_name, reading).run();
}

}  // namespace plait
