#include "plait/run/train/durable_file.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace plait {
namespace {

// Check value of the CRC catalogue's entry CRC-64/XZ.
TEST(Crc64, CheckValue) {
  EXPECT_EQ(crc64("123456789"), 0x995dc9bbdf1939faULL);
  EXPECT_EQ(crc64(""), 0U);
}

TEST(Crc64, PiecesGiveTheSameAsTheWhole) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text.push_back(static_cast<char>(i * 7));
  for (const std::size_t cut : {0U, 1U, 7U, 8U, 9U, 500U, 1000U})
    EXPECT_EQ(crc64(text.substr(cut), crc64(text.substr(0, cut))), crc64(text)) << cut;
}

TEST(Crc64, OfPiecesIsJoinedFromTheirs) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text.push_back(static_cast<char>(i * i + i / 7));
  for (const std::size_t cut : {0U, 1U, 7U, 8U, 255U, 256U, 4096U, 4999U, 5000U})
    EXPECT_EQ(crc64_joined(crc64(text.substr(0, cut)), crc64(text.substr(cut)), text.size() - cut), crc64(text)) << cut;
}

TEST(SharedFile, IsWrittenInPiecesAtTheirPlaces) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "plait_shared_file_test";
  ASSERT_TRUE(make_file(file, 9));
  {
    const auto one = SharedFile::open(file);
    const auto other = SharedFile::open(file);
    ASSERT_TRUE(one && other);
    ASSERT_TRUE(other->write("6789", 5));
    ASSERT_TRUE(one->write("12345", 0));
    ASSERT_TRUE(one->sync());
    ASSERT_TRUE(other->sync());
  }
  const auto digest = digest_file(file);
  ASSERT_TRUE(digest);
  EXPECT_EQ(*digest, (FileDigest{.bytes = 9, .crc = 0x995dc9bbdf1939faULL}));
  std::filesystem::remove(file);
  EXPECT_FALSE(SharedFile::open(file));
}

TEST(Digest, CountsBytesAndNotesAFlippedBit) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "plait_digest_test";
  std::string text(3000000, 'x');
  std::ofstream(file, std::ios::binary) << text;
  const auto whole = digest_file(file);
  ASSERT_TRUE(whole);
  EXPECT_EQ(*whole, (FileDigest{.bytes = text.size(), .crc = crc64(text)}));
  text[2500000] ^= 1;
  std::ofstream(file, std::ios::binary) << text;
  const auto flipped = digest_file(file);
  ASSERT_TRUE(flipped);
  EXPECT_NE(flipped->crc, whole->crc);
  std::filesystem::remove(file);
  EXPECT_FALSE(digest_file(file));
}

}  // namespace
}  // namespace plait
