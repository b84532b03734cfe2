#include "plait/ir/file.h"
#include "plait/verify/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace plait {
namespace {

using Cells = std::vector<std::string>;
using Rows = std::vector<Cells>;

// What torch 2.15 writes for 1F1B on two ranks with four micro-batches.
const char* const kComms =
    "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0WAIT_SEND_F0,0F2,0SEND_F2,0RECV_B1,0B1,0WAIT_SEND_F1,0F3,0SEND_"
    "F3,"
    "0RECV_B2,0B2,0WAIT_SEND_F2,0RECV_B3,0B3,0WAIT_SEND_F3,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0RESHARD\n"
    "1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1RECV_F2,1B1,1SEND_B1,1F2,1RECV_F3,1B2,1SEND_B2,1F3,1B3,1SEND_B3,"
    "1REDUCE_GRAD,1WAIT_REDUCE_GRAD,1RESHARD,1WAIT_SEND_B0,1WAIT_SEND_B1,1WAIT_SEND_B2,1WAIT_SEND_B3\n";
const char* const kCompute =
    "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n"
    "1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n";

Rows rows_of(const std::string& text) {
  Rows rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    rows.emplace_back();
    std::istringstream cells(line);
    for (std::string cell; std::getline(cells, cell, ',');) rows.back().push_back(cell);
  }
  return rows;
}

std::string text_of(const Rows& rows) {
  std::string text;
  for (const Cells& row : rows) {
    for (std::size_t k = 0; k < row.size(); ++k) text += (k > 0 ? "," : "") + row[k];
    text += "\r\n";
  }
  return text;
}

/// The rules that `plait schedule check` would name: the importer's own refusal, or the verifier's findings.
std::vector<std::string> verdict(const std::string& text, TransferRule transfers = TransferRule::kBuffered) {
  const auto file = parse_schedule(text, "damaged.csv", {.checks = CsvChecks::kForVerifier});
  if (!file) return {file.error().rule};
  std::vector<std::string> rules;
  for (const Finding& f :
       std::visit([&](const auto& content) { return verify(content, {.transfers = transfers}); }, file->content))
    rules.push_back(f.rule);
  return rules;
}

Cells::iterator find(Cells& row, const std::string& cell) {
  const auto found = std::find(row.begin(), row.end(), cell);
  EXPECT_NE(found, row.end()) << cell;
  return found;
}
void drop(Cells& row, const std::string& cell) {
  row.erase(find(row, cell));
}
void put_before(Cells& row, const std::string& where, const Cells& cells) {
  row.insert(find(row, where), cells.begin(), cells.end());
}
void put_behind(Cells& row, const std::string& where, const Cells& cells) {
  row.insert(find(row, where) + 1, cells.begin(), cells.end());
}

struct Damage {
  const char* name;  ///< as the table of README names it
  const char* base;
  std::function<void(Rows&)> plant;
  std::vector<std::string> expected;
};

const Damage kDamages[] = {
    {"REDUCE_GRAD and its wait removed",
     kComms,
     [](Rows& r) { drop(r[0], "0REDUCE_GRAD"), drop(r[0], "0WAIT_REDUCE_GRAD"); },
     {"verify.missing_reduce"}},
    {"REDUCE_GRAD before the last backward",
     kComms,
     [](Rows& r) {
       drop(r[0], "0REDUCE_GRAD"), drop(r[0], "0WAIT_REDUCE_GRAD"),
           put_before(r[0], "0B3", {"0REDUCE_GRAD", "0WAIT_REDUCE_GRAD"});
     },
     {"verify.reduce_before_backward"}},
    {"REDUCE_GRAD twice",
     kComms,
     [](Rows& r) {
       put_behind(r[0], "0WAIT_REDUCE_GRAD", {"0REDUCE_GRAD", "0WAIT_REDUCE_GRAD"});
     },
     {"verify.reduce_twice"}},
    {"a rank receives F1 before F0",
     kComms,
     [](Rows& r) { drop(r[1], "1RECV_F1"), put_before(r[1], "1RECV_F0", {"1RECV_F1"}); },
     {"verify.message_order"}},
    {"a SEND removed with its wait",
     kComms,
     [](Rows& r) { drop(r[0], "0SEND_F1"), drop(r[0], "0WAIT_SEND_F1"); },
     {"verify.receive_without_send"}},
    {"each rank waits for a send before it posts the other's receive",
     kComms,
     [](Rows& r) {
       drop(r[0], "0WAIT_SEND_F1"), put_before(r[0], "0RECV_B0", {"0WAIT_SEND_F1"});
       drop(r[1], "1RECV_F1"), drop(r[1], "1WAIT_SEND_B0"), put_before(r[1], "1F1", {"1WAIT_SEND_B0", "1RECV_F1"});
     },
     {"verify.deadlock"}},
    {"a RECV removed", kComms, [](Rows& r) { drop(r[1], "1RECV_F1"); }, {"verify.send_without_receive"}},
    {"a RECV placed after its F",
     kComms,
     [](Rows& r) { drop(r[1], "1RECV_F1"), put_behind(r[1], "1F1", {"1RECV_F1"}); },
     {"verify.receive_after_use"}},
    {"a RECV twice", kComms, [](Rows& r) { put_before(r[1], "1RECV_F1", {"1RECV_F1"}); }, {"verify.duplicate_receive"}},
    {"a SEND before its F",
     kComms,
     [](Rows& r) { drop(r[0], "0SEND_F1"), put_before(r[0], "0F1", {"0SEND_F1"}); },
     {"verify.send_before_write"}},
    {"a SEND from the last stage",
     kComms,
     [](Rows& r) { put_behind(r[1], "1F0", {"1SEND_F0"}), r[1].push_back("1WAIT_SEND_F0"); },
     {"csv.no_neighbour"}},
    {"B0 and B1 replaced by B0 and I0, W0",
     kCompute,
     [](Rows& r) {
       put_before(r[1], "1B1", {"1I0", "1W0"}), drop(r[1], "1B1");
     },
     {"verify.duplicate_op"}},
    {"one micro-batch renamed on all stages",
     kCompute,
     [](Rows& r) {
       for (Cells& row : r)
         for (std::string& cell : row)
           if (cell.ends_with('3')) cell.back() = '7';
     },
     {"verify.out_of_range"}},
    {"an empty compound", kCompute, [](Rows& r) { put_behind(r[0], "0F0", {"()OVERLAP_F_B"}); }, {"csv.compound"}},
    {"rows exchanged", kCompute, [](Rows& r) { std::swap(r[0], r[1]); }, {}},
    {"a compound whose backward is of the forward it overlaps",
     kCompute,
     [](Rows& r) { *find(r[1], "1F0") = "(1F0;1B0)OVERLAP_F_B", drop(r[1], "1B0"); },
     {}},
    {"UNSHARD removed, or RESHARD at the front",
     kComms,
     [](Rows& r) { drop(r[0], "0UNSHARD"); },
     {"verify.weights_not_here"}},
    {"UNSHARD removed, or RESHARD at the front",
     kComms,
     [](Rows& r) { drop(r[0], "0RESHARD"), put_before(r[0], "0UNSHARD", {"0RESHARD"}); },
     {"verify.weights_not_here"}},
    {"UNSHARD removed, or RESHARD at the front",
     kComms,
     [](Rows& r) { drop(r[0], "0RESHARD"), put_behind(r[0], "0UNSHARD", {"0RESHARD"}); },
     {"verify.weights_not_here"}},
    {"RECV_B0 posted before SEND_F0",
     kComms,
     [](Rows& r) { drop(r[0], "0RECV_B0"), put_before(r[0], "0SEND_F0", {"0RECV_B0"}); },
     {}},
};

TEST(TorchDamage, SoundFilesPass) {
  for (const TransferRule rule : {TransferRule::kBuffered, TransferRule::kBounded, TransferRule::kRendezvous}) {
    EXPECT_THAT(verdict(kComms, rule), ::testing::IsEmpty());
    EXPECT_THAT(verdict(kCompute, rule), ::testing::IsEmpty());
  }
}

// What PyTorch's own checks let through, each with the verdict that a proof must give.
TEST(TorchDamage, EachRowOfTheTableGetsItsVerdict) {
  for (const Damage& damage : kDamages) {
    Rows rows = rows_of(damage.base);
    damage.plant(rows);
    EXPECT_EQ(verdict(text_of(rows)), damage.expected) << damage.name;
  }
}

/// The table of README: what is damaged, and what Plait says.
std::map<std::string, std::string> table_of_readme() {
  std::ifstream readme(std::string(PLAIT_SOURCE_DIR) + "/README.md");
  std::map<std::string, std::string> table;
  bool inside = false;
  for (std::string line; std::getline(readme, line);) {
    if (line.starts_with("| damage |")) inside = true;
    if (!inside || line.starts_with("|---") || line.starts_with("| damage |")) continue;
    if (!line.starts_with("| ")) break;
    const auto first = line.find(" |");
    const auto last = line.rfind("| ", line.size() - 3);
    table[line.substr(2, first - 2)] = line.substr(last + 2, line.size() - last - 4);
  }
  return table;
}

TEST(TorchDamage, ReadmeShowsTheVerdicts) {
  std::map<std::string, std::string> expected;
  for (const Damage& damage : kDamages)
    expected[damage.name] = damage.expected.empty() ? "proved" : "`" + damage.expected.front() + "`";
  expected["RECV_B0 posted before SEND_F0"] = "proved; `verify.deadlock` under rendezvous";
  expected["rows exchanged"] = "proved: another placement";
  EXPECT_EQ(table_of_readme(), expected);
}

TEST(TorchDamage, AReceivePostedAheadOfASendBlocksUnderRendezvousOnly) {
  Rows rows = rows_of(kComms);
  drop(rows[0], "0RECV_B0");
  put_before(rows[0], "0SEND_F0", {"0RECV_B0"});
  EXPECT_THAT(verdict(text_of(rows)), ::testing::IsEmpty());
  EXPECT_THAT(verdict(text_of(rows), TransferRule::kBounded), ::testing::IsEmpty());
  EXPECT_THAT(verdict(text_of(rows), TransferRule::kRendezvous), ::testing::ElementsAre("verify.deadlock"));
}

TEST(TorchDamage, ForwardsThatStartAtOneAreABackwardBeforeForward) {
  EXPECT_THAT(verdict("0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F1,1B0,1F2,1B1,1F3,1B2,1F4,1B3\n"),
              ::testing::Contains("verify.backward_before_forward"));
}

TEST(TorchDamage, EveryFileThatTorchWrotePasses) {
  const std::filesystem::path folder = std::filesystem::path(PLAIT_SHARED_DIR) / "fixtures" / "torch-csv";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is absent: it holds files that torch wrote";
  int checked = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() != ".csv" || name.find("compute-raw") != std::string::npos ||
        name.find("old-notation") != std::string::npos)
      continue;
    const auto file = read_schedule_file(entry.path());
    ASSERT_TRUE(file) << file.error().message;
    for (const TransferRule rule : {TransferRule::kBuffered, TransferRule::kBounded}) {
      const auto findings =
          std::visit([&](const auto& content) { return verify(content, {.transfers = rule}); }, file->content);
      EXPECT_TRUE(findings.empty()) << name << ": " << findings.front().message;
    }
    ++checked;
  }
  EXPECT_GT(checked, 90);
}

}  // namespace
}  // namespace plait
