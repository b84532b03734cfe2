#pragma once

#include "plait/base/result.h"
#include "plait/ir/torch_csv.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Cells of PyTorch's schedule files: the grammar, and nothing of what the actions mean.
namespace plait {

enum class TorchActionType : std::uint8_t {
  kForward,         ///< F
  kBackwardInput,   ///< I
  kBackwardWeight,  ///< W
  kBackward,        ///< B
  kSendF,
  kRecvF,
  kSendB,
  kRecvB,
  kWaitSendF,
  kWaitSendB,
  kUnshard,
  kReshard,
  kReduceGrad,
  kWaitReduceGrad,
};

/// "F", "SEND_F", ...
std::string_view to_string(TorchActionType type);
constexpr bool is_compute(TorchActionType type) {
  return type <= TorchActionType::kBackward;
}
/// F, I, W, B and the transfers with their waits; the others carry no micro-batch.
constexpr bool has_microbatch(TorchActionType type) {
  return type <= TorchActionType::kWaitSendB;
}

struct TorchAction {
  TorchActionType type = TorchActionType::kForward;
  std::int32_t stage = 0;
  std::int32_t microbatch = 0;  ///< 0 where the type has none
  friend bool operator==(const TorchAction&, const TorchAction&) = default;
};

std::string to_string(const TorchAction& action);

/// Where something stands in a file; both count from 1, as people and spreadsheets do.
struct CellPlace {
  std::int32_t row = 1;
  std::int32_t column = 1;
  friend bool operator==(const CellPlace&, const CellPlace&) = default;
};

enum class CellRole : std::uint8_t {
  kIdle,          ///< an empty cell
  kSingle,        ///< an action of its own
  kFirstOfPair,   ///< the first part of (a;b)OVERLAP_F_B
  kSecondOfPair,  ///< the second part, in the same cell
};

struct TorchCell {
  CellPlace place;
  CellRole role = CellRole::kIdle;
  TorchAction action;
};

struct TorchSheet {
  std::vector<std::vector<TorchCell>> rows;
  Newline newline = Newline::kLf;
  std::vector<std::string> ignored;
};

/// "FILE, row 1, column 2: MESSAGE" with a csv.* rule.
Error cell_error(std::string_view file_name, CellPlace place, std::string_view rule, std::string_view message);

/// Splits a file into cells and reads each by the grammar. \errors kInvalidSchedule csv.*
Result<TorchSheet> read_torch_sheet(std::string_view text, std::string_view file_name, CsvReading reading);

}  // namespace plait
