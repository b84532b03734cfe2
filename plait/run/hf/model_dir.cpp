#include "plait/run/hf/model_dir.h"

#include "plait/base/check.h"
#include "plait/base/files.h"
#include "plait/run/hf/safetensors.h"
#include "plait/run/model/parameters.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/all.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isfinite.h>
#include <nlohmann/json.hpp>

#include <set>
#include <system_error>
#include <utility>
#include <vector>

namespace plait {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr std::string_view kLmHead = "lm_head.weight";

/// Where a tensor of the model is stored.
struct Location {
  std::size_t file = 0;   ///< index into Files::files
  std::string file_name;  ///< its name in there
};

struct Files {
  std::vector<SafetensorsFile> files;
  std::map<std::string, Location> tensors;  ///< by the model's names
};

template <class... Args>
Error damaged(std::string_view rule, fmt::format_string<Args...> format, Args&&... args) {
  return make_error(ErrorCode::kIo, rule, format, std::forward<Args>(args)...);
}

/// GPT-2 saved from the bare model lacks the prefix of the language model.
std::string canonical_name(const ModelConfig& config, const std::string& name) {
  if (config.family != ModelFamily::kGpt2) return name;
  for (const std::string_view bare : {"wte.", "wpe.", "h.", "ln_f."})
    if (name.starts_with(bare)) return "transformer." + name;
  return name;
}

/// Constants that old versions of transformers stored along.
bool is_constant_buffer(const ModelConfig& config, std::string_view name) {
  if (config.family == ModelFamily::kGpt2) return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
  return name.ends_with(".rotary_emb.inv_freq");
}

Result<std::map<std::string, std::string>> read_index(const fs::path& path) {
  PLAIT_TRY(const std::string text, read_file(path.string()));
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto bad = [&](std::string_view what) { return damaged("weights.index", "{}: {}", path.string(), what); };
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    return bad("no JSON object with a weight_map");
  std::map<std::string, std::string> shard_of;
  for (const auto& [name, shard] : json["weight_map"].items()) {
    if (!shard.is_string()) return bad(fmt::format("{} is in no named file", name));
    const fs::path file = shard.get<std::string>();
    // A shard lies beside its index: nothing in a downloaded file may point elsewhere.
    if (file.empty() || file != file.filename() || file == ".." || file == ".")
      return bad(fmt::format("{} is in {}, which is no plain file name", name, file.string()));
    shard_of.emplace(name, file.string());
  }
  return shard_of;
}

Result<> add_file(Files& files, const ModelConfig& config, const fs::path& path) {
  PLAIT_TRY(SafetensorsFile file, SafetensorsFile::open(path));
  for (const auto& [name, entry] : file.entries()) {
    const auto [at, is_new] =
        files.tensors.emplace(canonical_name(config, name), Location{.file = files.files.size(), .file_name = name});
    if (!is_new)
      return damaged("weights.duplicate", "{}: {} is there already, in {}", path.string(), name,
                     (at->second.file == files.files.size() ? path : files.files[at->second.file].path()).string());
  }
  files.files.push_back(std::move(file));
  return {};
}

Result<Files> open_files(const fs::path& dir, const ModelConfig& config) {
  Files files;
  std::error_code ignored;
  if (fs::exists(dir / kSingleFile, ignored)) {
    PLAIT_TRY_VOID(add_file(files, config, dir / kSingleFile));
    return files;
  }
  if (!fs::exists(dir / kIndexFile, ignored))
    return damaged("weights.missing", "{} holds neither {} nor {}", dir.string(), kSingleFile, kIndexFile);
  PLAIT_TRY(const auto shard_of, read_index(dir / kIndexFile));
  std::set<std::string> shards;
  for (const auto& [name, shard] : shard_of) shards.insert(shard);
  for (const std::string& shard : shards) PLAIT_TRY_VOID(add_file(files, config, dir / shard));
  for (const auto& [name, shard] : shard_of) {
    const auto found = files.tensors.find(canonical_name(config, name));
    if (found == files.tensors.end() || files.files[found->second.file].path() != dir / shard)
      return damaged("weights.index", "{}: {} should be in {}, but is not", (dir / kIndexFile).string(), name, shard);
  }
  return files;
}

/// Everything that is missing, unexpected or misshapen, in one message.
Result<> check_tensors(const fs::path& dir, const ModelConfig& config, const Files& files) {
  std::vector<std::string> findings;
  std::set<std::string> known;
  for (const ParameterSpec& spec : parameter_specs(config)) {
    known.insert(spec.name);
    const auto found = files.tensors.find(spec.name);
    if (found == files.tensors.end()) {
      findings.push_back(fmt::format("{} is missing", spec.name));
      continue;
    }
    const SafetensorsEntry& entry = files.files[found->second.file].entries().at(found->second.file_name);
    if (entry.shape != spec.shape)
      findings.push_back(fmt::format("{} has shape [{}], config.json makes it [{}]", spec.name,
                                     fmt::join(entry.shape, ", "), fmt::join(spec.shape, ", ")));
  }
  for (const auto& [name, location] : files.tensors) {
    const bool is_tied_head = config.tied_head && name == kLmHead;
    if (!known.contains(name) && !is_tied_head && !is_constant_buffer(config, name))
      findings.push_back(fmt::format("{} is unexpected", name));
  }
  if (findings.empty()) return {};
  constexpr std::size_t kShown = 8;
  const std::size_t shown = std::min(findings.size(), kShown);
  const std::vector<std::string> first(findings.begin(), findings.begin() + static_cast<std::ptrdiff_t>(shown));
  return damaged("weights.mismatch", "{}: the weights are not those of config.json: {}{}", dir.string(),
                 fmt::join(first, "; "),
                 findings.size() > shown ? fmt::format("; and {} more", findings.size() - shown) : "");
}

std::vector<std::map<std::string, at::Tensor>> split_shards(const std::map<std::string, at::Tensor>& tensors,
                                                            const std::vector<ParameterSpec>& specs,
                                                            std::uint64_t max_bytes) {
  std::vector<std::map<std::string, at::Tensor>> shards(1);
  std::uint64_t bytes = 0;
  for (const ParameterSpec& spec : specs) {
    const at::Tensor& tensor = tensors.at(spec.name);
    if (bytes > 0 && bytes + tensor.nbytes() > max_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += tensor.nbytes();
    shards.back().emplace(spec.name, tensor);
  }
  return shards;
}

}  // namespace

std::string model_dir_config(const ModelConfig& config, at::ScalarType type) {
  Json json = Json::parse(model_config_json(config));
  json["dtype"] = type == at::kDouble     ? "float64"
                  : type == at::kHalf     ? "float16"
                  : type == at::kBFloat16 ? "bfloat16"
                                          : "float32";
  return json.dump(2) + "\n";
}

Result<std::map<std::string, at::Tensor>> read_model_weights(const fs::path& dir, const ModelConfig& config) {
  PLAIT_TRY(const Files files, open_files(dir, config));
  PLAIT_TRY_VOID(check_tensors(dir, config, files));
  const auto read = [&](const std::string& name) {
    const Location& location = files.tensors.at(name);
    return files.files[location.file].read(location.file_name);
  };
  std::map<std::string, at::Tensor> weights;
  for (const ParameterSpec& spec : parameter_specs(config)) {
    PLAIT_TRY(at::Tensor tensor, read(spec.name));
    if (!at::all(at::isfinite(tensor)).item<bool>())
      return damaged("weights.not_finite", "{}: {} holds NaN or infinity", dir.string(), spec.name);
    weights.emplace(spec.name, std::move(tensor));
  }
  if (config.tied_head && files.tensors.contains(std::string(kLmHead))) {
    PLAIT_TRY(const at::Tensor head, read(std::string(kLmHead)));
    const at::Tensor& table = weights.at(token_table_name(config));
    if (head.sizes() != table.sizes() || head.scalar_type() != table.scalar_type() || !at::equal(head, table))
      return damaged("weights.mismatch",
                     "{}: {} differs from {}, but config.json ties them; set tie_word_embeddings to false or drop one",
                     dir.string(), kLmHead, token_table_name(config));
  }
  return weights;
}

Result<> write_model_dir(const fs::path& dir, const ModelConfig& config,
                         const std::map<std::string, at::Tensor>& tensors, const ModelDirOptions& options) {
  const std::vector<ParameterSpec> specs = parameter_specs(config);
  std::map<std::string, at::Tensor> stored;
  std::uint64_t total_bytes = 0;
  for (const ParameterSpec& spec : specs) {
    const auto found = tensors.find(spec.name);
    PLAIT_CHECK(found != tensors.end(), "{} is not among the tensors to write", spec.name);
    const at::Tensor tensor = options.type ? found->second.to(*options.type) : found->second;
    PLAIT_CHECK(tensor.sizes().vec() == spec.shape, "{} has another shape than the model's", spec.name);
    total_bytes += tensor.nbytes();
    stored.emplace(spec.name, tensor);
  }
  std::error_code failed;
  fs::create_directories(dir, failed);
  if (failed)
    return make_error(ErrorCode::kIo, "io.write", "{}: cannot be created: {}", dir.string(), failed.message());

  std::vector<AtomicFile> files;
  const auto shards = split_shards(stored, specs, options.max_shard_bytes);
  const auto stage_text = [&](std::string_view name, const std::string& text) -> Result<> {
    PLAIT_TRY(AtomicFile file, AtomicFile::create((dir / name).string()));
    PLAIT_TRY_VOID(file.write(text));
    files.push_back(std::move(file));
    return {};
  };
  Json weight_map = Json::object();
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shards.size() == 1 ? std::string(kSingleFile)
                                                : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    PLAIT_TRY(AtomicFile file, stage_safetensors(dir / name, shards[i]));
    files.push_back(std::move(file));
    for (const auto& [tensor_name, tensor] : shards[i]) weight_map[tensor_name] = name;
  }
  if (shards.size() > 1) {
    const Json index{{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
    PLAIT_TRY_VOID(stage_text(kIndexFile, index.dump(2) + "\n"));
  }
  PLAIT_TRY_VOID(stage_text("config.json", model_dir_config(config, stored.begin()->second.scalar_type())));
  for (AtomicFile& file : files) PLAIT_TRY_VOID(file.commit());
  // A single file is looked for before an index: one of an earlier save would hide these shards.
  fs::remove(dir / (shards.size() == 1 ? kIndexFile : kSingleFile), failed);
  return {};
}

}  // namespace plait
