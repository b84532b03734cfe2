#include "plait/run/train/checkpoint_files.h"

#include "plait/base/files.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <system_error>

namespace plait {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::string_view kStepPrefix = "step-";
constexpr std::string_view kDoomedPrefix = ".tmp-old-";  // never the name of one that is being written
constexpr int kFormat = 2;

}  // namespace

Error damaged_checkpoint(const fs::path& path, std::string_view what) {
  return make_error(ErrorCode::kIo, "checkpoint.damaged", "{}: {}", path.string(), what);
}

std::string manifest_text(const std::vector<ManifestEntry>& entries) {
  Json list = Json::array();
  for (const ManifestEntry& entry : entries)
    list.push_back(
        {{"name", entry.name}, {"bytes", entry.digest.bytes}, {"crc64", fmt::format("{:016x}", entry.digest.crc)}});
  Json document{{"format", kFormat}, {"files", list}};
  document["crc64"] = fmt::format("{:016x}", crc64(document.dump(2)));
  return document.dump(2) + "\n";
}

Result<std::vector<ManifestEntry>> read_manifest(const fs::path& checkpoint) {
  const fs::path path = checkpoint / kManifestFile;
  PLAIT_TRY(const std::string text, read_file(path));
  std::vector<ManifestEntry> entries;
  try {
    const Json document = Json::parse(text);
    for (const Json& file : document.at("files")) {
      ManifestEntry& entry = entries.emplace_back();
      entry.name = file.at("name").get<std::string>();
      entry.digest.bytes = file.at("bytes").get<std::uint64_t>();
      const auto crc = file.at("crc64").get<std::string>();
      std::from_chars(crc.data(), crc.data() + crc.size(), entry.digest.crc, 16);
    }
  } catch (const Json::exception& error) {
    return damaged_checkpoint(path, error.what());
  }
  if (text != manifest_text(entries)) return damaged_checkpoint(path, "it is not as it was written");
  return entries;
}

std::string step_name(std::int64_t step) {
  return fmt::format("{}{:06}", kStepPrefix, step);
}

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

void remove_checkpoint(const fs::path& path) {
  std::error_code ec;
  const fs::path doomed = path.parent_path() / (std::string(kDoomedPrefix) + path.filename().string());
  fs::remove_all(doomed, ec);
  fs::rename(path, doomed, ec);
  if (!ec) fs::remove_all(doomed, ec);
}

void prune_checkpoints(const fs::path& run, std::int64_t newest, int keep) {
  if (keep <= 0) return;
  for (const StepFolder& folder : step_folders(run))
    if (folder.step <= newest && --keep < 0) remove_checkpoint(folder.path);
}

}  // namespace plait
