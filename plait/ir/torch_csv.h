#pragma once

#include "plait/base/result.h"
#include "plait/ir/program.h"

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

/// The CSV files of torch.distributed.pipelining, both formats, both directions.
///
///     compute_only    0F0,0F1,,0B0     <->  Schedule; an empty cell is Idle, B is BW, I is B, (0F3;3B1)OVERLAP_F_B a Pair
///     compute_comms   0UNSHARD,0F0,... <->  Program
///
/// In a Program from compute_comms every stage owns one sharded parameter group of its one home, and
///     UNSHARD           all_gather of the group's weight over the rank alone; RESHARD frees it
///     REDUCE_GRAD       reduce_scatter of its gradient over the rank alone; WAIT_REDUCE_GRAD waits for it
///     SEND_F, SEND_B    Send of the activation or gradient between neighbouring stages; RECV_*, WAIT_SEND_* likewise
/// What the format leaves implicit is appended to each row, and dropped on export: the all-reduce of the norm and the
/// optimizer steps; for torches before 2.15 also the waits, and for those before 2.10 the reductions.
namespace plait {

/// A release of PyTorch. REDUCE_GRAD came with 2.10, WAIT_SEND_F, WAIT_SEND_B and WAIT_REDUCE_GRAD with 2.15.
struct TorchVersion {
  int major = 2;
  int minor = 15;
  [[nodiscard]] bool has_waits() const { return *this >= TorchVersion{2, 15}; }
  [[nodiscard]] bool has_reduce_grad() const { return *this >= TorchVersion{2, 10}; }
  friend auto operator<=>(const TorchVersion&, const TorchVersion&) = default;
};

/// "2.15" or "2.15.0". Refused before 2.6, whose notation was another one.
Result<TorchVersion> parse_torch_version(std::string_view text);

enum class CsvReading : std::uint8_t {
  kStrict,   ///< refuses everything but the grammar; blanks around an action are fine
  kLenient,  ///< what PyTorch's own reader accepts; TorchCsv::ignored lists what was passed over
};

enum class CsvChecks : std::uint8_t {
  kEverything,   ///< also the order and number of actions, pairs of sends and receives, and their waits
  kForVerifier,  ///< compute_comms: the form only, so that the verifier can report all that is wrong at once
  kForm,         ///< the form only: cells, ranks and stages
};

struct TorchCsvOptions {
  TorchVersion version;
  CsvReading reading = CsvReading::kStrict;
  CsvChecks checks = CsvChecks::kEverything;
};

struct TorchCsv {
  std::variant<Schedule, Program> content;  ///< Schedule from compute_only, Program from compute_comms
  std::vector<std::string> ignored;         ///< kLenient: "FILE, row 1, column 2: ..."
};

/// Reads either format; the actions tell which. The placement is inferred: a stage lives on the rank whose row it
/// stands in. `file_name` heads the messages, its stem becomes the name of the layout.
///
/// \errors kInvalidSchedule "FILE, row R, column C: ..." (both from 1): rule csv.* for the form; verify.* where the
///         verifier would say the same
Result<TorchCsv> import_torch_csv(std::string_view text, std::string_view file_name,
                                  const TorchCsvOptions& options = {});

/// compute_only. Line ends are layout.newline.
///
/// \errors kUnsupported csv.cannot_express with the reason: moving stages, replicas, slices, recompute, routes, ...
Result<std::string> export_torch_csv(const Schedule& schedule);

/// compute_comms. \errors as above
Result<std::string> export_torch_csv(const Program& program, TorchVersion version = {});

}  // namespace plait
