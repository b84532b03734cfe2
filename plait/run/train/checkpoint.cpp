#include "plait/run/train/checkpoint.h"

#include "plait/base/files.h"
#include "plait/run/hf/model_dir.h"
#include "plait/run/hf/safetensors.h"
#include "plait/run/train/durable_file.h"

#include <ATen/ops/all.h>
#include <ATen/ops/isfinite.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <utility>

namespace plait {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kManifest = "MANIFEST.json";
constexpr std::string_view kOptimizer = "optimizer.safetensors";
constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kTemporaryPrefix = ".tmp-";
constexpr std::string_view kDoomedPrefix = ".tmp-old-";  // never the name of one that is being written
constexpr int kFormat = 2;

Error damaged(const fs::path& path, std::string_view what) {
  return make_error(ErrorCode::kIo, "checkpoint.damaged", "{}: {}", path.string(), what);
}

std::string state_json(const RunState& state) {
  const Json document{{"format", kFormat},
                      {"step", state.step},
                      {"samples", state.samples},
                      {"epoch", state.epoch},
                      {"seed", state.seed},
                      {"shuffled", state.shuffled},
                      {"data_rows", state.data.num_rows},
                      {"data_row_size", state.data.row_size},
                      {"data_crc64", fmt::format("{:016x}", state.data.crc)},
                      {"optimizer", state.optimizer},
                      {"dtype", state.dtype},
                      {"tokenizer", state.tokenizer},
                      {"schedule", state.schedule},
                      {"ranks", state.ranks}};
  return document.dump(2) + "\n";
}

std::uint64_t parse_hex(const std::string& text) {
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return value;
}

/// Parses JSON and lets `read` take what it needs; a missing key or another type is damage.
template <class T, class Read>
Result<T> parse_json(const fs::path& file, const Read& read) {
  PLAIT_TRY(const std::string text, read_file(file));
  try {
    return read(Json::parse(text));
  } catch (const Json::exception& e) {
    return damaged(file, e.what());
  }
}

struct ManifestEntry {
  std::string name;
  FileDigest digest;
};

/// With a checksum of all that stands before it.
std::string manifest_text(const std::vector<ManifestEntry>& entries) {
  Json list = Json::array();
  for (const ManifestEntry& entry : entries)
    list.push_back(
        {{"name", entry.name}, {"bytes", entry.digest.bytes}, {"crc64", fmt::format("{:016x}", entry.digest.crc)}});
  Json document{{"format", kFormat}, {"files", list}};
  document["crc64"] = fmt::format("{:016x}", crc64(document.dump(2)));
  return document.dump(2) + "\n";
}

/// A manifest is read back only if it has the very bytes that were written.
Result<std::vector<ManifestEntry>> read_manifest(const fs::path& checkpoint) {
  const fs::path path = checkpoint / kManifest;
  PLAIT_TRY(const std::string text, read_file(path));
  PLAIT_TRY(std::vector<ManifestEntry> entries, parse_json<std::vector<ManifestEntry>>(path, [](const Json& document) {
              std::vector<ManifestEntry> found;
              for (const Json& file : document.at("files"))
                found.push_back({.name = file.at("name").get<std::string>(),
                                 .digest = {.bytes = file.at("bytes").get<std::uint64_t>(),
                                            .crc = parse_hex(file.at("crc64").get<std::string>())}});
              return found;
            }));
  if (text != manifest_text(entries)) return damaged(path, "it is not as it was written");
  return entries;
}

/// Digests and fsyncs every file of the folder, then writes the manifest that closes it.
Result<> seal(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<ManifestEntry> entries;
  for (const fs::path& file : files) {
    PLAIT_TRY_VOID(sync_path(file));
    PLAIT_TRY(const FileDigest digest, digest_file(file));
    entries.push_back({.name = file.filename().string(), .digest = digest});
  }
  PLAIT_TRY_VOID(write_file(folder / kManifest, manifest_text(entries)));
  return sync_path(folder);
}

std::map<std::string, at::Tensor> masters_of(const Checkpoint& checkpoint) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, state] : checkpoint.parameters) tensors[name] = state.master;
  return tensors;
}

std::map<std::string, at::Tensor> moments_of(const Checkpoint& checkpoint) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, state] : checkpoint.parameters)
    for (const auto& [moment, tensor] : state.moments) tensors[fmt::format("{}.{}", name, moment)] = tensor;
  return tensors;
}

Result<> write_files(const fs::path& folder, const Checkpoint& checkpoint, const CheckpointOptions& options) {
  PLAIT_TRY_VOID(make_folder(folder));
  PLAIT_TRY_VOID(write_model_dir(folder, checkpoint.config, masters_of(checkpoint)));
  PLAIT_TRY_VOID(write_safetensors(folder / kOptimizer, moments_of(checkpoint)));
  if (options.sentencepiece) {
    PLAIT_TRY(const std::string model, read_file(*options.sentencepiece));
    PLAIT_TRY_VOID(write_file(folder / "tokenizer.model", model));
  }
  PLAIT_TRY_VOID(write_file(folder / "state.json", state_json(checkpoint.state)));
  return seal(folder);
}

std::string step_name(std::int64_t step) {
  return fmt::format("{}{:06}", kStepPrefix, step);
}

struct StepFolder {
  std::int64_t step = 0;
  fs::path path;
};

/// step-* folders, newest first.
std::vector<StepFolder> step_folders(const fs::path& run) {
  std::vector<StepFolder> found;
  std::error_code ec;
  for (fs::directory_iterator it(run / "checkpoints", ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(kStepPrefix)) continue;
    std::int64_t step = 0;
    const char* last = name.data() + name.size();
    const auto [parsed, error] = std::from_chars(name.data() + kStepPrefix.size(), last, step);
    if (error == std::errc() && parsed == last) found.push_back({.step = step, .path = it->path()});
  }
  std::sort(found.begin(), found.end(), [](const StepFolder& a, const StepFolder& b) { return a.step > b.step; });
  return found;
}

/// Under another name first, so that no half-removed folder is ever taken for a checkpoint.
void remove_checkpoint(const fs::path& path) {
  std::error_code ec;
  const fs::path doomed = path.parent_path() / (std::string(kDoomedPrefix) + path.filename().string());
  fs::remove_all(doomed, ec);
  fs::rename(path, doomed, ec);
  if (!ec) fs::remove_all(doomed, ec);
}

/// Those of later steps than the newest good one are damaged ones that a resumed run has not come to yet: they neither
/// count nor go.
void prune(const fs::path& run, std::int64_t newest, int keep) {
  if (keep <= 0) return;
  for (const StepFolder& folder : step_folders(run))
    if (folder.step <= newest && --keep < 0) remove_checkpoint(folder.path);
}

Result<> check_manifest(const fs::path& checkpoint) {
  PLAIT_TRY(const std::vector<ManifestEntry> manifest, read_manifest(checkpoint));
  for (const ManifestEntry& entry : manifest) {
    PLAIT_TRY(const FileDigest found, digest_file(checkpoint / entry.name));
    if (found != entry.digest)
      return damaged(checkpoint / entry.name,
                     fmt::format("{} bytes with CRC-64 {:016x}, but {} bytes with {:016x} were written", found.bytes,
                                 found.crc, entry.digest.bytes, entry.digest.crc));
  }
  return {};
}

bool is_finite(const at::Tensor& tensor) {
  return at::all(at::isfinite(tensor)).item<bool>();
}

}  // namespace

Result<fs::path> write_checkpoint(const fs::path& run, const Checkpoint& checkpoint, const CheckpointOptions& options) {
  PLAIT_TRY_VOID(check_finite(checkpoint.parameters, fmt::format("step {}", checkpoint.state.step)));
  const fs::path folder = run / "checkpoints";
  PLAIT_TRY_VOID(make_folder(folder));
  const fs::path final_path = folder / step_name(checkpoint.state.step);
  const fs::path temporary = folder / (std::string(kTemporaryPrefix) + step_name(checkpoint.state.step));
  std::error_code ec;
  fs::remove_all(temporary, ec);
  if (auto written = write_files(temporary, checkpoint, options); !written) {
    fs::remove_all(temporary, ec);
    fs::remove(folder, ec);  // only if it is empty
    return make_error(ErrorCode::kIo, "checkpoint.write", "the checkpoint of step {} could not be written: {}",
                      checkpoint.state.step, written.error().message);
  }
  if (fs::exists(final_path, ec)) remove_checkpoint(final_path);
  fs::rename(temporary, final_path, ec);
  if (ec) {
    const std::string why = ec.message();
    fs::remove_all(temporary, ec);
    return make_error(ErrorCode::kIo, "checkpoint.write", "{}: the finished checkpoint could not be renamed: {}",
                      final_path.string(), why);
  }
  PLAIT_TRY_VOID(sync_path(folder));
  prune(run, checkpoint.state.step, options.keep);
  return final_path;
}

Result<FoundCheckpoint> read_newest_checkpoint(const fs::path& run) {
  const std::vector<StepFolder> folders = step_folders(run);
  FoundCheckpoint found;
  std::string why;
  for (const StepFolder& folder : folders) {
    Result<Checkpoint> checkpoint = read_checkpoint(folder.path);
    if (!checkpoint) {
      why += (why.empty() ? "" : "; ") + checkpoint.error().message;
      continue;
    }
    found.path = folder.path;
    found.checkpoint = *std::move(checkpoint);
    if (!why.empty())
      found.note = fmt::format("a checkpoint is damaged and passed over: {}; going on from {} instead", why,
                               folder.path.string());
    return found;
  }
  if (folders.empty()) return found;
  return make_error(ErrorCode::kIo, "checkpoint.damaged",
                    "{}: no checkpoint is intact: {}; remove them to start from the beginning",
                    (run / "checkpoints").string(), why);
}

Result<> remove_temporaries(const fs::path& run) {
  std::error_code ec;
  std::vector<fs::path> doomed;
  for (fs::directory_iterator it(run / "checkpoints", ec), end; !ec && it != end; it.increment(ec))
    if (it->path().filename().string().starts_with(kTemporaryPrefix)) doomed.push_back(it->path());
  // What an atomic write of these was about when the run was killed.
  for (fs::directory_iterator it(run, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    for (const std::string_view file : {"program.plait", "metrics.jsonl", "trace.json"})
      if (name.starts_with(std::string(file) + ".partial.")) doomed.push_back(it->path());
  }
  for (const fs::path& path : doomed) {
    fs::remove_all(path, ec);
    if (ec) return make_error(ErrorCode::kIo, "io.write", "{}: cannot be removed: {}", path.string(), ec.message());
  }
  return {};
}

Result<RunState> read_run_state(const fs::path& checkpoint) {
  return parse_json<RunState>(checkpoint / "state.json", [](const Json& d) {
    return RunState{.step = d.at("step").get<std::int64_t>(),
                    .samples = d.at("samples").get<std::int64_t>(),
                    .epoch = d.at("epoch").get<std::int64_t>(),
                    .seed = d.at("seed").get<std::uint64_t>(),
                    .shuffled = d.at("shuffled").get<bool>(),
                    .data = {.num_rows = d.at("data_rows").get<std::int64_t>(),
                             .row_size = d.at("data_row_size").get<std::int64_t>(),
                             .crc = parse_hex(d.at("data_crc64").get<std::string>())},
                    .optimizer = d.at("optimizer").get<std::string>(),
                    .dtype = d.at("dtype").get<std::string>(),
                    .tokenizer = d.at("tokenizer").get<std::string>(),
                    .schedule = d.at("schedule").get<std::string>(),
                    .ranks = d.at("ranks").get<int>()};
  });
}

Result<Checkpoint> read_checkpoint(const fs::path& path) {
  PLAIT_TRY_VOID(check_manifest(path));
  Checkpoint checkpoint;
  PLAIT_TRY(checkpoint.state, read_run_state(path));
  PLAIT_TRY(checkpoint.config, read_model_config(path));
  PLAIT_TRY(auto masters, read_model_weights(path, checkpoint.config));
  for (auto& [name, tensor] : masters) checkpoint.parameters[name].master = std::move(tensor);
  PLAIT_TRY(auto moments, read_safetensors(path / kOptimizer));
  for (auto& [key, tensor] : moments) {
    const std::size_t dot = key.rfind('.');
    const auto owner = checkpoint.parameters.find(key.substr(0, dot == std::string::npos ? 0 : dot));
    if (owner == checkpoint.parameters.end())
      return damaged(path / kOptimizer, fmt::format("{} belongs to no parameter of the model", key));
    owner->second.moments[key.substr(dot + 1)] = std::move(tensor);
  }
  PLAIT_TRY_VOID(check_finite(checkpoint.parameters, path.string()));
  return checkpoint;
}

Result<> check_finite(const std::map<std::string, ParameterState>& parameters, const std::string& where) {
  const auto refuse = [&](const std::string& name) {
    return make_error(ErrorCode::kIo, "checkpoint.not_finite", "{}: {} holds NaN or infinity", where, name);
  };
  for (const auto& [name, state] : parameters) {
    if (!is_finite(state.master)) return refuse(name);
    for (const auto& [moment, tensor] : state.moments)
      if (!is_finite(tensor)) return refuse(fmt::format("{}.{}", name, moment));
  }
  return {};
}

std::uint64_t checkpoint_bytes(const ModelConfig& config, ComputeType type, OptimizerKind optimizer) {
  std::uint64_t elements = 0;
  for (const ParameterSpec& spec : parameter_specs(config)) {
    std::uint64_t size = 1;
    for (const std::int64_t n : spec.shape) size *= static_cast<std::uint64_t>(n);
    elements += size;
  }
  const std::uint64_t width = type == ComputeType::kFloat64 ? 8 : 4;
  const std::uint64_t copies = optimizer == OptimizerKind::kAdamW ? 3 : 1;
  constexpr std::uint64_t kHeaders = 16U << 10U;
  return elements * width * copies + kHeaders;
}

}  // namespace plait
