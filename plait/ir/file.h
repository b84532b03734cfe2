#pragma once

#include "plait/base/result.h"
#include "plait/ir/program.h"
#include "plait/ir/torch_csv.h"

#include <filesystem>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace plait {

enum class FileFormat : std::uint8_t {
  kText,          ///< the text format
  kComputeOnly,   ///< PyTorch CSV, a Schedule
  kComputeComms,  ///< PyTorch CSV, a Program
};

struct ScheduleFile {
  FileFormat format = FileFormat::kText;
  std::variant<Schedule, Program> content;
  std::vector<std::string> ignored;  ///< what a lenient reading of a CSV passed over
};

/// Reads a schedule or program; the contents decide on the format, not the name: the text format starts with the word
/// "plait" (after comments), anything else is taken for PyTorch CSV.
Result<ScheduleFile> parse_schedule(std::string_view text, std::string_view file_name,
                                    const TorchCsvOptions& options = {});

/// The same from a file. \errors kIo io.read if it cannot be read
Result<ScheduleFile> read_schedule_file(const std::filesystem::path& path, const TorchCsvOptions& options = {});

}  // namespace plait
