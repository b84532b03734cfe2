#include "plait/ir/file.h"

#include "plait/ir/text.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace plait {
namespace {

bool is_text_format(std::string_view text) {
  for (;;) {
    const std::size_t start = text.find_first_not_of(" \t\r\n");
    if (start == std::string_view::npos) return false;
    text.remove_prefix(start);
    if (text.front() != '#') return text.starts_with("plait");
    text.remove_prefix(std::min(text.find('\n'), text.size()));
  }
}

}  // namespace

Result<ScheduleFile> parse_schedule(std::string_view text, std::string_view file_name, const TorchCsvOptions& options) {
  if (is_text_format(text)) {
    PLAIT_TRY(auto content, parse_text(text, file_name));
    return ScheduleFile{.format = FileFormat::kText, .content = std::move(content), .ignored = {}};
  }
  PLAIT_TRY(TorchCsv csv, import_torch_csv(text, file_name, options));
  const bool is_program = std::holds_alternative<Program>(csv.content);
  return ScheduleFile{.format = is_program ? FileFormat::kComputeComms : FileFormat::kComputeOnly,
                      .content = std::move(csv.content),
                      .ignored = std::move(csv.ignored)};
}

Result<ScheduleFile> read_schedule_file(const std::filesystem::path& path, const TorchCsvOptions& options) {
  const auto unreadable = [&](int reason) {
    return make_error(ErrorCode::kIo, "io.read", "{}: cannot be read: {}", path.string(), std::strerror(reason));
  };
  std::error_code status;
  if (std::filesystem::is_directory(path, status)) return unreadable(EISDIR);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!file) return unreadable(errno);
  std::string text;
  char block[1 << 16];
  while (const std::size_t size = std::fread(block, 1, sizeof block, file.get())) text.append(block, size);
  if (std::ferror(file.get()) != 0) return unreadable(EIO);
  return parse_schedule(text, path.string(), options);
}

}  // namespace plait
