#pragma once

#include "plait/base/result.h"
#include "plait/cli/schedule_flags.h"
#include "plait/ir/file.h"
#include "plait/ir/program.h"

#include <string>
#include <variant>

namespace plait {

/// A schedule, or a program where a file holds one.
using ScheduleOrProgram = std::variant<Schedule, Program>;

/// What a NAME|FILE argument stands for.
struct LoadedSchedule {
  ScheduleOrProgram content;
  std::optional<FileFormat> file_format;  ///< where it came from a file
  /// For costs: of a file, the times of the flags alone count.
  TimesSpec times;
  std::int64_t ticks_per_unit = 1;

  [[nodiscard]] const Layout& layout() const;
  [[nodiscard]] const std::vector<Row>& rows() const;
};

/// The registered schedule NAME built from the flags, or what the file of that name holds (text format or PyTorch CSV).
/// With a file, sizes among the flags must agree with it, --layers and --head cut a schedule anew for another model, and
/// flags that only a named schedule understands are refused.
///
/// \errors those of resolve_flags and the schedule; "schedule.unknown" if it is neither a name nor a file; kIo and
///         kInvalidSchedule for files that cannot be read
Result<LoadedSchedule> load_schedule(const std::string& name_or_file, const ScheduleFlags& flags,
                                     const TorchCsvOptions& csv = {});

/// Lowers unless it is a program already.
Result<Program> lowered(ScheduleOrProgram content);

}  // namespace plait
