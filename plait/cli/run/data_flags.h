#pragma once

#include "plait/base/result.h"
#include "plait/cli/run/flags.h"
#include "plait/run/data/token_rows.h"
#include "plait/run/data/tokenizer.h"
#include "plait/run/train/model_source.h"

#include <memory>
#include <optional>
#include <string>

namespace plait::cli {

/// Where the tokens come from.
struct DataFlags {
  std::string text;
  std::string sentencepiece;
  std::string bin;
  std::string bin_dtype = "auto";
  std::string tokens;
  std::int64_t seq = 128;
  std::int64_t document_end = -1;
  void add_to(FlagSet& flags);
};

struct LoadedData {
  TokenRows rows;
  std::unique_ptr<Tokenizer> tokenizer;  ///< none where the source is ids
  std::string tokenizer_name;            ///< "bytes", "sentencepiece", "ids"
};

/// Reads the one source that the flags name; with none, the default corpus.
/// \param vocab_size  of the model, if it is known already; decides the width of .bin ids
/// \errors kInvalidArgument "data.flags" for flags that exclude each other; kIo "data.*"
Result<LoadedData> load_data(const DataFlags& data, const FlagSet& flags, std::optional<std::int64_t> vocab_size);

/// The token that ends a document, if there is one.
std::optional<std::int64_t> document_end(const DataFlags& data);

/// Where no SentencePiece model is given and the source brings one along (tokenizer.model), takes that.
void use_tokenizer_of(const ModelSource& source, DataFlags& data);

/// The tokenizer of the flags: SentencePiece if a model is given, else bytes.
Result<std::unique_ptr<Tokenizer>> make_tokenizer(const std::string& sentencepiece);

}  // namespace plait::cli
