#include "plait/run/data/token_rows.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

namespace plait {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class TokenRowsTest : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(file_); }
  const std::filesystem::path& write(const std::string& bytes) {
    std::ofstream(file_, std::ios::binary) << bytes;
    return file_;
  }
  const std::filesystem::path file_ =
      std::filesystem::path(testing::TempDir()) /
      ("plait_rows_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
};

std::vector<TokenId> ids(std::span<const TokenId> span) {
  return {span.begin(), span.end()};
}

TEST_F(TokenRowsTest, TextIsCutIntoRowsThatOverlapByOne) {
  std::vector<TokenId> tokens(12);
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto rows = cut_rows(tokens, 4, "numbers");
  ASSERT_TRUE(rows);
  ASSERT_EQ(rows->num_rows, 2);
  EXPECT_THAT(ids(rows->row(0)), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(ids(rows->row(1)), ElementsAre(4, 5, 6, 7, 8));
  EXPECT_TRUE(rows->row_counts(0).empty());
}

TEST_F(TokenRowsTest, OneSequenceIsEnoughAndOneTokenLessIsRefused) {
  const auto exact = cut_rows({1, 2, 3, 4, 5}, 4, "five");
  ASSERT_TRUE(exact);
  EXPECT_EQ(exact->num_rows, 1);
  const auto result = cut_rows({1, 2, 3, 4}, 4, "four");
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().rule, "data.short");
  EXPECT_THAT(result.error().message, HasSubstr("four: 4 tokens"));
}

TEST_F(TokenRowsTest, JsonRowsAreTakenAsTheyAre) {
  const auto rows = read_json_rows(write(R"({"tokens": [[1, 2, 3], [4, 5, 6]], "mask": [[1, 0, 1], [1, 1]]})"));
  ASSERT_TRUE(rows) << rows.error().message;
  ASSERT_EQ(rows->num_rows, 2);
  EXPECT_EQ(rows->row_size, 3);
  EXPECT_THAT(ids(rows->row(1)), ElementsAre(4, 5, 6));
  EXPECT_THAT(rows->counts, ElementsAre(1, 0, 1, 1, 1, 1));
}

TEST_F(TokenRowsTest, OtherJsonIsRefusedAndSaysWhy) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"tokens": [[1, 2], x]})", "not JSON from byte 20 on"},
      {R"({"rows": [[1, 2]]})", "no key \"tokens\""},
      {R"({"tokens": []})", "no list of rows"},
      {R"({"tokens": [[1]]})", "row 0 has 1 tokens"},
      {R"({"tokens": [[1, 2], [1, 2, 3]]})", "row 1 has 3 tokens, row 0 has 2"},
      {R"({"tokens": [[1, -2]]})", "holds -2"},
      {R"({"tokens": [[1, 2.5]]})", "holds 2.5"},
      {R"({"tokens": [[1, 99999999999]]})", "holds 99999999999"},
      {R"({"tokens": [[1, 2]], "mask": [[1], [1]]})", "\"mask\" must have 1 rows"},
      {R"({"tokens": [[1, 2, 3]], "mask": [[1]]})", "must have 3 or 2 entries"},
      {R"({"tokens": [[1, 2]], "mask": [[1, 2]]})", "holds 2, not 0 or 1"},
  };
  for (const auto& [text, expected] : cases) {
    const auto rows = read_json_rows(write(text));
    ASSERT_FALSE(rows) << text;
    EXPECT_EQ(rows.error().rule, "data.json");
    EXPECT_THAT(rows.error().message, HasSubstr(expected)) << text;
  }
}

TEST_F(TokenRowsTest, BinFilesAreLittleEndian) {
  const std::string bytes("\x01\x02\xff\x00\x00\x01\x00\x00", 8);
  const auto small = read_bin(write(bytes), BinType::kUint16);
  ASSERT_TRUE(small);
  EXPECT_THAT(*small, ElementsAre(513, 255, 256, 0));
  const auto wide = read_bin(write(bytes), BinType::kUint32);
  ASSERT_TRUE(wide);
  EXPECT_THAT(*wide, ElementsAre(0x00ff0201, 256));
  const auto odd = read_bin(write("abc"), BinType::kUint16);
  ASSERT_FALSE(odd);
  EXPECT_EQ(odd.error().rule, "data.size");
  EXPECT_THAT(odd.error().message, HasSubstr("of the last one, at byte 2, only 1 bytes are there"));
}

TEST_F(TokenRowsTest, MissingAndEmptyFilesAreRefused) {
  const auto tokenizer = make_byte_tokenizer();
  const auto missing = read_text("/nonexistent/text", *tokenizer);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().rule, "io.read");
  const auto folder = read_text(testing::TempDir(), *tokenizer);
  ASSERT_FALSE(folder);
  EXPECT_EQ(folder.error().rule, "io.read");
  const auto empty = read_text(write(""), *tokenizer);
  ASSERT_FALSE(empty);
  EXPECT_EQ(empty.error().rule, "data.empty");
}

TEST_F(TokenRowsTest, IdsBeyondTheVocabularyAreRefusedWithTheirPlace) {
  const std::vector<TokenId> tokens = {0, 95, 96};
  EXPECT_TRUE(check_vocabulary(tokens, 97, "t"));
  const auto result = check_vocabulary(tokens, 96, "t");
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().rule, "data.vocabulary");
  EXPECT_THAT(result.error().message, HasSubstr("t: token 2 has id 96, but the model's vocabulary ends at 95"));
}

TEST_F(TokenRowsTest, PlacesAreBytesWhereTokensHaveAWidth) {
  const TokenRows wide = *cut_rows({0, 1, 2, 3, 4, 5, 6, 7, 8}, 2, "ids.bin", 4);
  EXPECT_EQ(places_of(wide, std::vector<std::int64_t>{0, 3}), "ids.bin, bytes 0 to 11 and 24 to 35");
  EXPECT_THAT(check_vocabulary(wide, 7).error().message,
              HasSubstr("ids.bin: token 7, at byte 28, has id 7, but the model's vocabulary ends at 6"));
  const TokenRows pieces = *cut_rows({0, 1, 2, 3, 4, 5, 6, 7, 8}, 2, "text");
  EXPECT_EQ(places_of(pieces, std::vector<std::int64_t>{3}), "text, rows 3");
  EXPECT_EQ(places_of(pieces, std::vector<std::int64_t>(10, 1)), "text, rows 1, 1, 1, 1, 1, 1, 1, 1 and 2 more");
  EXPECT_THAT(check_vocabulary(pieces, 7).error().message, HasSubstr("text: token 7 has id 7"));
  const TokenRows rows{.source = "rows.json", .tokens = {1, 2, 3, 4, 9, 6}, .stride = 3, .row_size = 3, .num_rows = 2};
  EXPECT_THAT(check_vocabulary(rows, 7).error().message, HasSubstr("rows.json: row 1, token 1 has id 9"));
  EXPECT_TRUE(check_vocabulary(rows, 10));
}

TEST_F(TokenRowsTest, TheValidationRowsAreTheLastFraction) {
  EXPECT_EQ(split_rows(100, 0.05), (Split{.num_train = 95, .num_validation = 5}));
  EXPECT_EQ(split_rows(19, 0.05), (Split{.num_train = 19, .num_validation = 0}));
  EXPECT_EQ(split_rows(100, 0), (Split{.num_train = 100, .num_validation = 0}));
}

}  // namespace
}  // namespace plait
