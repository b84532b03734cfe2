#include "plait/run/train/checkpoint.h"

#include "plait/base/files.h"
#include "plait/run/hf/model_dir.h"
#include "plait/run/hf/safetensors.h"
#include "plait/run/train/checkpoint_files.h"
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

constexpr int kStateFormat = 2;

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
    return damaged_checkpoint(file, e.what());
  }
}

Result<> check_manifest(const fs::path& checkpoint) {
  PLAIT_TRY(const std::vector<ManifestEntry> manifest, read_manifest(checkpoint));
  for (const ManifestEntry& entry : manifest) {
    PLAIT_TRY(const FileDigest found, digest_file(checkpoint / entry.name));
    if (found != entry.digest)
      return damaged_checkpoint(checkpoint / entry.name,
                                fmt::format("{} bytes with CRC-64 {:016x}, but {} bytes with {:016x} were written",
                                            found.bytes, found.crc, entry.digest.bytes, entry.digest.crc));
  }
  return {};
}

}  // namespace

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

std::string run_state_json(const RunState& state) {
  const Json document{{"format", kStateFormat},
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

Result<RunState> read_run_state(const fs::path& checkpoint) {
  return parse_json<RunState>(checkpoint / kStateFile, [](const Json& d) {
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
  PLAIT_TRY(auto moments, read_safetensors(path / kOptimizerFile));
  for (auto& [key, tensor] : moments) {
    const std::size_t dot = key.rfind('.');
    const auto owner = checkpoint.parameters.find(key.substr(0, dot == std::string::npos ? 0 : dot));
    if (owner == checkpoint.parameters.end())
      return damaged_checkpoint(path / kOptimizerFile, fmt::format("{} belongs to no parameter of the model", key));
    owner->second.moments[key.substr(dot + 1)] = std::move(tensor);
  }
  PLAIT_TRY_VOID(check_finite(checkpoint.parameters, path.string()));
  return checkpoint;
}

Result<> check_finite(const at::Tensor& tensor, const std::string& name, const std::string& where) {
  if (at::all(at::isfinite(tensor)).item<bool>()) return {};
  return make_error(ErrorCode::kIo, "checkpoint.not_finite", "{}: {} holds NaN or infinity", where, name);
}

Result<> check_finite(const std::map<std::string, ParameterState>& parameters, const std::string& where) {
  for (const auto& [name, state] : parameters) {
    PLAIT_TRY_VOID(check_finite(state.master, name, where));
    for (const auto& [moment, tensor] : state.moments)
      PLAIT_TRY_VOID(check_finite(tensor, fmt::format("{}.{}", name, moment), where));
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
