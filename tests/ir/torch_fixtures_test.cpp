/// Every pair of files that PyTorch wrote: import and export give the same bytes, also after a detour through the text
/// format, and lowering the compute file gives the comms file.
#include "plait/ir/file.h"
#include "plait/ir/text.h"
#include "plait/ir/torch_lowering.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace plait {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  std::ostringstream bytes;
  bytes << in.rdbuf();
  return std::move(bytes).str();
}

struct Fixture {
  std::string file;
  std::string lowering;  ///< empty for compute files
};

std::vector<Fixture> fixtures_of(const fs::path& folder) {
  std::vector<Fixture> fixtures;
  std::istringstream manifest(read(folder / "MANIFEST.tsv"));
  std::string line;
  std::getline(manifest, line);
  while (std::getline(manifest, line)) {
    std::istringstream fields(line);
    std::vector<std::string> columns(1);
    while (std::getline(fields, columns.back(), '\t')) columns.emplace_back();
    fixtures.push_back(Fixture{.file = columns.at(0), .lowering = columns.at(6).substr(0, columns.at(6).find(" ("))});
  }
  return fixtures;
}

TorchLoweringOptions options_of(const std::string& lowering) {
  const std::map<std::string, TorchLoweringOptions> known = {
      {"defaults", {}},
      {"defer_pp_recv=True", {.defer_recv = true}},
      {"unshard_lookahead='auto'", {.unshard_lookahead = {UnshardLookahead::Auto{}}}},
      {"defer_reduce_grad_wait=True", {.defer_reduce_grad_wait = true}},
      {"max_outstanding_sends=1", {.max_outstanding_sends = 1}},
      {"max_outstanding_sends=2", {.max_outstanding_sends = 2}},
      {"max_active_stages=2", {.max_active_stages = 2}},
  };
  return known.at(lowering);
}

std::string exported(const std::variant<Schedule, Program>& content) {
  const auto text = std::holds_alternative<Schedule>(content) ? export_torch_csv(std::get<Schedule>(content))
                                                              : export_torch_csv(std::get<Program>(content));
  EXPECT_TRUE(text) << text.error().message;
  return text ? *text : "";
}

void expect_round_trip(const fs::path& path) {
  const std::string bytes = read(path);
  const auto imported = read_schedule_file(path);
  ASSERT_TRUE(imported) << imported.error().message;
  EXPECT_EQ(imported->ignored, std::vector<std::string>{});
  EXPECT_EQ(exported(imported->content), bytes) << path;
  const std::string text = std::visit([](const auto& held) { return print_text(held); }, imported->content);
  const auto again = parse_schedule(text, "detour");
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->format, FileFormat::kText);
  EXPECT_EQ(again->content, imported->content);
  EXPECT_EQ(exported(again->content), bytes) << path;
}

void expect_lowering(const fs::path& compute, const fs::path& comms, const TorchLoweringOptions& options) {
  const auto imported = read_schedule_file(compute);
  ASSERT_TRUE(imported) << imported.error().message;
  const auto program = lower_as_torch(std::get<Schedule>(imported->content), options);
  ASSERT_TRUE(program) << program.error().message;
  const auto text = export_torch_csv(*program);
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_EQ(*text, read(comms)) << comms;
  // What is written is also what is read.
  const auto read_back = import_torch_csv(*text, compute.string());
  ASSERT_TRUE(read_back) << read_back.error().message;
  EXPECT_EQ(std::get<Program>(read_back->content), *program) << comms;
}

void expect_all(const fs::path& folder, int expected_comparisons) {
  int comparisons = 0;
  fs::path compute;
  for (const Fixture& fixture : fixtures_of(folder)) {
    const fs::path path = folder / fixture.file;
    if (fixture.lowering == "REJECTED by torch's own check") {
      const auto refused = read_schedule_file(path);
      ASSERT_FALSE(refused) << path;
      EXPECT_EQ(refused.error().rule, "verify.backward_before_forward");
      EXPECT_EQ(refused.error().code, ErrorCode::kInvalidSchedule);
      continue;
    }
    expect_round_trip(path);
    if (fixture.lowering.empty()) {
      compute = path;
    } else {
      expect_lowering(compute, path, options_of(fixture.lowering));
    }
    ++comparisons;
  }
  EXPECT_EQ(comparisons, expected_comparisons);
}

TEST(TorchFixtures, KeptOnes) {
  expect_all(fs::path(PLAIT_SOURCE_DIR) / "tests/data/torch-csv", 24);
}

TEST(TorchFixtures, SharedOnes) {
  const fs::path folder = fs::path(PLAIT_SHARED_DIR) / "fixtures/torch-csv";
  if (!fs::exists(folder)) GTEST_SKIP() << folder << " is not there; the fixtures kept in tests/data were compared";
  expect_all(folder, 116);
  expect_round_trip(folder / "dualpipev_4rank_10mb.csv");
}

TEST(TorchFixtures, PublicCustomScheduleRoundTrips) {
  expect_round_trip(fs::path(PLAIT_SOURCE_DIR) / "tests/data/torch-csv/torchtitan-custom-schedule.csv");
}

TEST(TorchFixtures, OldNotationIsRefusedWithAHint) {
  const std::string name = "zb1p_2rank_2stagep_compute_old-notation.csv";
  const auto refused = import_torch_csv(read(fs::path(PLAIT_SOURCE_DIR) / "tests/data/torch-csv" / name), name);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().rule, "csv.old_notation");
  EXPECT_EQ(refused.error().message,
            name +
                ", row 1, column 7: 2W0: 2B0 did the full backward already. In files before October "
                "2024 B meant the gradient of the input only; write it as 2I0");
}

/// The public ZB1P pair: letters translated, adjacent I and W merged, as its own merging pass
/// gives them.
TEST(TorchFixtures, TranslatedAndMergedZb1pLowersAsPublished) {
  std::string text =
      read(fs::path(PLAIT_SOURCE_DIR) / "tests/data/torch-csv/zb1p_2rank_2stagep_compute_old-notation.csv");
  for (char& c : text)
    if (c == 'B') c = 'I';
  const auto imported = import_torch_csv(text, "zb1p");
  ASSERT_TRUE(imported) << imported.error().message;
  const auto merged = export_torch_csv(merge_backwards(std::get<Schedule>(imported->content)));
  ASSERT_TRUE(merged) << merged.error().message;
  EXPECT_EQ(
      *merged,
      "0F0,0F1,2F0,2F1,2B0,0F2,2B1,0F3,0B0,2F2,0B1,2F3,2B2,0F4,2B3,0F5,0B2,2F4,0B3,2F5,2B4,0F6,2B5,0F7,0B4,2F6,0B5,2F7,"
      "2B6,2B7,0B6,0B7\n"
      "1F0,1F1,3F0,3I0,3F1,3I1,3W0,1F2,1I0,3W1,1F3,1I1,1W0,3F2,3I2,1W1,3F3,3I3,3W2,1F4,1I2,3W3,1F5,1I3,1W2,3F4,3I4,1W3,"
      "3F5,3I5,3W4,1F6,1I4,3W5,1F7,1I5,1W4,3F6,3I6,1W5,3F7,3I7,3W6,1I6,3W7,1I7,1W6,1W7\n");
}

}  // namespace
}  // namespace plait
