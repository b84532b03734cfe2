#include "printed_order.h"
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

namespace plait {
namespace {

/// What a row of a compute file says, idle cells apart.
struct Cells {
  std::vector<Op> ops;
  std::vector<std::size_t> pairs;  ///< indices of the first ops of pairs
  friend bool operator==(const Cells&, const Cells&) = default;
};

Cells read_row(const std::string& line) {
  static const std::regex action(R"((\d+)([FIWB])(\d+))");
  Cells cells;
  std::istringstream row(line);
  for (std::string cell; std::getline(row, cell, ',');) {
    if (cell.find("OVERLAP_F_B") != std::string::npos) cells.pairs.push_back(cells.ops.size());
    for (auto at = std::sregex_iterator(cell.begin(), cell.end(), action); at != std::sregex_iterator(); ++at) {
      const char type = (*at)[2].str()[0];
      const OpKind kind = type == 'F'   ? OpKind::kForward
                          : type == 'I' ? OpKind::kBackwardInput
                          : type == 'W' ? OpKind::kBackwardWeight
                                        : OpKind::kBackward;
      cells.ops.push_back(Op{.kind = kind,
                             .stage = StageId{std::stoi((*at)[1])},
                             .microbatch = MicrobatchId{std::stoi((*at)[3])},
                             .slice = {}});
    }
  }
  return cells;
}

Cells cells_of(const Row& row) {
  Cells cells;
  for (const Instr& instr : row) {
    if (std::holds_alternative<Pair>(instr)) cells.pairs.push_back(cells.ops.size());
    if (const Op* op = std::get_if<Op>(&instr)) cells.ops.push_back(*op);
  }
  return cells;
}

const std::filesystem::path kShared = PLAIT_SHARED_DIR "/fixtures/torch-csv";

TEST(TorchOrders, EqualTheComputeFiles) {
  if (!std::filesystem::exists(kShared)) GTEST_SKIP() << "the folder of shared fixtures is not there: " << kShared;
  const std::vector<std::pair<std::string, const char*>> classes = {{"GPipe", "gpipe"},
                                                                    {"1F1B", "1f1b"},
                                                                    {"LoopedBFS", "looped-bfs"},
                                                                    {"Interleaved1F1B", "interleaved-1f1b"},
                                                                    {"InterleavedZeroBubble", "interleaved-zb"},
                                                                    {"ZBVZeroBubble", "zb-v"},
                                                                    {"DualPipeV", "dualpipev"}};
  static const std::regex name(R"((\w+?)_p(\d+)v(\d+)m(\d+)\.compute\.csv)");
  int compared = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kShared)) {
    std::smatch match;
    const std::string file_name = entry.path().filename().string();
    if (!std::regex_match(file_name, match, name)) continue;
    SCOPED_TRACE(file_name);
    const char* schedule_name = nullptr;
    for (const auto& [torch_class, own] : classes)
      if (match[1] == torch_class) schedule_name = own;
    ASSERT_NE(schedule_name, nullptr);
    const auto schedule = build_schedule(schedule_name, {.ranks = std::stoi(match[2]),
                                                         .microbatches = std::stoi(match[4]),
                                                         .chunks = std::stoi(match[3]),
                                                         .order = Order::kTorch});
    ASSERT_TRUE(schedule) << schedule.error().message;
    std::ifstream file(entry.path());
    std::vector<Cells> expected;
    for (std::string line; std::getline(file, line);) expected.push_back(read_row(line));
    ASSERT_EQ(schedule->rows.size(), expected.size());
    for (std::size_t rank = 0; rank < expected.size(); ++rank) {
      const Cells result = cells_of(schedule->rows[rank]);
      EXPECT_EQ(to_text(result.ops), to_text(expected[rank].ops)) << "rank " << rank;
      EXPECT_EQ(result.pairs, expected[rank].pairs) << "rank " << rank;
    }
    ++compared;
  }
  EXPECT_GE(compared, 43);
}

TEST(TorchOrders, DualPipeVEqualsThePublicFixtureOfFourRanks) {
  const std::filesystem::path path = kShared / "dualpipev_4rank_10mb.csv";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "the shared fixture is not there: " << path;
  const auto schedule = build_schedule("dualpipev", {.ranks = 4, .microbatches = 10});
  ASSERT_TRUE(schedule) << schedule.error().message;
  std::ifstream file(path);
  std::size_t rank = 0;
  for (std::string line; std::getline(file, line); ++rank) {
    const Cells expected = read_row(line);
    const Cells result = cells_of(schedule->rows.at(rank));
    EXPECT_EQ(to_text(result.ops), to_text(expected.ops)) << "rank " << rank;
    EXPECT_EQ(result.pairs, expected.pairs) << "rank " << rank;
  }
  EXPECT_EQ(rank, 4U);
}

}  // namespace
}  // namespace plait
