#include "plait/cli/run/commands.h"
#include "plait/cli/run/data_flags.h"
#include "plait/cli/run/progress.h"
#include "plait/cli/run/train_flags.h"
#include "plait/run/generate/generate.h"
#include "plait/run/train/model_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace plait::cli {
namespace {

struct GenerateFlags {
  std::string model;
  std::string dtype = "fp32";
  std::string sentencepiece;
  std::string prompt;
  std::string prompt_tokens;
  std::int64_t max_new_tokens = 200;
  double temperature = 0;
  std::int64_t top_k = 0;
  std::uint64_t seed = 1;
  void add_to(FlagSet& flags) {
    flags.add("Model", "--model", model, "DIR", "a run, a checkpoint or a Hugging Face directory; must be given");
    flags.add_choice("Model", "--dtype", dtype, {"fp32", "bf16", "fp64"}, "compute type");
    flags.add("Prompt", "--prompt", prompt, "TEXT", "text to continue");
    flags.add("Prompt", "--prompt-tokens", prompt_tokens, "ID,ID,...", "token ids to continue; the answer is ids too");
    flags.add("Prompt", "--spm", sentencepiece, "MODEL",
              "SentencePiece model; default: that of the checkpoint, else bytes");
    flags.add("Sampling", "--max-new-tokens", max_new_tokens, "TOKENS",
              "how many to add; unless given, no more than fit");
    flags.add("Sampling", "--temperature", temperature, "FACTOR", "0: always the most likely token");
    flags.add("Sampling", "--top-k", top_k, "TOKENS", "draw among the k most likely; 0: among all");
    flags.add("Sampling", "--seed", seed, "NUMBER", "of the draws");
  }
};

Error refuse(const std::string& what) {
  return Error{ErrorCode::kInvalidArgument, "generate.flags", what};
}

Result<std::vector<TokenId>> parse_ids(const std::string& text) {
  std::vector<TokenId> ids;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    TokenId id = 0;
    const auto [parsed, error] = std::from_chars(text.data() + begin, text.data() + end, id);
    if (error != std::errc() || parsed != text.data() + end)
      return refuse(fmt::format("--prompt-tokens: \"{}\" is no token id", text.substr(begin, end - begin)));
    ids.push_back(id);
    begin = end + 1;
  }
  return ids;
}

Result<int> run(GenerateFlags& f, const FlagSet& flags) {
  if (f.model.empty()) return refuse("--model is missing: a run, a checkpoint or a Hugging Face directory");
  if (f.prompt.empty() == f.prompt_tokens.empty()) return refuse("one of --prompt and --prompt-tokens must be given");
  PLAIT_TRY(const ModelSource source, load_model(f.model));
  print_note(source.note);
  DataFlags data;
  data.sentencepiece = f.sentencepiece;
  use_tokenizer_of(source, data);
  PLAIT_TRY(const auto tokenizer, make_tokenizer(data.sentencepiece));
  const bool as_text = !f.prompt.empty();
  if (as_text && tokenizer->vocab_size() > source.config.vocab_size)
    return refuse(
        fmt::format("the tokenizer has {} tokens, the model {}; give the model's own by --spm, or --prompt-tokens",
                    tokenizer->vocab_size(), source.config.vocab_size));
  PLAIT_TRY(const std::vector<TokenId> prompt, as_text ? tokenizer->encode(f.prompt) : parse_ids(f.prompt_tokens));
  std::map<std::string, at::Tensor> weights;
  for (const auto& [name, state] : source.parameters) weights[name] = state.master;
  PLAIT_TRY(ParameterSet parameters, load_parameters(source.config, weights, compute_type(f.dtype)));
  const std::int64_t room = source.config.max_positions - static_cast<std::int64_t>(prompt.size());
  const bool exact = flags.given("--max-new-tokens") || room < 1;
  const GenerateOptions options{.max_new_tokens = exact ? f.max_new_tokens : std::min(f.max_new_tokens, room),
                                .temperature = f.temperature,
                                .top_k = f.top_k,
                                .seed = f.seed};
  PLAIT_TRY(const std::vector<TokenId> made, generate(source.config, parameters, prompt, options));
  std::vector<TokenId> all = prompt;
  all.insert(all.end(), made.begin(), made.end());
  std::string text = as_text ? tokenizer->decode(all) : fmt::format("{}", fmt::join(made, ","));
  text += "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

}  // namespace

Result<int> generate_command(int argc, const char* const* argv) {
  GenerateFlags f;
  FlagSet flags("plait generate", "Continues a prompt, with the keys and values of earlier tokens kept.");
  f.add_to(flags);
  PLAIT_TRY(const FlagSet::Outcome outcome, flags.parse(argc, argv));
  if (outcome == FlagSet::Outcome::kHelpPrinted) return 0;
  if (outcome == FlagSet::Outcome::kConfigRequested) {
    std::fputs(flags.config_json().c_str(), stdout);
    return 0;
  }
  return run(f, flags);
}

}  // namespace plait::cli
