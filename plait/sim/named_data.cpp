#include "plait/sim/named_data.h"

#include "plait/base/files.h"

#include <filesystem>

namespace plait {

Result<std::string> read_named(std::string_view kind, const std::string& name_or_file) {
  const NamedData* found = nullptr;
  int matches = 0;
  std::string names;
  for (const NamedData& data : named_data()) {
    if (data.kind != kind) continue;
    if (data.name == name_or_file) return std::string(data.json);
    names += (names.empty() ? "" : ", ") + std::string(data.name);
    if (name_or_file.empty() || !data.name.starts_with(name_or_file)) continue;
    ++matches;
    found = &data;
  }
  std::error_code ignored;
  const bool is_file = std::filesystem::is_regular_file(name_or_file, ignored);
  if (is_file || name_or_file.find('/') != std::string::npos || name_or_file.ends_with(".json"))
    return read_file(name_or_file);
  if (matches == 1) return std::string(found->json);
  return make_error(ErrorCode::kInvalidArgument, std::string(kind) + ".unknown", "{} {} '{}'; expected {} or a file",
                    matches > 1 ? "several names begin with the" : "unknown", kind, name_or_file, names);
}

}  // namespace plait
