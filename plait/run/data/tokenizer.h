#pragma once

#include "plait/base/result.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace plait {

using TokenId = std::int32_t;

/// Text to token ids and back.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  [[nodiscard]] virtual std::int64_t vocab_size() const = 0;
  [[nodiscard]] virtual Result<std::vector<TokenId>> encode(std::string_view text) const = 0;
  /// Ids outside the vocabulary are left out.
  [[nodiscard]] virtual std::string decode(std::span<const TokenId> ids) const = 0;
};

/// A token is a byte: ids 0 to 255.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

/// \errors kIo "data.spm" if the file is missing or is no SentencePiece model
Result<std::unique_ptr<Tokenizer>> load_sentencepiece(const std::filesystem::path& model);

}  // namespace plait
