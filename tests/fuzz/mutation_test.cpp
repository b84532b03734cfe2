/// Random byte mutations of the corpus must not crash, hang or break what tests/fuzz/properties.h demands.
#include "plait/ir/text.h"
#include "plait/ir/torch_cells.h"

#include "tests/fuzz/properties.h"
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace plait {
namespace {

constexpr std::uint64_t kSeed = 20261130;
constexpr int kRounds = 4000;

std::vector<std::string> corpus(std::string_view kind) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(PLAIT_SOURCE_DIR) + "/tests/fuzz/corpus/" + std::string(kind)))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> texts;
  for (const auto& path : paths) {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream bytes;
    bytes << in.rdbuf();
    texts.push_back(std::move(bytes).str());
  }
  return texts;
}

class Mutator {
 public:
  explicit Mutator(std::vector<std::string> texts) : texts_(std::move(texts)) {}

  std::string next() {
    std::string text = texts_[index(texts_.size())];
    const int changes = 1 + below(4);
    for (int i = 0; i < changes; ++i) change(text);
    return text;
  }

 private:
  int below(std::size_t limit) { return static_cast<int>(random_() % limit); }
  std::size_t index(std::size_t limit) { return static_cast<std::size_t>(random_() % limit); }
  std::size_t place(const std::string& text) { return static_cast<std::size_t>(below(text.size() + 1)); }

  void change(std::string& text) {
    static constexpr std::string_view kPieces[] = {"0",          "7",           "999999999999",
                                                   "2147483647", ",",           ";",
                                                   "(",          ")",           "\n",
                                                   "\r\n",       " ",           "#",
                                                   "F",          "B",           "W",
                                                   "I",          "&",           ".",
                                                   "|",          ">",           "->",
                                                   "..",         "@",           "SEND_F",
                                                   "RECV_B",     "none",        "rank 0:",
                                                   "UNSHARD",    "OVERLAP_F_B", "\xd9\xa3",
                                                   "\"",         "\\",          std::string_view("\0", 1)};
    const std::size_t at = place(text);
    const std::size_t size = std::min(text.size() - at, static_cast<std::size_t>(below(12)));
    switch (below(5)) {
      case 0: text.erase(at, size); break;
      case 1: text.insert(at, kPieces[index(std::size(kPieces))]); break;
      case 2: text.insert(place(text), text.substr(at, size)); break;
      case 3: text.replace(at, size, kPieces[index(std::size(kPieces))]); break;
      default:
        if (at < text.size()) text[at] = static_cast<char>(below(256));
    }
  }

  std::vector<std::string> texts_;
  std::mt19937_64 random_{kSeed};
};

TEST(Mutations, OfTexts) {
  RecordProperty("seed", std::to_string(kSeed));
  Mutator mutator(corpus("text"));
  for (int round = 0; round < kRounds; ++round) {
    const std::string text = mutator.next();
    ASSERT_NO_THROW(fuzz::check_text(text)) << "seed " << kSeed << ", round " << round << ":\n" << text;
  }
}

TEST(Mutations, OfCsvFiles) {
  RecordProperty("seed", std::to_string(kSeed));
  Mutator mutator(corpus("csv"));
  for (int round = 0; round < kRounds; ++round) {
    const std::string text = mutator.next();
    ASSERT_NO_THROW(fuzz::check_csv(text)) << "seed " << kSeed << ", round " << round << ":\n" << text;
  }
}

/// A corpus that is refused at its first line would leave little to mutate.
TEST(Mutations, CorpusIsReadToItsEnd) {
  EXPECT_EQ(corpus("text").size(), 2U);
  for (const std::string& text : corpus("text")) {
    const auto parsed = parse_text(text, "corpus");
    EXPECT_TRUE(parsed) << parsed.error().message;
    EXPECT_NO_THROW(fuzz::check_text(text));
  }
  EXPECT_EQ(corpus("csv").size(), 8U);
  for (const std::string& text : corpus("csv")) {
    const auto sheet = read_torch_sheet(text, "corpus", CsvReading::kLenient);
    EXPECT_TRUE(sheet) << sheet.error().message;
    EXPECT_NO_THROW(fuzz::check_csv(text));
  }
}

}  // namespace
}  // namespace plait
