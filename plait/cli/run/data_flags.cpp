#include "plait/cli/run/data_flags.h"

#include "plait/cli/run/corpus.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace plait::cli {
namespace {

Result<> check_flags(const DataFlags& data, const FlagSet& flags) {
  const auto refuse = [](std::string_view what) {
    return make_error(ErrorCode::kInvalidArgument, "data.flags", "{}", what);
  };
  const auto given = {!data.text.empty(), !data.bin.empty(), !data.tokens.empty()};
  if (std::count(given.begin(), given.end(), true) > 1)
    return refuse("--text, --bin and --tokens exclude each other; give one");
  if (!data.sentencepiece.empty() && (!data.bin.empty() || !data.tokens.empty()))
    return refuse("--spm is for text; --bin and --tokens hold token ids already");
  if (!data.tokens.empty() && flags.given("--seq"))
    return refuse("--seq does not go with --tokens, whose rows are taken as they are");
  if (data.seq < 1) return refuse(fmt::format("--seq {}: at least one token is needed", data.seq));
  return {};
}

/// Ids of a vocabulary of up to 65536 fit two bytes.
BinType bin_type(const std::string& name, std::optional<std::int64_t> vocab_size) {
  if (name == "uint16") return BinType::kUint16;
  if (name == "uint32") return BinType::kUint32;
  constexpr std::int64_t kTwoBytes = 1 << 16;
  return vocab_size.value_or(kTwoBytes) <= kTwoBytes ? BinType::kUint16 : BinType::kUint32;
}

}  // namespace

void DataFlags::add_to(FlagSet& flags) {
  flags.add("Data", "--text", text, "FILE", "text to learn; default: the King James Bible of the package bible-kjv");
  flags.add("Data", "--spm", sentencepiece, "MODEL", "SentencePiece model for --text; default: a token is a byte");
  flags.add("Data", "--bin", bin, "FILE", "little-endian token ids, one behind the other, instead of text");
  flags.add_choice("Data", "--bin-dtype", bin_dtype, {"auto", "uint16", "uint32"},
                   "width of --bin ids; auto: 2 bytes for vocabularies up to 65536, else 4");
  flags.add("Data", "--tokens", tokens, "FILE",
            "JSON {\"tokens\": [[...]], \"mask\": [[...]]}: rows taken as they are");
  flags.add("Data", "--seq", seq, "TOKENS", "predictions per row of text or --bin");
  flags.add("Data", "--document-end", document_end, "ID",
            "token that ends a document: attention stays within documents, positions start anew; negative: none");
}

std::optional<std::int64_t> document_end(const DataFlags& data) {
  return data.document_end >= 0 ? std::optional(data.document_end) : std::nullopt;
}

void use_tokenizer_of(const ModelSource& source, DataFlags& data) {
  const std::filesystem::path own = source.path / "tokenizer.model";
  std::error_code ec;
  const bool wanted = data.sentencepiece.empty() && data.bin.empty() && data.tokens.empty();
  if (wanted && std::filesystem::exists(own, ec)) data.sentencepiece = own.string();
}

Result<std::unique_ptr<Tokenizer>> make_tokenizer(const std::string& sentencepiece) {
  if (sentencepiece.empty()) return make_byte_tokenizer();
  return load_sentencepiece(sentencepiece);
}

Result<LoadedData> load_data(const DataFlags& data, const FlagSet& flags, std::optional<std::int64_t> vocab_size) {
  PLAIT_TRY_VOID(check_flags(data, flags));
  if (!data.tokens.empty()) {
    PLAIT_TRY(TokenRows rows, read_json_rows(data.tokens));
    return LoadedData{.rows = std::move(rows), .tokenizer = nullptr, .tokenizer_name = "ids"};
  }
  if (!data.bin.empty()) {
    const BinType type = bin_type(data.bin_dtype, vocab_size);
    PLAIT_TRY(std::vector<TokenId> ids, read_bin(data.bin, type));
    PLAIT_TRY(TokenRows rows, cut_rows(std::move(ids), data.seq, data.bin, bytes_of(type)));
    return LoadedData{.rows = std::move(rows), .tokenizer = nullptr, .tokenizer_name = "ids"};
  }
  PLAIT_TRY(auto tokenizer, make_tokenizer(data.sentencepiece));
  std::string text = data.text;
  if (text.empty()) {
    PLAIT_TRY(text, default_corpus());
  }
  PLAIT_TRY(std::vector<TokenId> ids, read_text(text, *tokenizer));
  const std::int64_t token_bytes = data.sentencepiece.empty() ? 1 : 0;
  PLAIT_TRY(TokenRows rows, cut_rows(std::move(ids), data.seq, text, token_bytes));
  return LoadedData{.rows = std::move(rows),
                    .tokenizer = std::move(tokenizer),
                    .tokenizer_name = data.sentencepiece.empty() ? "bytes" : "sentencepiece"};
}

}  // namespace plait::cli
