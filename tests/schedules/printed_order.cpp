#include "printed_order.h"

#include <gtest/gtest.h>

#include <cctype>
#include <fstream>
#include <regex>
#include <sstream>

namespace plait {
namespace {

struct Notation {
  std::string placement;
  bool full_backward = false;
  int up_ids = 0;
};

Op read_cell(const std::string& cell, int rank, const PrintedOrder& order, const Notation& notation) {
  static const std::regex grammar(R"(([FBWfbw]{1,2})(\d+)(?:\.(\d+))?('?)([du]?))");
  std::smatch match;
  if (!std::regex_match(cell, match, grammar)) {
    ADD_FAILURE() << "not a cell: " << cell;
    return {};
  }
  const int p = order.shape.ranks;
  const bool second = std::islower(static_cast<unsigned char>(cell[0])) != 0 || match[4].length() > 0;
  const bool up = match[5] == "u";
  int stage = rank;
  if (second) stage = notation.placement == "v" ? 2 * p - 1 - rank : p + rank;
  if (up) stage = p - 1 - rank;
  const std::string kind = match[1];
  const char last = static_cast<char>(std::toupper(static_cast<unsigned char>(kind.back())));
  Op op{.kind = OpKind::kForward,
        .stage = StageId{stage},
        .microbatch = MicrobatchId{std::stoi(match[2]) + (up ? notation.up_ids : 0)},
        .slice = SliceId{match[3].matched ? std::stoi(match[3]) : 0}};
  if (kind.size() == 2 || (last == 'B' && notation.full_backward))
    op.kind = OpKind::kBackward;
  else if (last == 'B')
    op.kind = OpKind::kBackwardInput;
  else if (last == 'W')
    op.kind = OpKind::kBackwardWeight;
  return op;
}

}  // namespace

PrintedOrder read_printed_order(const std::string& file_name) {
  PrintedOrder order;
  Notation notation;
  std::ifstream file(std::string(PLAIT_SOURCE_DIR "/tests/data/schedules/") + file_name);
  EXPECT_TRUE(file.good()) << file_name;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word.size() > 2 && word[0] == 'r' && word.back() == ':') {
      PrintedOrder::PrintedRow row{
          .rank = std::stoi(word.substr(1)), .ops = {}, .cells = {}, .pairs = {}, .goes_on = false};
      int cell = 0;
      while (words >> word) {
        if (word == "|") continue;
        if (word == "...") {
          row.goes_on = true;
          continue;
        }
        if (word == ".") {
          ++cell;
          continue;
        }
        if (word.find('&') != std::string::npos) row.pairs.push_back(static_cast<int>(row.ops.size()));
        std::istringstream ops(word);
        for (std::string op; std::getline(ops, op, '&'); ++cell) {
          row.ops.push_back(read_cell(op, row.rank, order, notation));
          row.cells.push_back(cell);
        }
      }
      order.rows.push_back(std::move(row));
      continue;
    }
    std::string value;
    words >> value;
    if (word == "schedule")
      order.schedule = value;
    else if (word == "ranks")
      order.shape.ranks = std::stoi(value);
    else if (word == "microbatches")
      order.shape.microbatches = std::stoi(value);
    else if (word == "chunks")
      order.shape.chunks = std::stoi(value);
    else if (word == "slices")
      order.shape.slices = std::stoi(value);
    else if (word == "placement")
      notation.placement = value;
    else if (word == "backward")
      notation.full_backward = value == "full";
    else if (word == "up-ids")
      notation.up_ids = std::stoi(value);
    else
      ADD_FAILURE() << file_name << ": unknown header " << word;
  }
  return order;
}

std::vector<Op> ops_of(const Row& row) {
  std::vector<Op> ops;
  for (const Instr& instr : row)
    if (const Op* op = std::get_if<Op>(&instr)) ops.push_back(*op);
  return ops;
}

std::vector<int> pairs_of(const Row& row) {
  std::vector<int> pairs;
  int num_ops = 0;
  for (const Instr& instr : row) {
    if (std::holds_alternative<Pair>(instr)) pairs.push_back(num_ops);
    if (std::holds_alternative<Op>(instr)) ++num_ops;
  }
  return pairs;
}

std::string to_text(const std::vector<Op>& ops) {
  std::string text;
  for (const Op& op : ops)
    text += fmt::format("{}{}{}{}.{}", text.empty() ? "" : " ", op.stage.value(), to_string(op.kind),
                        op.microbatch.value(), op.slice.value());
  return text;
}

}  // namespace plait
