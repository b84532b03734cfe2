#include "plait/run/data/token_rows.h"

#include "plait/base/files.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace plait {
namespace {

using nlohmann::json;

Result<std::string> read_bytes(const std::filesystem::path& file) {
  PLAIT_TRY(std::string bytes, read_file(file));
  if (bytes.empty()) return make_error(ErrorCode::kIo, "data.empty", "{}: the file is empty", file.string());
  return bytes;
}

template <class Word>
std::vector<TokenId> words_to_ids(std::string_view bytes) {
  std::vector<TokenId> ids(bytes.size() / sizeof(Word));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    std::uint32_t id = 0;
    for (std::size_t b = 0; b < sizeof(Word); ++b)
      id |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i * sizeof(Word) + b])) << (8 * b);
    // Above 2^31 - 1 the id turns negative, which no vocabulary holds.
    std::memcpy(&ids[i], &id, sizeof id);
  }
  return ids;
}

Error json_error(const std::filesystem::path& file, std::string_view what) {
  return make_error(ErrorCode::kIo, "data.json",
                    "{}: {}; expected {{\"tokens\": [[1, 2, 3], ...]}} with rows of equal "
                    "length",
                    file.string(), what);
}

/// Appends one row of `mask` as an entry per token; a row of one entry per target gets one for the first token.
Result<> append_counts(const std::filesystem::path& file, const json& row, std::size_t row_idx, TokenRows& rows) {
  const auto row_size = static_cast<std::size_t>(rows.row_size);
  if (!row.is_array() || (row.size() != row_size && row.size() + 1 != row_size))
    return json_error(file,
                      fmt::format("row {} of \"mask\" must have {} or {} entries", row_idx, row_size, row_size - 1));
  if (row.size() + 1 == row_size) rows.counts.push_back(1);
  for (const json& entry : row) {
    if (entry.is_boolean()) {
      rows.counts.push_back(entry.get<bool>() ? 1 : 0);
    } else if (entry.is_number_integer() && (entry == 0 || entry == 1)) {
      rows.counts.push_back(static_cast<std::uint8_t>(entry.get<int>()));
    } else {
      return json_error(file, fmt::format("row {} of \"mask\" holds {}, not 0 or 1", row_idx, entry.dump()));
    }
  }
  return {};
}

Result<> append_tokens(const std::filesystem::path& file, const json& row, std::size_t row_idx, TokenRows& rows) {
  if (!row.is_array()) return json_error(file, fmt::format("row {} of \"tokens\" is no list", row_idx));
  if (row.size() < 2)
    return json_error(file, fmt::format("row {} has {} tokens, two are the least", row_idx, row.size()));
  if (row_idx == 0) rows.row_size = rows.stride = static_cast<std::int64_t>(row.size());
  if (static_cast<std::int64_t>(row.size()) != rows.row_size)
    return json_error(file, fmt::format("row {} has {} tokens, row 0 has {}", row_idx, row.size(), rows.row_size));
  for (const json& id : row) {
    const bool fits = id.is_number_integer() && id >= 0 && id <= std::numeric_limits<TokenId>::max();
    if (!fits) return json_error(file, fmt::format("row {} holds {}, not a token id", row_idx, id.dump()));
    rows.tokens.push_back(id.get<TokenId>());
  }
  return {};
}

std::string place_of_token(const TokenRows& rows, std::size_t token) {
  const auto at = static_cast<std::int64_t>(token);
  if (rows.token_bytes > 0) return fmt::format("{}: token {}, at byte {},", rows.source, at, at * rows.token_bytes);
  if (rows.stride == rows.row_size && rows.row_size > 0)
    return fmt::format("{}: row {}, token {}", rows.source, at / rows.row_size, at % rows.row_size);
  return fmt::format("{}: token {}", rows.source, at);
}

/// \param place  of the token at an index, in words
template <class Place>
Result<> check_ids(std::span<const TokenId> tokens, std::int64_t vocab_size, const Place& place) {
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i] < 0 || tokens[i] >= vocab_size) [[unlikely]]
      return make_error(ErrorCode::kIo, "data.vocabulary",
                        "{} has id {}, but the model's vocabulary ends at {}; use the tokens this model was made for",
                        place(i), static_cast<std::uint32_t>(tokens[i]), vocab_size - 1);
  return {};
}

}  // namespace

Result<TokenRows> cut_rows(std::vector<TokenId> tokens, std::int64_t seq, std::string source,
                           std::int64_t token_bytes) {
  if (tokens.empty()) return make_error(ErrorCode::kIo, "data.empty", "{}: holds no token", source);
  const auto num_tokens = static_cast<std::int64_t>(tokens.size());
  if (num_tokens < seq + 1)
    return make_error(ErrorCode::kIo, "data.short",
                      "{}: {} tokens, but one sequence of --seq {} takes {}; give a longer text or a smaller --seq",
                      source, num_tokens, seq, seq + 1);
  return TokenRows{.source = std::move(source),
                   .tokens = std::move(tokens),
                   .stride = seq,
                   .row_size = seq + 1,
                   .num_rows = (num_tokens - 1) / seq,
                   .token_bytes = token_bytes};
}

std::string places_of(const TokenRows& rows, std::span<const std::int64_t> row_indices) {
  constexpr std::size_t kMost = 8;
  std::string words = fmt::format("{}, {}", rows.source, rows.token_bytes > 0 ? "bytes" : "rows");
  for (std::size_t i = 0; i < std::min(row_indices.size(), kMost); ++i) {
    const std::int64_t row = row_indices[i];
    const bool is_last = i + 1 == row_indices.size();
    words += i == 0 ? " " : is_last ? " and " : ", ";
    const std::int64_t begin = row * rows.stride * rows.token_bytes;
    words += rows.token_bytes > 0 ? fmt::format("{} to {}", begin, begin + rows.row_size * rows.token_bytes - 1)
                                  : fmt::format("{}", row);
  }
  if (row_indices.size() > kMost) words += fmt::format(" and {} more", row_indices.size() - kMost);
  return words;
}

Result<std::vector<TokenId>> read_text(const std::filesystem::path& file, const Tokenizer& tokenizer) {
  PLAIT_TRY(const std::string bytes, read_bytes(file));
  return tokenizer.encode(bytes);
}

Result<std::vector<TokenId>> read_bin(const std::filesystem::path& file, BinType type) {
  PLAIT_TRY(const std::string bytes, read_bytes(file));
  const auto width = static_cast<std::size_t>(bytes_of(type));
  if (const std::size_t rest = bytes.size() % width; rest != 0)
    return make_error(
        ErrorCode::kIo, "data.size",
        "{}: {} bytes are no whole number of {}-byte token ids: of the last one, at byte {}, only {} bytes "
        "are there; give the whole file, or see --bin-dtype",
        file.string(), bytes.size(), width, bytes.size() - rest, rest);
  return type == BinType::kUint16 ? words_to_ids<std::uint16_t>(bytes) : words_to_ids<std::uint32_t>(bytes);
}

Result<TokenRows> read_json_rows(const std::filesystem::path& file) {
  PLAIT_TRY(const std::string bytes, read_bytes(file));
  json document;
  try {
    document = json::parse(bytes);
  } catch (const json::parse_error& error) {
    return json_error(file, fmt::format("not JSON from byte {} on", error.byte == 0 ? 0 : error.byte - 1));
  }
  if (!document.is_object() || !document.contains("tokens")) return json_error(file, "no key \"tokens\"");
  const json& token_rows = document["tokens"];
  if (!token_rows.is_array() || token_rows.empty()) return json_error(file, "\"tokens\" is no list of rows");
  TokenRows rows{.source = file.string(), .num_rows = static_cast<std::int64_t>(token_rows.size())};
  for (std::size_t i = 0; i < token_rows.size(); ++i) PLAIT_TRY_VOID(append_tokens(file, token_rows[i], i, rows));
  if (document.contains("mask")) {
    const json& mask = document["mask"];
    if (!mask.is_array() || mask.size() != token_rows.size())
      return json_error(file, fmt::format("\"mask\" must have {} rows", token_rows.size()));
    for (std::size_t i = 0; i < mask.size(); ++i) PLAIT_TRY_VOID(append_counts(file, mask[i], i, rows));
  }
  return rows;
}

Result<> check_vocabulary(std::span<const TokenId> tokens, std::int64_t vocab_size, std::string_view source) {
  return check_ids(tokens, vocab_size, [&](std::size_t i) { return fmt::format("{}: token {}", source, i); });
}

Result<> check_vocabulary(const TokenRows& rows, std::int64_t vocab_size) {
  return check_ids(rows.tokens, vocab_size, [&](std::size_t i) { return place_of_token(rows, i); });
}

Split split_rows(std::int64_t num_rows, double validation_fraction) {
  const auto num_validation =
      static_cast<std::int64_t>(std::floor(static_cast<double>(num_rows) * validation_fraction));
  return Split{.num_train = num_rows - num_validation, .num_validation = num_validation};
}

}  // namespace plait
