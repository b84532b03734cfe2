#pragma once

#include "plait/base/result.h"
#include "plait/ir/torch_cells.h"

#include <cstdint>
#include <string_view>
#include <vector>

/// What the cells of a file must satisfy together.
namespace plait {

struct TorchShape {
  std::string_view file_name;
  const std::vector<std::int32_t>& homes;  ///< per stage, all set
  int num_microbatches = 1;
};

enum class ActionOrder : std::uint8_t { kFree, kChecked };
enum class WaitActions : std::uint8_t { kPresent, kAbsent };

/// Micro-batches are in range; with kChecked also: nothing stands twice, F before B or I before W, and nothing is
/// missing. The first finding in reading order; what is missing comes last. \errors kInvalidSchedule verify.*, csv.*
Result<> check_ranges(const TorchSheet& sheet, const TorchShape& shape, ActionOrder order);

/// Every SEND has a RECV and the reverse, each once; with kPresent also: every SEND and every REDUCE_GRAD has one later
/// wait in its row, and at most one reduction of a rank is pending. \errors as above
Result<> check_transfers(const TorchSheet& sheet, const TorchShape& shape, WaitActions waits);

}  // namespace plait
