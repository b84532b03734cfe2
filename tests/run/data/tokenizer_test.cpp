#include "plait/run/data/tokenizer.h"

#include <gmock/gmock.h>
#include <sentencepiece_trainer.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace plait {
namespace {

TEST(ByteTokenizer, EveryByteIsItsOwnIdAndComesBack) {
  std::string text;
  for (int i = 0; i < 256; ++i) text.push_back(static_cast<char>(i));
  const auto tokenizer = make_byte_tokenizer();
  const auto ids = tokenizer->encode(text);
  ASSERT_TRUE(ids);
  ASSERT_EQ(ids->size(), 256U);
  for (int i = 0; i < 256; ++i) EXPECT_EQ((*ids)[static_cast<std::size_t>(i)], i);
  EXPECT_EQ(tokenizer->decode(*ids), text);
  EXPECT_EQ(tokenizer->vocab_size(), 256);
}

TEST(SentencePiece, TextComesBack) {
  const std::filesystem::path dir = std::filesystem::path(testing::TempDir()) / "plait_spm_test";
  std::filesystem::create_directories(dir);
  const std::string text = "the cat sat on the mat and the rat sat on the cat";
  std::ofstream(dir / "corpus.txt") << text << "\n"
                                    << "a mat for a cat, a hat for a rat\n";
  const auto status = sentencepiece::SentencePieceTrainer::Train("--input=" + (dir / "corpus.txt").string() +
                                                                 " --model_prefix=" + (dir / "tiny").string() +
                                                                 " --vocab_size=30 --model_type=bpe --minloglevel=2");
  ASSERT_TRUE(status.ok()) << status.ToString();
  const auto tokenizer = load_sentencepiece(dir / "tiny.model");
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ((*tokenizer)->vocab_size(), 30);
  const auto ids = (*tokenizer)->encode(text);
  ASSERT_TRUE(ids);
  EXPECT_LT(ids->size(), text.size());
  EXPECT_EQ((*tokenizer)->decode(*ids), text);
  std::filesystem::remove_all(dir);
}

TEST(SentencePiece, WhatIsNoModelIsRefused) {
  const auto missing = load_sentencepiece("/nonexistent/spm.model");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().rule, "data.spm");
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "plait_not_spm.model";
  std::ofstream(file) << "not a model";
  const auto damaged = load_sentencepiece(file);
  ASSERT_FALSE(damaged);
  EXPECT_EQ(damaged.error().rule, "data.spm");
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace plait
