#pragma once

#include "plait/base/result.h"
#include "plait/cli/run/flags.h"
#include "plait/cli/schedule_flags.h"
#include "plait/run/model/config.h"
#include "plait/verify/verify.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace plait::cli {

/// --schedule and the flags of its shape, with the defaults of a run.
struct ScheduleChoice {
  std::string name = "1f1b";
  ScheduleFlags shape;
  void add_to(FlagSet& flags);
  /// Sizes that were not given and that the schedule does not bring along; call after the parse.
  void fill_defaults();
};

struct ChosenSchedule {
  VerifiedProgram program;
  /// The forwards alone, for evaluation on the same ranks; none where they need routes that the schedule wrote for training.
  std::optional<VerifiedProgram> forward;
};

/// Builds or reads, binds to the model, lowers and proves.
/// \errors those of load_schedule; kInvalidSchedule if the program does not pass the verifier
Result<ChosenSchedule> choose_schedule(const ScheduleChoice& choice, const ModelConfig& model);

/// Tokens of each slice under --slice-cut compute; empty = equal ones.
/// \errors kInvalidArgument "slices.too_many" if a slice would be empty
Result<std::vector<std::int64_t>> slice_lengths(const ScheduleChoice& choice, const Layout& layout,
                                                const ModelConfig& model, std::int64_t num_tokens);

}  // namespace plait::cli
