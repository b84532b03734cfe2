#include "plait/run/data/tokenizer.h"

#include <sentencepiece_processor.h>

#include <utility>

namespace plait {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  [[nodiscard]] std::int64_t vocab_size() const override { return 256; }
  [[nodiscard]] Result<std::vector<TokenId>> encode(std::string_view text) const override {
    std::vector<TokenId> ids;
    ids.reserve(text.size());
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  [[nodiscard]] std::string decode(std::span<const TokenId> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (const TokenId id : ids)
      if (id >= 0 && id < 256) text.push_back(static_cast<char>(static_cast<unsigned char>(id)));
    return text;
  }
};

class SentencePieceTokenizer final : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(std::unique_ptr<sentencepiece::SentencePieceProcessor> processor)
      : processor_(std::move(processor)) {}
  [[nodiscard]] std::int64_t vocab_size() const override { return processor_->GetPieceSize(); }
  [[nodiscard]] Result<std::vector<TokenId>> encode(std::string_view text) const override {
    std::vector<int> ids;
    const auto status = processor_->Encode(text, &ids);
    if (!status.ok())
      return make_error(ErrorCode::kIo, "data.spm", "the SentencePiece model cannot encode the text: {}",
                        status.ToString());
    return std::vector<TokenId>(ids.begin(), ids.end());
  }
  [[nodiscard]] std::string decode(std::span<const TokenId> ids) const override {
    std::vector<int> known;
    for (const TokenId id : ids)
      if (id >= 0 && id < processor_->GetPieceSize()) known.push_back(id);
    std::string text;
    // An id inside the vocabulary always decodes, so the status carries no news.
    return processor_->Decode(known, &text).ok() ? text : std::string();
  }

 private:
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() {
  return std::make_unique<ByteTokenizer>();
}

Result<std::unique_ptr<Tokenizer>> load_sentencepiece(const std::filesystem::path& model) {
  std::error_code ec;
  if (!std::filesystem::is_regular_file(model, ec))
    return make_error(ErrorCode::kIo, "data.spm", "{}: no such SentencePiece model file", model.string());
  auto processor = std::make_unique<sentencepiece::SentencePieceProcessor>();
  const auto status = processor->Load(model.string());
  if (!status.ok())
    return make_error(ErrorCode::kIo, "data.spm", "{}: not a SentencePiece model ({})", model.string(),
                      status.ToString());
  return std::unique_ptr<Tokenizer>(std::make_unique<SentencePieceTokenizer>(std::move(processor)));
}

}  // namespace plait
