#pragma once

#include "plait/base/result.h"
#include "plait/run/train/durable_file.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

/// Names and manifest of a checkpoint's files, for those who write and read them.
namespace plait {

inline constexpr std::string_view kManifestFile = "MANIFEST.json";
inline constexpr std::string_view kModelFile = "model.safetensors";
inline constexpr std::string_view kOptimizerFile = "optimizer.safetensors";
inline constexpr std::string_view kStateFile = "state.json";
inline constexpr std::string_view kTemporaryPrefix = ".tmp-";

/// kIo "checkpoint.damaged"
Error damaged_checkpoint(const std::filesystem::path& path, std::string_view what);

struct ManifestEntry {
  std::string name;
  FileDigest digest;
};
/// With a checksum of all that stands before it.
std::string manifest_text(const std::vector<ManifestEntry>& entries);
/// A manifest is read back only if it has the very bytes that were written. \errors kIo "checkpoint.damaged", "io.read"
Result<std::vector<ManifestEntry>> read_manifest(const std::filesystem::path& checkpoint);

std::string step_name(std::int64_t step);

struct StepFolder {
  std::int64_t step = 0;
  std::filesystem::path path;
};
/// step-* folders of a run, newest first.
std::vector<StepFolder> step_folders(const std::filesystem::path& run);

/// Under another name first, so that no half-removed folder is ever taken for a checkpoint.
void remove_checkpoint(const std::filesystem::path& path);

/// Those of later steps than the newest good one are damaged ones that a resumed run has not come to yet: they neither
/// count nor go.
void prune_checkpoints(const std::filesystem::path& run, std::int64_t newest, int keep);

}  // namespace plait
