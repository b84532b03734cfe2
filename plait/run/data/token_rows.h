#pragma once

#include "plait/base/result.h"
#include "plait/run/data/tokenizer.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace plait {

/// Rows of equal length cut from one sequence of tokens. A row of T + 1 tokens gives T predictions. Rows of running
/// text overlap by one token, so that every token but the first is predicted once.
///
///     PLAIT_TRY(TokenRows rows, cut_rows(tokens, 128, "bible.txt"));
///     rows.row(3)          // 129 tokens, 384 .. 512
struct TokenRows {
  std::string source;  ///< file name for messages
  std::vector<TokenId> tokens;
  std::vector<std::uint8_t> counts;  ///< per token: 1 if it counts as a target; empty = all count
  std::int64_t stride = 0;           ///< tokens between the starts of neighbouring rows
  std::int64_t row_size = 0;         ///< T + 1
  std::int64_t num_rows = 0;
  std::int64_t token_bytes = 0;  ///< width of a token in the file; 0 = they have no place that can be counted

  [[nodiscard]] std::span<const TokenId> row(std::int64_t row_idx) const {
    return std::span(tokens).subspan(static_cast<std::size_t>(row_idx * stride), static_cast<std::size_t>(row_size));
  }
  /// Empty if every token counts.
  [[nodiscard]] std::span<const std::uint8_t> row_counts(std::int64_t row_idx) const {
    if (counts.empty()) return {};
    return std::span(counts).subspan(static_cast<std::size_t>(row_idx * stride), static_cast<std::size_t>(row_size));
  }
};

/// \errors kIo "data.empty" if there is no token, "data.short" if there are fewer than seq + 1
Result<TokenRows> cut_rows(std::vector<TokenId> tokens, std::int64_t seq, std::string source,
                           std::int64_t token_bytes = 0);

/// Where rows stand in their file, in words: "corpus.bin, bytes 256 to 290 and 512 to 546", or the numbers of the rows. Of
/// many only the first ones.
std::string places_of(const TokenRows& rows, std::span<const std::int64_t> row_indices);

/// The bytes of a text file through a tokenizer. \errors kIo "io.read", "data.empty"
Result<std::vector<TokenId>> read_text(const std::filesystem::path& file, const Tokenizer& tokenizer);

enum class BinType : std::uint8_t { kUint16, kUint32 };
constexpr std::int64_t bytes_of(BinType type) {
  return type == BinType::kUint16 ? 2 : 4;
}

/// A file that is nothing but token ids, little endian, one behind the other.
/// \errors kIo "io.read", "data.empty", "data.size" if the size is no multiple of an id's
Result<std::vector<TokenId>> read_bin(const std::filesystem::path& file, BinType type);

/// Rows as they are: {"tokens": [[...], ...]} and, if some targets do not count, "mask" of the same shape or one
/// shorter per row (an entry per target), 0 where the target is not counted.
/// \errors kIo "io.read", "data.json" for other JSON, rows of unequal length, rows shorter than two tokens
Result<TokenRows> read_json_rows(const std::filesystem::path& file);

/// Every id must lie in [0, vocab_size). \errors kIo "data.vocabulary" with the place of the first that does not
Result<> check_vocabulary(std::span<const TokenId> tokens, std::int64_t vocab_size, std::string_view source);
/// The same with the byte of the file, or the row, where it stands.
Result<> check_vocabulary(const TokenRows& rows, std::int64_t vocab_size);

/// Training rows [0, num_train) and validation rows behind them: the last floor(fraction * rows).
struct Split {
  std::int64_t num_train = 0;
  std::int64_t num_validation = 0;
  friend bool operator==(const Split&, const Split&) = default;
};
Split split_rows(std::int64_t num_rows, double validation_fraction);

}  // namespace plait
