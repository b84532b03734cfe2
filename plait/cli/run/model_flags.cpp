#include "plait/cli/run/model_flags.h"

#include <array>
#include <optional>

namespace plait::cli {
namespace {

constexpr std::array kSizeFlags = {"--family", "--layers", "--hidden",        "--heads",      "--kv-heads",
                                   "--ffn",    "--vocab",  "--max-positions", "--rope-theta", "--head"};

ModelFamily family_of(const std::string& name) {
  if (name == "mistral") return ModelFamily::kMistral;
  if (name == "qwen2") return ModelFamily::kQwen2;
  if (name == "gpt2") return ModelFamily::kGpt2;
  return ModelFamily::kLlama;
}

/// GPT-2 has 4 hidden; a gated MLP has three matrices instead of two, so 8/3 hidden makes it as large. Rounded up to 32,
/// whole cache lines of every type.
std::int64_t default_ffn(ModelFamily family, std::int64_t hidden) {
  if (family == ModelFamily::kGpt2) return 4 * hidden;
  constexpr std::int64_t kMultiple = 32;
  return (8 * hidden / 3 + kMultiple - 1) / kMultiple * kMultiple;
}

Result<> check_sizes(const ModelConfig& c) {
  const auto refuse = [](const std::string& what) { return Error{ErrorCode::kInvalidArgument, "model.flags", what}; };
  const std::array<std::pair<const char*, std::int64_t>, 7> sizes = {{{"--layers", c.num_layers},
                                                                      {"--hidden", c.hidden_size},
                                                                      {"--heads", c.num_heads},
                                                                      {"--kv-heads", c.num_kv_heads},
                                                                      {"--ffn", c.ffn_size},
                                                                      {"--vocab", c.vocab_size},
                                                                      {"--max-positions", c.max_positions}}};
  for (const auto& [name, value] : sizes)
    if (value < 1) return refuse(fmt::format("{} is {}; at least 1 is needed", name, value));
  if (c.hidden_size % c.num_heads != 0)
    return refuse(fmt::format("--hidden {} is no multiple of --heads {}", c.hidden_size, c.num_heads));
  if (c.num_heads % c.num_kv_heads != 0)
    return refuse(fmt::format("--heads {} is no multiple of --kv-heads {}", c.num_heads, c.num_kv_heads));
  if (c.family == ModelFamily::kGpt2 && c.num_kv_heads != c.num_heads)
    return refuse("GPT-2 has no grouped heads; leave --kv-heads away");
  if (c.family != ModelFamily::kGpt2 && c.head_dim % 2 != 0)
    return refuse(
        fmt::format("--hidden / --heads is {}, but rotary positions turn pairs: it must be even", c.head_dim));
  return {};
}

}  // namespace

void ModelFlags::add_to(FlagSet& flags) {
  flags.add_choice("Model", "--family", family, {"llama", "mistral", "qwen2", "gpt2"}, "architecture");
  flags.add("Model", "--hidden", hidden, "ELEMENTS", "width of the residual stream");
  flags.add("Model", "--heads", heads, "HEADS", "attention heads");
  flags.add("Model", "--kv-heads", kv_heads, "HEADS", "heads of keys and values; 0: as --heads");
  flags.add("Model", "--ffn", ffn, "ELEMENTS", "width of the MLP; 0: 8/3 hidden rounded up to 32 (gpt2: 4 hidden)");
  flags.add("Model", "--vocab", vocab, "TOKENS", "size of the vocabulary; 0: the tokenizer's");
  flags.add("Model", "--max-positions", max_positions, "TOKENS", "longest sequence; 0: the length of the rows");
  flags.add("Model", "--rope-theta", rope_theta, "BASE", "base of the rotary frequencies (not gpt2)");
}

Result<ModelConfig> make_model_config(const ModelFlags& model, int layers, HeadTying tying,
                                      std::optional<std::int64_t> vocab_size, std::int64_t row_positions) {
  const ModelFamily family = family_of(model.family);
  if (model.vocab == 0 && !vocab_size)
    return make_error(ErrorCode::kInvalidArgument, "model.flags",
                      "token ids say nothing of the vocabulary's size; give --vocab, or a model by --init-from");
  if (vocab_size && model.vocab != 0 && model.vocab < *vocab_size)
    return make_error(ErrorCode::kInvalidArgument, "model.flags", "--vocab {} is less than the tokenizer's {}",
                      model.vocab, *vocab_size);
  const ModelConfig config{.family = family,
                           .num_layers = layers,
                           .hidden_size = model.hidden,
                           .ffn_size = model.ffn != 0 ? model.ffn : default_ffn(family, model.hidden),
                           .num_heads = model.heads,
                           .num_kv_heads = model.kv_heads != 0 ? model.kv_heads : model.heads,
                           .head_dim = model.heads > 0 ? model.hidden / model.heads : 0,
                           .vocab_size = model.vocab != 0 ? model.vocab : *vocab_size,
                           .max_positions = model.max_positions != 0 ? model.max_positions : row_positions,
                           .rope_theta = model.rope_theta,
                           .activation = family == ModelFamily::kGpt2 ? Activation::kGeluTanh : Activation::kSilu,
                           .tied_head = tying == HeadTying::kTied || family == ModelFamily::kGpt2,
                           .attention_bias = family == ModelFamily::kQwen2};
  PLAIT_TRY_VOID(check_sizes(config));
  return config;
}

std::string first_size_flag(const FlagSet& flags) {
  for (const char* flag : kSizeFlags)
    if (flags.given(flag)) return flag;
  return {};
}

}  // namespace plait::cli
